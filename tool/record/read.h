// Files of records that a command is given.
#pragma once
#include "tool/record/record.h"

namespace attune {

// All of their records. What a kill left unfinished is left out, and said on stderr in the name of `who`.
Status read_files(std::string_view who, const std::vector<std::string>& paths, std::vector<Record>& out,
                  std::string* text = nullptr);

}  // namespace attune
