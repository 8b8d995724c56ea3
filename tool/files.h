// Files that a command writes or replaces: nothing the user had is lost.
#pragma once
#include <string>
#include <vector>

#include "core/status.h"

namespace attune {

// Writes beside it and renames; makes the folder. A reader sees the old or the new one, and the file that was there
// stays as <path>.before. Of a link, the file that it names.
Status replace_file(const std::string& path, const std::string& text);
// In its place: a device or a pipe may be meant.
Status write_file(const std::string& path, const std::string& text);
// No file that is to be written is one that is read, nor written twice. Empty names are none.
Status are_apart(const std::vector<std::string>& written, const std::vector<std::string>& read);
Status read_file(const std::string& path, std::string& out);
// The same; nothing where there is no such file.
Status read_whole(const std::string& path, std::string& out);

}  // namespace attune
