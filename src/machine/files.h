// SPDX-License-Identifier: Apache-2.0
// Files that anybody may have put there or may be reading: reads with a limit, and replaces without following what
// others planted.
#pragma once
#include <cstddef>
#include <string>

#include "core/status.h"

namespace attune {

// Whose file may be read.
enum class Owner { anyone, user };
struct ReadLimits {
  size_t most_bytes = 0;
  bool pipes = false;           // also pipes, sockets, terminals and /dev/null; else only regular files
  Owner owner = Owner::anyone;  // user: owned by this user or root, and not writable by everyone
};
// Reads a whole file. Refuses devices, which may be endless, and more than `most_bytes`. Waits for a pipe only if pipes
// are allowed. The message does not contain the path; a missing file is an error.
Status read_limited(const std::string& path, const ReadLimits&, std::string& out);
// Whether the file behind the path can be read to its end: a regular file, or also a pipe, a terminal or /dev/null.
Status is_finite(const std::string& path, bool pipes);

// Writes a file under a temporary name of its own and atomically replaces the target at the end. A reader, also after a
// crash, sees the old file or the new one. Mode and, if permitted, owner of the target are kept. Messages do not
// contain the path.
class Replacement {
 public:
  struct Settings {
    bool follow_links = true;  // unless another user may have planted them; else a link itself is replaced
    std::string like{};        // a new target takes mode and owner of this file; "": the defaults of the process
  };
  Replacement() = default;
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement();
  // The target is absent or a regular file. Removes temporary files that killed processes left.
  Status open(const std::string& path, const Settings&);
  Status open(const std::string& path) { return open(path, {}); }
  Status write(const void* data, size_t bytes);
  Status finish();

 private:
  std::string target_{}, beside_{};
  int file_ = -1;
};

// The target of a symlink, of its target and so on; the path itself if it is not a link. Unlike realpath(), the target
// need not exist. Refuses a link of another user in a folder where everybody may create one.
Status behind_links(const std::string& path, std::string& out);

// Keeps other processes that ask for the same folder out, for a file that is read, changed and replaced. No file is
// left behind. A folder that cannot be opened or locked is granted: whoever uses it finds out what is wrong.
class FolderLock {
 public:
  FolderLock() = default;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();
  Status take(const std::string& folder, int patience_ms = 10'000);  // "" is the current folder

 private:
  int folder_ = -1;
};

}  // namespace attune
