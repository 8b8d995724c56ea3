// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/drivers/over_ssh.h"

#include <cstdio>

#include "tool/remote/drivers/drivers.h"

namespace attune {

std::string OverSsh::where(const Wanted& wanted) {
  return join("ssh, at most ", wanted.minutes, " minutes, ", wanted.silence_s, " s of silence");
}

Status OverSsh::open(const Target& ssh, const std::string& folder, const Lease& lease) {
  if (driver_) return Status::good();
  std::unique_ptr<Driver> driver = ssh_driver(ssh, folder);
  if (Status s = driver->check(); !s.ok()) return s;
  Wanted wanted{.minutes = 60, .name = lease.name};
  if (std::sscanf(lease.where.c_str(), "ssh, at most %lf minutes, %lf", &wanted.minutes, &wanted.silence_s) < 1)
    wanted.minutes = 60;
  Lease there;
  if (Status s = driver->acquire(wanted, {}, there); !s.ok()) return s;
  driver_ = std::move(driver);
  return Status::good();
}

}  // namespace attune
