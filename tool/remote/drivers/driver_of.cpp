// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/drivers/drivers.h"

namespace attune {

std::unique_ptr<Driver> driver_of(const Target& t, const std::string& folder) {
  if (t.kind == "ssh") return ssh_driver(t, folder);
  if (t.kind == "slurm") return slurm_driver(t, folder);
  if (t.kind == "prime") return prime_driver(t, folder);
  if (t.kind == "modal") return modal_driver(t, folder);
  if (t.kind == "sky") return sky_driver(t, folder);
  return local_driver(t);
}

}  // namespace attune
