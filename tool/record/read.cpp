// SPDX-License-Identifier: Apache-2.0
#include "tool/record/read.h"

#include <cstdio>

namespace attune {

Status read_files(std::string_view who, const std::vector<std::string>& paths, std::vector<Record>& out,
                  std::string* text) {
  std::vector<std::string> unfinished;
  for (const std::string& path : paths)
    if (Status s = read_records(path, out, &unfinished, text); !s.ok()) return s;
  for (const std::string& sentence : unfinished) std::fputs(join(who, ": ", sentence, "\n").c_str(), stderr);
  return Status::good();
}

}  // namespace attune
