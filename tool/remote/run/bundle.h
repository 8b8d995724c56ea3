// SPDX-License-Identifier: Apache-2.0
// This build of attune as one archive that runs elsewhere without root: the command, its libraries and its scripts.
// Left out are glibc and the GPU's driver, which belong to the machine.
#pragma once
#include <string>

#include "core/status.h"

namespace attune {

struct Bundle {
  std::string path{};          // the archive, named after the hash of what it holds
  std::string hash{};          // 16 hex digits
  std::string architecture{};  // as `uname -m` says it
  int glibc_minor = 0;         // it needs glibc 2.<this>
  std::string gpus{};          // "sm_90, ..."; "" if this build has no GPU code
};

// Makes the archive, or finds it in $XDG_CACHE_HOME/attune/bundles.
Status make_bundle(Bundle&);
// Reads the facts of an archive that make_bundle() wrote, perhaps on another machine.
Status read_bundle(const std::string& path, Bundle&);

// Why the bundle does not run on the machine that says this of itself; good if it does, as far as is known.
Status fits(const Bundle&, const std::string& probe, bool wants_gpu);

}  // namespace attune
