// SPDX-License-Identifier: Apache-2.0
// Keys of providers: from the environment or from a file that only its owner can read, and never written anywhere.
#pragma once
#include <string>

#include "core/status.h"

namespace attune {

// The value of an environment variable, else the member of a JSON file, which must have mode 600. `out` is empty, and
// that is a success, if neither is there.
Status read_secret(const std::string& variable, const std::string& file, const std::string& member, std::string& out);
// From now on this process leaves no core dump, and no other process of this user can read its memory.
void keep_secrets();

}  // namespace attune
