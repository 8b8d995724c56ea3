#include "tool/files.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace attune {

Status replace_file(const std::string& path, const std::string& text) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) return Status::no(folder.string(), ": cannot be made: ", error.message());
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

Status read_whole(const std::string& path, std::string& out) {
  out.clear();
  if (!std::filesystem::exists(path)) return Status::good();
  std::ifstream file(path, std::ios::binary);
  out.assign(std::istreambuf_iterator<char>(file), {});
  return file ? Status::good() : Status::no(path, ": cannot be read");
}

}  // namespace attune
