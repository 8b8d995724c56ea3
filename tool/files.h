// Files that a command replaces: a reader sees the old or the new one, and the old one is not lost.
#pragma once
#include <string>

#include "core/status.h"

namespace attune {

// Writes beside it and renames; makes the folder. The file that was there stays as <path>.before.
Status replace_file(const std::string& path, const std::string& text);
// All of it; nothing where there is no such file.
Status read_whole(const std::string& path, std::string& out);

}  // namespace attune
