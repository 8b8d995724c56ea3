// Reading and writing files without losing anything the user had.
#pragma once
#include <string>
#include <vector>

#include "core/status.h"

namespace attune {

// Writes a temporary file next to `path` and renames it; creates the folder. A reader sees the old file or the new one.
// The old file is kept as <path>.before. Follows symlinks.
Status replace_file(const std::string& path, const std::string& text);
// Writes in place, because `path` may be a device or a pipe.
Status write_file(const std::string& path, const std::string& text);
// Fails if a file to be written is also read, or is written twice. Empty names are ignored.
Status are_apart(const std::vector<std::string>& written, const std::vector<std::string>& read);
Status read_file(const std::string& path, std::string& out);
// Like read_file, but a missing file reads as empty.
Status read_whole(const std::string& path, std::string& out);

}  // namespace attune
