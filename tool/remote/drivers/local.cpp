// SPDX-License-Identifier: Apache-2.0
// This machine, as any other: the same folder, keeper and bundle, without a connection.
#include "tool/remote/drivers/drivers.h"
#include "tool/remote/drivers/shell.h"

namespace attune {

std::unique_ptr<Driver> local_driver(const Target& target) { return std::make_unique<ShellDriver>(target, "", ""); }

}  // namespace attune
