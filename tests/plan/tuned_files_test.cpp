// SPDX-License-Identifier: Apache-2.0
// Every shipped tuned file parses, names existing backends and states the device it was measured on.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "plan/rules.h"

namespace attune {
namespace {

namespace fs = std::filesystem;

// Errors in the tuned files of a folder, one per line.
std::string mistakes(const fs::path& folder) {
  std::string all;
  if (!fs::exists(folder)) return all;
  for (const fs::directory_entry& e : fs::recursive_directory_iterator(folder)) {
    if (!e.is_regular_file()) continue;
    if (e.path().extension() != ".tsv") {
      all += e.path().filename().string() + " is not a .tsv file\n";
      continue;
    }
    std::ostringstream text;
    text << std::ifstream(e.path(), std::ios::binary).rdbuf();
    Tuned t;
    if (const Status s = read_tuned(text.str(), e.path().filename().string(), t); !s.ok()) all += s.message + "\n";
    else if (t.rules.empty()) all += e.path().filename().string() + " has no rule\n";
  }
  return all;
}

TEST(TunedFiles, all_are_read) { EXPECT_EQ(mistakes(fs::path(ATTUNE_SOURCE_DIR) / "tuned"), ""); }

TEST(TunedFiles, a_damaged_file_is_seen) {
  const fs::path folder = fs::path(testing::TempDir()) / "attune_tuned_files_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  std::ofstream(folder / "h200.tsv") << "attune-tuned 1\ndevice\tX\nmeasured\tY\nrule\n";
  EXPECT_TRUE(mistakes(folder).starts_with("h200.tsv:4: 1 fields given")) << mistakes(folder);
  std::ofstream(folder / "h200.tsv") << "attune-tuned 1\ndevice\tX\nmeasured\tY\n";
  EXPECT_EQ(mistakes(folder), "h200.tsv has no rule\n");
  std::ofstream(folder / "h200.tsv")
      << "attune-tuned 1\ndevice\tX\nmeasured\tY\nrule\tforward\tf32\td64\tfull\theads 1-*\tlen 1\tcpu_forward\n";
  EXPECT_EQ(mistakes(folder), "");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace attune
