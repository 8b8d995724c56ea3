// SPDX-License-Identifier: Apache-2.0
#include "tool/compare/baseline.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "plan/tuned.h"
#include "tool/files.h"
#include "tool/record/store.h"

namespace attune {
namespace {

namespace fs = std::filesystem;

std::string project() { return std::string(kProjectTunedFolder) + "/baselines"; }
std::string user() { return user_tuned_folder().empty() ? "" : user_tuned_folder() + "/baselines"; }

// Who else can have written this file; "" if only this user and root can.
std::string others_of(const fs::path& file) {
  for (fs::path at = file; !at.empty(); at = at.parent_path()) {
    struct stat about{};
    if (::stat(at.c_str(), &about) != 0) continue;
    const std::string what = at == file ? "which" : join("whose folder '", at.string(), "'");
    if (about.st_uid != geteuid() && about.st_uid != 0) return join(what, " belongs to user ", about.st_uid);
    if (about.st_mode & S_IWOTH) return join(what, " everyone may write to");
    if (at == file.parent_path().parent_path()) break;  // .attune, or attune in the user's configuration
  }
  return "";
}

}  // namespace

std::string baseline_note(const std::string& given) {
  const std::string path = fs::path(given).lexically_normal().string();
  const std::string others = others_of(path);
  return join("the baseline is '", path, "'", others.empty() ? "" : ", ", others);
}

Status is_baseline_name(const std::string& name) {
  constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (!name.empty() && name[0] != '.' && name.find_first_not_of(kLetters) == name.npos) return Status::good();
  return Status::no("baseline '", name, "': a name has letters, digits, '.', '_' and '-', and does not begin with '.'");
}

Status read_baseline(const std::string& name, std::vector<Record>& out, std::string& where) {
  if (Status s = is_baseline_name(name); !s.ok()) return s;
  std::string tried;
  for (const std::string& folder : {project(), user()}) {
    if (folder.empty()) continue;
    where = folder + "/" + name + ".jsonl";
    std::error_code error;  // set for a folder without permission: reading then reports it
    if (fs::exists(where, error) || error) return read_records(where, out);
    tried += (tried.empty() ? "" : " nor ") + where;
  }
  where = default_store();
  Status s = Status::no("no path: ATTUNE_STORE, XDG_DATA_HOME and HOME are not set");
  Store store;
  if (!where.empty()) s = store.open(where, false);
  if (s.ok()) s = store.baseline(name, out);
  for (const std::string& sentence : store.left_out()) std::fputs((sentence + "\n").c_str(), stderr);
  if (s.ok()) return s;
  return Status::failure(Code::device, "baseline '", name, "' not found: neither ", tried, ", nor in the store (",
                         s.message, "); --save stores one");
}

Status save_baseline(const std::string& name, const std::string& text, std::string& path) {
  if (Status s = is_baseline_name(name); !s.ok()) return s;
  std::error_code error;
  const std::string folder = fs::is_directory(kProjectTunedFolder, error) ? project() : user();
  if (folder.empty())
    return Status::no("neither XDG_CONFIG_HOME nor HOME is set, and this folder has no .attune");
  path = folder + "/" + name + ".jsonl";
  return replace_file(path, text);
}

}  // namespace attune
