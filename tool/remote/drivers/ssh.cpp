// SPDX-License-Identifier: Apache-2.0
// A machine behind ssh: OpenSSH's own program, with the user's configuration, keys and known hosts.
#include "tool/remote/drivers/drivers.h"
#include "tool/remote/drivers/shell.h"

namespace attune {

std::unique_ptr<Driver> ssh_driver(const Target& target, const std::string& control_folder) {
  return std::make_unique<ShellDriver>(target, target.place, control_folder);
}

}  // namespace attune
