// SPDX-License-Identifier: Apache-2.0
// Reads the files of records on a command line.
#pragma once
#include "tool/record/record.h"

namespace attune {

// Reads all their records. An incomplete last line, left by a killed run, is skipped with a message on stderr that
// begins with `who`.
Status read_files(std::string_view who, const std::vector<std::string>& paths, std::vector<Record>& out,
                  std::string* text = nullptr);

}  // namespace attune
