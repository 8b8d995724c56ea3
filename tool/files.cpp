#include "tool/files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "machine/symlinks.h"

namespace attune {

namespace fs = std::filesystem;

Status replace_file(const std::string& given, const std::string& text) {
  std::error_code error;
  const std::string path = behind_links(given);
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) return Status::no(folder.string(), ": cannot be created: ", error.message());
  const std::string next = join(path, ".", ::getpid());
  std::ofstream file(next, std::ios::binary);
  file << text;
  file.close();
  if (!file) return fs::remove(next, error), Status::no(path, ": cannot be written");
  if (fs::exists(path, error)) fs::copy_file(path, path + ".before", fs::copy_options::overwrite_existing, error);
  if (!error) fs::rename(next, path, error);
  if (!error) return Status::good();
  const std::string why = error.message();
  return fs::remove(next, error), Status::no(path, ": cannot be written: ", why);
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? Status::good() : Status::no(path, ": cannot be written");
}

Status are_apart(const std::vector<std::string>& written, const std::vector<std::string>& read) {
  const auto same = [](const std::string& a, const std::string& b) {
    std::error_code error;
    if (a.empty() || b.empty() || fs::is_character_file(a, error)) return false;  // /dev/null, /dev/stdout
    return fs::equivalent(a, b, error) || fs::weakly_canonical(a, error) == fs::weakly_canonical(b, error);
  };
  for (size_t n = 0; n < written.size(); ++n) {
    for (const std::string& path : read)
      if (same(written[n], path)) return Status::no(written[n], " is an input and would be overwritten");
    for (size_t m = 0; m < n; ++m)
      if (same(written[n], written[m])) return Status::no(written[n], " would be written twice");
  }
  return Status::good();
}

Status read_file(const std::string& path, std::string& out) {
  out.clear();
  const auto no = [&](int why) { return Status::no("'", path, "' cannot be read: ", std::strerror(why)); };
  std::error_code error;
  if (fs::is_directory(path, error)) return no(EISDIR);  // a folder opens, but reading it throws
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (file) out.assign(std::istreambuf_iterator<char>(file), {});
  return file ? Status::good() : no(errno ? errno : EIO);
}

Status read_whole(const std::string& path, std::string& out) {
  out.clear();
  std::error_code error;  // set for a folder without permission: reading then reports it
  return fs::exists(path, error) || error ? read_file(path, out) : Status::good();
}

}  // namespace attune
