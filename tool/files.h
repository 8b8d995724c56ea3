// SPDX-License-Identifier: Apache-2.0
// Reading and writing files without losing anything the user had; the file of this program.
#pragma once
#include <cstdio>
#include <string>
#include <vector>

#include "core/status.h"

namespace attune {

// Absolute path of the program that this process runs; "" without /proc. In a wheel or another portable package this
// code is in a library, which own_file() names (machine/library.h).
std::string this_program();

// Which old files a replacement keeps: the last one as <path>.before, or each, later ones as <path>.before.2, .3, ...
enum class Before { last, each };
// Replaces a file atomically (machine/files.h) and creates its folder. The old file is kept. Follows symlinks.
Status replace_file(const std::string& path, const std::string& text, Before = Before::last);
// Replaces a file atomically; writes in place if `path` is a device or a pipe.
Status write_file(const std::string& path, const std::string& text);
// Where the sentences about these files go: to stderr if one of them is stdout.
std::FILE* beside(const std::vector<std::string>& written);
// Fails if a file to be written is also read, or is written twice. Empty names are ignored.
Status are_apart(const std::vector<std::string>& written, const std::vector<std::string>& read);
// Reads a whole text from a file or a pipe. A device, which may be endless, and a longer text are refused.
// Code::device: the file is missing, or this user may not read it.
inline constexpr size_t kMostText = size_t(64) << 20, kMostRecords = size_t(1) << 30;  // bytes
Status read_text(const std::string& path, std::string& out, size_t most);
inline Status read_file(const std::string& path, std::string& out) { return read_text(path, out, kMostText); }
// Like read_file, but a missing file reads as empty.
Status read_whole(const std::string& path, std::string& out);

}  // namespace attune
