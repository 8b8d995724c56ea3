// SPDX-License-Identifier: Apache-2.0
#include "machine/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string_view>
#include <utility>

namespace attune {
namespace {

std::string system_error() { return std::strerror(errno); }
Status unreadable() { return Status::no("cannot be read: ", system_error()); }

struct Descriptor {
  int file = -1;
  ~Descriptor() {
    if (file >= 0) ::close(file);
  }
};

Status is_finite(const struct stat& about, bool pipes) {
  const mode_t mode = about.st_mode;
  if (S_ISREG(mode)) return Status::good();
  if (S_ISDIR(mode)) return Status::no("cannot be read: ", std::strerror(EISDIR));
  if (!pipes) return Status::no("is not a regular file");
  if (S_ISFIFO(mode) || S_ISSOCK(mode)) return Status::good();
  const bool null = S_ISCHR(mode) && about.st_rdev == makedev(1, 3);  // /dev/null, by Linux's list of devices
  const bool terminal = S_ISCHR(mode) && ((major(about.st_rdev) >= 136 && major(about.st_rdev) <= 143) ||
                                          major(about.st_rdev) == 4 || major(about.st_rdev) == 5);
  return null || terminal ? Status::good() : Status::no("is a device, not a file or a pipe");
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

constexpr std::string_view kPart = ".part";

// Removes temporary files beside the target whose writers are gone: a writer holds a lock on its file.
void remove_stale(const std::string& target) {
  const std::string folder = folder_of(target), name = target.substr(target.rfind('/') + 1) + ".";
  DIR* const all = opendir(folder.c_str());
  if (!all) return;
  while (const dirent* const entry = readdir(all)) {
    const std::string_view found = entry->d_name;
    if (!found.starts_with(name) || !found.ends_with(kPart) || found.size() <= name.size() + kPart.size()) continue;
    const std::string_view numbers = found.substr(name.size(), found.size() - name.size() - kPart.size());
    if (numbers.find_first_not_of("0123456789.") != numbers.npos) continue;
    const Descriptor stale{::openat(dirfd(all), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
    struct stat about{};
    if (stale.file < 0 || fstat(stale.file, &about) || !S_ISREG(about.st_mode) || about.st_uid != geteuid()) continue;
    if (flock(stale.file, LOCK_EX | LOCK_NB)) continue;
    // Its writer may have renamed it meanwhile and begun another under the same name. While the name still leads to the
    // locked file, no writer changes it: one that cannot lock its new file leaves it.
    struct stat named{};
    if (!::fstatat(dirfd(all), entry->d_name, &named, AT_SYMLINK_NOFOLLOW) && named.st_dev == about.st_dev &&
        named.st_ino == about.st_ino)
      (void)::unlinkat(dirfd(all), entry->d_name, 0);
  }
  closedir(all);
}

}  // namespace

Status is_finite(const std::string& path, bool pipes) {
  struct stat about{};
  return ::stat(path.c_str(), &about) ? unreadable() : is_finite(about, pipes);
}

Status read_limited(const std::string& path, const ReadLimits& limits, std::string& out) {
  out.clear();
  if (Status s = is_finite(path, limits.pipes); !s.ok()) return s;  // opening a device may have effects
  // Without O_NONBLOCK, opening a pipe waits for its writer, and reading /proc/kmsg for the kernel.
  const Descriptor from{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | (limits.pipes ? 0 : O_NONBLOCK))};
  struct stat about{};
  if (from.file < 0 || fstat(from.file, &about)) return unreadable();
  if (Status s = is_finite(about, limits.pipes); !s.ok()) return s;
  if (limits.owner == Owner::user) {
    if (about.st_uid != geteuid() && about.st_uid != 0)
      return Status::no("belongs to user ", about.st_uid, ", neither to this user nor to root");
    if (about.st_mode & S_IWOTH) return Status::no("everyone may write to it");
  }
  const auto too_much = [&] { return Status::no("has more than ", limits.most_bytes, " bytes"); };
  if (S_ISREG(about.st_mode) && about.st_size > 0 && uint64_t(about.st_size) > limits.most_bytes) return too_much();
  constexpr size_t kChunk = 1 << 16;
  for (size_t have = 0;;) {
    out.resize(have + kChunk);
    const ssize_t n = ::read(from.file, out.data() + have, kChunk);
    if (n < 0 && errno == EINTR) { out.resize(have); continue; }
    out.resize(have + size_t(std::max<ssize_t>(n, 0)));
    if (n < 0) return unreadable();
    if (n == 0) return Status::good();
    have = out.size();
    if (have > limits.most_bytes) return out.clear(), too_much();
  }
}

Status behind_links(const std::string& path, std::string& out) {
  constexpr int kMostLinks = 40;  // the kernel's limit
  out = path;
  for (int n = 0; n < kMostLinks; ++n) {
    struct stat link{}, folder{};
    if (::lstat(out.c_str(), &link) || !S_ISLNK(link.st_mode)) return Status::good();
    const std::string in = folder_of(out);
    // The rule of the kernel's protected_symlinks, which may be off.
    if (!::stat(in.c_str(), &folder) && (folder.st_mode & S_IWOTH) && link.st_uid != geteuid() &&
        link.st_uid != folder.st_uid)
      return Status::no("is a link of user ", link.st_uid,
                        " in a folder that everyone may write to; it is not followed");
    char to[PATH_MAX];
    const ssize_t size = ::readlink(out.c_str(), to, sizeof to);
    if (size <= 0 || size == ssize_t(sizeof to)) return Status::no(system_error());
    const std::string target(to, size_t(size));
    out = target.starts_with('/') || in == "." ? target : in + "/" + target;
  }
  return Status::no(std::strerror(ELOOP));
}

Replacement::~Replacement() {
  if (!beside_.empty()) ::unlink(beside_.c_str());
  if (file_ >= 0) ::close(file_);
}

Status Replacement::open(const std::string& path, const Settings& settings) {
  target_ = path;
  if (settings.follow_links)
    if (Status s = behind_links(path, target_); !s.ok()) return s;
  struct stat old{};
  bool there = !::lstat(target_.c_str(), &old);
  if (!there && errno != ENOENT) return Status::no(system_error());
  if (there && !S_ISREG(old.st_mode) && !S_ISLNK(old.st_mode))
    return Status::no("exists and is not a regular file; it is not replaced");
  there = there && S_ISREG(old.st_mode);
  if (!settings.like.empty()) there = !::stat(settings.like.c_str(), &old);
  remove_stale(target_);
  const mode_t mode = there ? old.st_mode & 0777 : 0666;
  constexpr int kMostTries = 1000;
  for (int n = 0; n < kMostTries && file_ < 0; ++n) {
    beside_ = join(target_, ".", getpid(), ".", n, kPart);
    // Not mkostemp: it uses mode 0600, and reading the umask would change it for other threads. O_EXCL follows no link.
    file_ = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (file_ < 0 && errno != EEXIST) break;
    struct stat now{};
    // Another process may have taken the file for a stale one before it was locked.
    if (file_ >= 0 && ((flock(file_, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) ||
                       (!fstat(file_, &now) && now.st_nlink == 0)))
      ::close(std::exchange(file_, -1));
  }
  if (file_ < 0) return beside_.clear(), Status::no(system_error());
  struct stat now{};
  if (!there) return Status::good();
  if (fstat(file_, &now)) return Status::no(system_error());
  if (now.st_uid != old.st_uid || now.st_gid != old.st_gid)
    if (fchown(file_, old.st_uid, old.st_gid)) {}  // permitted to root, and of the user's own groups
  if ((now.st_mode & 0777) != mode && fchmod(file_, mode)) return Status::no(system_error());
  return Status::good();
}

Status Replacement::write(const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes) {
    const ssize_t n = ::write(file_, from, std::min<size_t>(bytes, 1 << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Status::no(system_error());
    from += n, bytes -= size_t(n);
  }
  return Status::good();
}

Status Replacement::finish() {
  if (fsync(file_)) return Status::no(system_error());  // otherwise a crash may leave the name without the data
  if (std::rename(beside_.c_str(), target_.c_str())) return Status::no(system_error());
  beside_.clear();
  return ::close(std::exchange(file_, -1)) ? Status::no(system_error()) : Status::good();
}

FolderLock::~FolderLock() {
  if (folder_ >= 0) ::close(folder_);
}

Status FolderLock::take(const std::string& folder, int patience_ms) {
  folder_ = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0) return Status::good();
  constexpr int kPause = 20;
  for (int waited = 0; flock(folder_, LOCK_EX | LOCK_NB); waited += kPause) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return Status::good();
    if (waited >= patience_ms) return Status::no("is in use by another process");
    usleep(kPause * 1000);
  }
  return Status::good();
}

}  // namespace attune
