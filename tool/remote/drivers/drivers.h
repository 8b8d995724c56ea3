// SPDX-License-Identifier: Apache-2.0
// The drivers, one file each.
#pragma once
#include <memory>
#include <string>

#include "tool/remote/driver.h"

namespace attune {

std::unique_ptr<Driver> local_driver(const Target&);
std::unique_ptr<Driver> ssh_driver(const Target&, const std::string& control_folder);
std::unique_ptr<Driver> slurm_driver(const Target&, const std::string& control_folder);
std::unique_ptr<Driver> prime_driver(const Target&, const std::string& folder);
std::unique_ptr<Driver> modal_driver(const Target&, const std::string& folder);
std::unique_ptr<Driver> sky_driver(const Target&, const std::string& folder);

// The driver of the target's kind. `folder` is the run's: drivers may keep sockets and logs there.
std::unique_ptr<Driver> driver_of(const Target&, const std::string& folder);

}  // namespace attune
