// SPDX-License-Identifier: Apache-2.0
#include "tool/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "machine/files.h"

namespace attune {

namespace fs = std::filesystem;

namespace {

constexpr int kMostBefore = 99;
constexpr const char* kStdout = "/dev/stdout";

// `like`: see Replacement::Settings.
Status replace(const std::string& path, const std::string& text, const Replacement::Settings& settings) {
  Replacement made;
  Status s = made.open(path, settings);
  if (s.ok()) s = made.write(text.data(), text.size());
  if (s.ok()) s = made.finish();
  return s.after(path, ": cannot be written: ");
}

Status write_in_place(const std::string& path, std::string_view text) {
  // Stdout itself: what is printed later follows. A second opening of a redirected file would begin at its first byte.
  const bool is_stdout = path == kStdout;
  if (is_stdout) std::fflush(stdout);
  const int file = is_stdout ? ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                             : ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (file < 0) return Status::no(path, ": cannot be written: ", std::strerror(errno));
  Status s;
  while (s.ok() && !text.empty()) {
    const ssize_t n = ::write(file, text.data(), text.size());
    if (n >= 0) text.remove_prefix(size_t(n));
    else if (errno != EINTR) s = Status::no(path, ": cannot be written: ", std::strerror(errno));
  }
  ::close(file);
  return s;
}

}  // namespace

std::string this_program() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

Status replace_file(const std::string& given, const std::string& text, Before keep) {
  std::error_code error;
  std::string path, old;
  if (Status s = behind_links(given, path); !s.ok()) return s.after(given, ": cannot be written: ");
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) return Status::no(folder.string(), ": cannot be created: ", error.message());
  if (fs::exists(path, error)) {
    if (Status s = is_finite(path, false); !s.ok()) return s.after(path, ": cannot be written: ");
    if (Status s = read_text(path, old, kMostRecords); !s.ok()) return s;
    std::string as = path + ".before";
    for (int n = 2; keep == Before::each && fs::symlink_status(as, error).type() != fs::file_type::not_found; ++n) {
      std::string kept;
      if (read_text(as, kept, kMostRecords).ok() && kept == old) break;  // it is kept already
      if (n > kMostBefore) return Status::no(path, ": ", kMostBefore, " old files are kept as ", path, ".before.N; "
                                             "remove those that you do not need");
      as = join(path, ".before.", n);
    }
    // Only this function writes there, so a link was planted.
    if (Status s = replace(as, old, {.follow_links = false, .like = path}); !s.ok()) return s;
  }
  return replace(path, text, {});
}

std::FILE* beside(const std::vector<std::string>& written) {
  return std::count(written.begin(), written.end(), kStdout) ? stderr : stdout;
}

Status write_file(const std::string& path, const std::string& text) {
  struct stat about{};
  const bool there = ::stat(path.c_str(), &about) == 0;
  const bool opened = path.starts_with("/dev/") || path.starts_with("/proc/");  // /dev/stdout may be a file of a shell
  return there && (opened || !S_ISREG(about.st_mode)) ? write_in_place(path, text) : replace(path, text, {});
}

namespace {

// Where a file is, or would be: a relative name, a dangling link and "." in a name do not hide which file it is.
fs::path place_of(const std::string& path) {
  std::error_code error;
  std::string behind;
  if (!behind_links(path, behind).ok()) behind = path;
  const fs::path whole = fs::absolute(behind, error), place = fs::weakly_canonical(whole, error);
  return error ? whole.lexically_normal() : place;
}

}  // namespace

Status are_apart(const std::vector<std::string>& written, const std::vector<std::string>& read) {
  const auto same = [](const std::string& a, const std::string& b) {
    std::error_code error;
    if (a.empty() || b.empty()) return false;
    if (const auto type = fs::status(a, error).type();  // /dev/null, /dev/stdout: nothing is overwritten
        type == fs::file_type::character || type == fs::file_type::fifo || type == fs::file_type::socket)
      return false;
    return fs::equivalent(a, b, error) || place_of(a) == place_of(b);
  };
  for (size_t n = 0; n < written.size(); ++n) {
    for (const std::string& path : read)
      if (same(written[n], path)) return Status::no(written[n], " is an input and would be overwritten");
    for (size_t m = 0; m < n; ++m)
      if (same(written[n], written[m])) return Status::no(written[n], " would be written twice");
  }
  return Status::good();
}

Status read_text(const std::string& path, std::string& out, size_t most) {
  Status s = read_limited(path, {.most_bytes = most, .pipes = true}, out).after("'", path, "' ");
  if (!s.ok() && (::access(path.c_str(), R_OK) != 0 || !is_finite(path, true).ok())) s.code = Code::device;
  return s;
}

Status read_whole(const std::string& path, std::string& out) {
  out.clear();
  std::error_code error;  // set for a folder without permission: reading then reports it
  if (!fs::exists(path, error) && !error) return Status::good();
  // What is read here is replaced afterwards. A pipe is refused: reading would wait for its writer.
  if (Status s = is_finite(path, false); !s.ok()) return s.code = Code::device, s.after("'", path, "' ");
  return read_file(path, out);
}

}  // namespace attune
