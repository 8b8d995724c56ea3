#include "tool/compare/baseline.h"

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

}  // namespace

Status is_baseline_name(const std::string& name) {
  constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (!name.empty() && name[0] != '.' && name.find_first_not_of(kLetters) == name.npos) return Status::good();
  return Status::no("a baseline's name is of letters, digits, '.', '_' and '-' without a first '.': not '", name, "'");
}

Status read_baseline(const std::string& name, std::vector<Record>& out, std::string& where) {
  if (Status s = is_baseline_name(name); !s.ok()) return s;
  std::string tried;
  for (const std::string& folder : {project(), user()}) {
    if (folder.empty()) continue;
    where = folder + "/" + name + ".jsonl";
    std::error_code error;  // of a folder that may not be looked into: then reading says so
    if (fs::exists(where, error) || error) return read_records(where, out);
    tried += (tried.empty() ? "" : " nor ") + where;
  }
  where = default_store();
  Status s = Status::no("nothing says where a store is");
  Store store;
  if (!where.empty()) s = store.open(where, false);
  if (s.ok()) s = store.baseline(name, out);
  for (const std::string& sentence : store.left_out()) std::fputs((sentence + "\n").c_str(), stderr);
  if (s.ok()) return s;
  return Status::no("there is no baseline '", name, "': neither ", tried, ", nor in the store (", s.message,
                    "); --save stores one");
}

Status save_baseline(const std::string& name, const std::string& text, std::string& path) {
  if (Status s = is_baseline_name(name); !s.ok()) return s;
  std::error_code error;
  const std::string folder = fs::is_directory(kProjectTunedFolder, error) ? project() : user();
  if (folder.empty()) return Status::no("neither XDG_CONFIG_HOME nor HOME is set, and there is no .attune here");
  path = folder + "/" + name + ".jsonl";
  return replace_file(path, text);
}

}  // namespace attune
