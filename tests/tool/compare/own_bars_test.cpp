// SPDX-License-Identifier: Apache-2.0
// The bars of this repository: each file measures what its requirements ask for.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/problem_line.h"
#include "core/work.h"
#include "tests/tool/records.h"
#include "tests/tool/spawn.h"
#include "tool/bench/axes.h"
#include "tool/compare/bars.h"
#include "tool/toml.h"

namespace attune {
namespace {

namespace fs = std::filesystem;

struct OwnBars {
  std::vector<std::string> keys{};  // of attune bench
  std::vector<std::string> lines{}, subjects{}, peers{};
  std::vector<Bar> bars{};
  bool rested = false, hot = false;
};

std::vector<std::string> words_of(const toml::node* node) {
  std::vector<std::string> all;
  if (!node) return all;
  if (const toml::array* const list = node->as_array())
    for (const toml::node& one : *list) all.push_back(one.value_or(std::string()));
  else all.push_back(node->value_or(std::string()));
  return all;
}

OwnBars read_own(const fs::path& path) {
  OwnBars own;
  toml::table table;
  EXPECT_TRUE(parse_toml(text_of(path), path.string(), table).ok());
  for (const auto& [key, node] : table)
    if (key.str() != "bar") own.keys.emplace_back(key.str());
  const Status s = read_bars(text_of(path), path.filename().string(), own.bars, own.keys);
  EXPECT_TRUE(s.ok()) << s.message;
  own.lines = words_of(table.get("problems"));
  for (const std::string& file : words_of(table.get("lines"))) {
    std::istringstream text(text_of(std::string(ATTUNE_SOURCE_DIR "/") + file));
    for (std::string line; std::getline(text, line);)
      if (!line.empty() && line[0] != '#') own.lines.push_back(line);
  }
  own.subjects = words_of(table.get("backend")), own.peers = words_of(table.get("peer"));
  if (own.subjects.empty()) own.subjects = {"ours"};
  own.rested = table.contains("rest"), own.hot = table.contains("hot");
  return own;
}

// Records of these lines in which ours is `factor` times as fast as is surely enough.
std::vector<Record> measured(const OwnBars& own, double factor) {
  std::vector<Record> all;
  const auto add = [&](const std::string& line, const std::string& subject, bool peer, double rest_s, double heat_s) {
    BenchRow row;
    EXPECT_TRUE(parse_bench_row(line, row).ok()) << line;
    const double density = row.pattern.empty() ? 1 : 0.5;
    const double ns = (peer ? 1e4 : 1e3 / factor) * density;
    Record r = attune::record(subject, 64, ns);
    r.problem = name(row.problem), r.pattern = row.pattern, r.peer = peer;
    r.rest_s = rest_s, r.heat_s = heat_s, r.gflops = factor * 100 * (row.problem.mask.blocks.q ? 2 : 1);
    if (!row.pattern.empty()) r.shown_blocks = 100, r.density = density * 1.05;
    r.ceiling_gflops = 1e9, r.copy_gbs = 1e9;
    all.push_back(std::move(r));
  };
  for (const std::string& line : own.lines)
    for (const bool hot : {false, true}) {
      if (hot ? !own.hot : own.hot && !own.rested) continue;
      for (const std::string& s : own.subjects) add(line, s, false, !hot && own.rested ? 0.1 : 0, hot ? 0.1 : 0);
      for (const std::string& p : own.peers) add(line, p, true, !hot && own.rested ? 0.1 : 0, hot ? 0.1 : 0);
    }
  return all;
}

std::vector<fs::path> files() {
  std::vector<fs::path> all;
  for (const fs::directory_entry& e : fs::directory_iterator(ATTUNE_SOURCE_DIR "/bench/bars")) all.push_back(e.path());
  std::sort(all.begin(), all.end());
  return all;
}

TEST(OwnBars, every_requirement_is_about_rows_that_its_file_measures) {
  EXPECT_GE(files().size(), 30u);
  for (const fs::path& path : files()) {
    const OwnBars own = read_own(path);
    ASSERT_FALSE(own.bars.empty()) << path;
    const std::vector<Record> records = measured(own, 1);
    for (const BarResult& r : judge(own.bars, records)) {
      EXPECT_NE(r.status, BarStatus::empty) << path << ": " << r.bar->name << ": " << r.sentence;
      EXPECT_GE(r.rows, r.bar->count) << path << ": " << r.bar->name;
      for (const std::string& e : r.evidence)
        EXPECT_EQ(e.find("nothing to compare"), std::string::npos) << path << ": " << r.bar->name << ": " << e;
    }
    std::vector<Record> fewer = records;  // without the last line, some requirement has no rows or not enough
    std::erase_if(fewer, [&](const Record& r) { return r.problem == records.back().problem; });
    int not_met = 0;
    for (const BarResult& r : judge(own.bars, fewer))
      not_met += r.status == BarStatus::empty || r.status == BarStatus::missed;
    EXPECT_GT(not_met, 0) << path;
  }
}

TEST(OwnBars, bench_takes_every_file) {
  fs::current_path(ATTUNE_SOURCE_DIR);  // files of lines are relative to it
  for (const fs::path& path : files()) {
    const Ran ran = attune_says({"bench", "--config", path.string(), "--device", "cpu", "--backend", "reference",
                                 "--timing", "warm", "--dry-run", "--json"});
    EXPECT_EQ(ran.code, 0) << path << ran.err;
  }
  const std::string wrong = temporary("wrong.toml");
  std::ofstream(wrong) << "bakend = \"all\"\n[[bar]]\nname = \"x\"\nerror = 1\n";
  EXPECT_EQ(attune_says({"bars", wrong, wrong}).err,
            "attune bars: " + wrong + ":1: bakend: is not one of bar; accepted are [[bar]] and the options of attune "
                                      "bench\n");
}

}  // namespace
}  // namespace attune
