// SPDX-License-Identifier: Apache-2.0
// A rented machine that is reached by ssh: on it lies a folder with a keeper, as on any machine behind ssh.
#pragma once
#include <memory>
#include <string>

#include "tool/remote/driver.h"

namespace attune {

class OverSsh {
 public:
  // What the keeper must know is kept in Lease::where, so that any process of the run can open it.
  static std::string where(const Wanted&);
  bool is_open() const { return driver_ != nullptr; }
  // Connects, and makes the folder if it is missing. `ssh` names the host.
  Status open(const Target& ssh, const std::string& folder, const Lease&);
  void close() { driver_.reset(); }
  Driver& driver() { return *driver_; }

 private:
  std::unique_ptr<Driver> driver_{};
};

}  // namespace attune
