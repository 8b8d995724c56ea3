// SPDX-License-Identifier: Apache-2.0
#include "plan/tuned.h"

#include <sys/stat.h>

#include <cstdlib>

#include "machine/files.h"

namespace attune {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// 0: does not exist.
mode_t mode_of(const std::string& path) {
  struct stat about;
  return stat(path.c_str(), &about) == 0 ? about.st_mode : 0;
}
bool is_folder(const std::string& path) { return S_ISDIR(mode_of(path)); }
bool is_there(const std::string& path) { return mode_of(path); }

}  // namespace

std::string file_word(const Device& d) {
  std::string_view name = d.name;
  if (name.starts_with("NVIDIA ")) name.remove_prefix(7);
  std::string word;
  for (const char c : name) {
    const char lower = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
    const bool kept = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
    if (kept) word += lower;
    else if (!word.empty() && word.back() != '-') word += '-';
  }
  while (word.ends_with('-')) word.pop_back();
  return word.empty() ? "device" : word;
}

std::string user_tuned_folder() {
  // A relative path is not valid there, by the XDG specification: it would mean the current folder.
  const std::string config = variable("XDG_CONFIG_HOME"), home = variable("HOME");
  if (config.starts_with('/')) return config + "/attune";
  return home.starts_with('/') ? home + "/.config/attune" : "";
}

std::string tuned_path(const Device& d) {
  const std::string file = file_word(d) + ".tsv", asked = variable("ATTUNE_TUNED");
  if (!asked.empty()) {
    const std::string path = asked + "/" + file;
    return !is_folder(asked) ? asked : is_there(path) ? path : "";
  }
  const std::string folder = user_tuned_folder(), path = folder + "/" + file;
  return !folder.empty() && is_there(path) ? path : "";
}

Status read_tuned_file(const std::string& path, std::string& out) {
  constexpr size_t kMostBytes = size_t(4) << 20;
  // A file that ATTUNE_TUNED names may belong to an administrator; one that is found must be the user's.
  const Owner owner = variable("ATTUNE_TUNED").empty() ? Owner::user : Owner::anyone;
  return read_limited(path, {.most_bytes = kMostBytes, .owner = owner}, out).after(path, ": ");
}

Status load_tuned(const Device& d, Tuned& out) {
  out = {};
  const std::string path = tuned_path(d);
  if (path.empty()) return Status::good();
  std::string text;
  if (Status s = read_tuned_file(path, text); !s.ok()) return s;
  Tuned read;
  if (Status s = read_tuned(text, path, read); !s.ok()) return s;
  if (read.device != d.name)
    return Status::no(path, ": was measured on '", read.device, "', but this device is '", d.name, "'");
  out = std::move(read);
  return Status::good();
}

}  // namespace attune
