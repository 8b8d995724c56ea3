// SPDX-License-Identifier: Apache-2.0
// `attune bench --config`: options from a file, what the command line replaces, and what a file may not hold.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/tool/spawn.h"

namespace attune {
namespace {

using nlohmann::json;

Ran bench(const std::string& toml, std::vector<std::string> more = {"--dry-run"}) {
  std::ofstream(temporary("b.toml")) << toml;
  more.insert(more.begin(), {"bench", "--config", temporary("b.toml")});
  return attune_says(more);
}
// The rows of a dry run, or the error without the name of the program and the folder.
std::string says(const std::string& toml, std::vector<std::string> more = {}) {
  more.push_back("--dry-run");
  const Ran r = bench(toml, more);
  if (r.code == 0) return r.out.substr(0, r.out.rfind('\n', r.out.size() - 2) + 1);
  EXPECT_EQ(r.code, 2) << r.err;
  std::string text = r.err;
  for (const std::string& part : {std::string("attune bench: "), temporary("")})
    if (const size_t at = text.find(part); at != text.npos) text.erase(at, part.size());
  return text;
}

TEST(BenchConfig, the_example_runs_and_the_command_line_wins) {
  const std::string out = temporary("example.jsonl");
  const Ran r = attune_says({"bench", "--config", ATTUNE_SOURCE_DIR "/examples/bench.toml", "--out", out, "--len", "16",
                             "--max-seconds", "0.02", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  std::set<std::string> problems, subjects;
  std::istringstream lines(r.out);
  for (std::string line; std::getline(lines, line);) {
    const json record = json::parse(line);
    problems.insert(record["problem"]), subjects.insert(record["subject"]);
    EXPECT_EQ(record["seed"], 7);
    EXPECT_EQ(record["mode"], "warm");
  }
  EXPECT_EQ(problems.size(), 6u) << "two passes, three masks, one length";
  EXPECT_TRUE(problems.count("backward f32 b1 h4 q16 k16 d64 window31,0")) << r.out;
  EXPECT_TRUE(subjects.count("cpu_standard"));
  EXPECT_EQ(text_of(out), r.out) << "--out replaces the file's";
}

TEST(BenchConfig, rows_come_from_axes_problems_or_a_suite) {
  EXPECT_EQ(says("[axes]\nlen = \"8-16*2\"\ndim = 16\nheads = \"4/2\"\n"),
            "forward f32 b1 h4/2 q8 k8 d16 full\nforward f32 b1 h4/2 q16 k16 d16 full\n");
  const std::string lines = "problems = [\n  \"forward f32 b1 h1 q8 k8 d16 full\",\n"
                            "  \"forward f32 b1 h1 q9 k9 d16 full blocks3x3x1 | random density=0.5\",\n]\n";
  EXPECT_TRUE(says(lines).starts_with("forward f32 b1 h1 q8 k8 d16 full\nforward f32 b1 h1 q9 k9 d16 full blocks"));
  EXPECT_EQ(says(lines, {"--len", "8"}), "forward f32 b1 h1 q8 k8 d16 full\n") << "selects among them";
  EXPECT_TRUE(has(says("suite = \"regress\"\n"), "backward f32"));
}

TEST(BenchConfig, what_the_command_line_says_of_one_choice_replaces_all_of_it) {
  const std::string line = "forward f32 b1 h1 q8 k8 d16 full";
  for (const char* rows : {"[axes]\nlen = 99\n", "suite = \"regress\"\n",
                           "problems = \"forward f32 b1 h1 q3 k3 d3 full\"\n"})
    EXPECT_EQ(says(rows, {line}), line + "\n") << rows;
  const auto modes = [&](const std::string& toml, std::vector<std::string> more) {
    more.insert(more.end(), {line, "--json", "--max-seconds", "0.02"});
    const Ran r = bench(toml, more);
    std::string all;
    std::istringstream lines(r.out);
    for (std::string text; std::getline(lines, text);)
      all += json::parse(text)["mode"].get<std::string>() + (json::parse(text)["rest_s"] > 0 ? " rested " : " ");
    return all + r.err.substr(0, r.code ? r.err.npos : 0);
  };
  EXPECT_EQ(modes("timing = [\"cold\", \"warm\"]\n", {}), "warm cold ");
  EXPECT_EQ(modes("timing = [\"cold\", \"warm\"]\n", {"--warm"}), "warm ");
  EXPECT_EQ(modes("cold = true\nburst = true\n", {"--rest", "0"}), "cold ");
  EXPECT_EQ(modes("cold = true\nrest = 1\n", {"--cold=false"}), "warm rested ") << "a flag that is off";
}

TEST(BenchConfig, mistakes_are_named_with_file_and_line) {
  const struct { const char *toml, *words; } all[] = {
      {"# a\nmax-second = 1\n", "b.toml:2: max-second: is not a setting; did you mean max-seconds?\n"},
      {"[axes]\nlenn = 1\n", "b.toml:2: lenn: is not a setting; did you mean len?\n"},
      {"[axes]\nquark = 1\n", "b.toml:2: quark: is not one of pass, dtype, batch, heads, len, len-q, dim, mask"},
      {"quark = 1\n", "b.toml:1: quark: is not one of [axes], problems, suite, lines, backend, peer"},
      {"len = 64\n", "b.toml:1: len: belongs into [axes]\n"},
      {"[axes]\nseed = 1\n", "b.toml:2: seed: does not belong into [axes]\n"},
      {"axes = 1\n", "b.toml:1: axes: accepted is a table, [axes]\n"},
      {"config = \"b.toml\"\n", "b.toml:1: config: is not "},
      {"warm = 1\n", "b.toml:1: warm: accepted is true or false\n"},
      {"seed = true\n", "b.toml:1: seed: accepted is a text in quotes or a number\n"},
      {"seed = [1]\n", "b.toml:1: seed: accepted is one value, not a list\n"},
      {"seed = \"many\"\n", "b.toml:1: seed: 'many' is not a whole number from 0 to 4294967295\n"},
      {"peer = []\n", "b.toml:1: peer: the list is empty\n"},
      {"out = \"\"\n", "b.toml:1: out: the text is empty\n"},
      {"\nlayout = \"bhxd\"\n", "b.toml:2: --layout: 'bhxd' is not one of bhsd, bshd\n"},
      {"backend = [\n  \"all\",\n  \"cpu_fast\",\n]\n", "b.toml:1: --backend: 'cpu_fast' is not one of all, "},
      {"problems = [\n \"forward f32 b1 h1 q8 k8 d16 full\",\n \"forward f31 b1 h1 q8 k8 d16 full\",\n]\n",
       "b.toml:3: problems: problem line: 'f31' is not a dtype; accepted are "},
      {"seed = 1\nseed = 2\n", "b.toml:2: "},
      {"seed = \n", "b.toml:1: "},
  };
  for (const auto& [toml, words] : all) EXPECT_TRUE(says(toml).starts_with(words)) << toml << " -> " << says(toml);
  EXPECT_EQ(attune_says({"bench", "--config", temporary("none.toml")}).code, 3);
}

// Every option of the command is a key, so a new option needs nothing here.
TEST(BenchConfig, every_option_is_a_key) {
  std::istringstream help(attune_says({"bench", "--help"}).out);
  int options = 0;
  for (std::string line; std::getline(help, line);) {
    const size_t at = line.find("--");
    if (at > 6 || line.find_first_not_of(" -h,") < at) continue;
    const std::string name = line.substr(at + 2, line.find_first_of(" ,", at) - at - 2);
    if (name == "help" || name == "config") continue;
    ++options;
    const std::string wrong = says("[axes]\n" + name + " = {}\n"), right = says(name + " = {}\n");
    EXPECT_TRUE(has(wrong, ": accepted is ") || has(right, ": accepted is ")) << name << ": " << right;
  }
  EXPECT_GT(options, 35);
}

}  // namespace
}  // namespace attune
