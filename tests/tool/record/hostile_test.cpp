// SPDX-License-Identifier: Apache-2.0
// Lines crafted to attack the reader: each gives a message with file and line in every command that reads records,
// without excessive run time.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "tests/tool/records.h"
#include "tests/tool/spawn.h"
#include "tool/record/store.h"

namespace attune {
namespace {

std::string times(const std::string& text, int count) {
  std::string all;
  for (int n = 0; n < count; ++n) all += text;
  return all;
}
std::string nested(int depth) { return times("[", depth) + times("]", depth); }
std::string line_with(const std::string& member) { return "{\"attune_record\":2," + member + "}"; }
std::string many_names(int count) {
  std::string all = "\"x\":0";
  for (int n = 0; n < count; ++n) all += join(",\"n", n, "\":0");
  return line_with(all);
}

// A line, and the message it causes.
const std::vector<std::pair<std::string, std::string>>& hostile() {
  const std::string deep = "record: lists and objects are nested more than 16 deep";
  static const std::vector<std::pair<std::string, std::string>> all = {
      {"{\"attune_record\":" + nested(100000) + "}", deep},
      {line_with("\"threads\":" + nested(100000)), deep},
      {line_with("\"provenance\":{\"cores\":" + nested(100000) + "}"), deep},
      {line_with("\"unknown\":" + times("{\"a\":", 17) + "0" + times("}", 17)), deep},
      {line_with("\"rest_s\":1e999"), "record: 1e999 is beyond the range of a double"},
      {line_with("\"unknown\":-1e999"), "record: -1e999 is beyond the range of a double"},
      {line_with("\"unknown\":[{\"a\":1" + times("0", 400) + "}]"),
       "record: 1" + times("0", 39) + "... is beyond the range of a double"},
      {line_with("\"rest_s\":1e61"), "record: rest_s: 1e+61 is not a number from -1e+60 to 1e+60"},
      {line_with("\"samples_ns\":[1,1e308]"), "record: samples_ns: 1e+308 is not a number from -1e+60 to 1e+60"},
      {line_with("\"samples_ns\":[1,null]"), "record: samples_ns: null is not a number"},
      {line_with("\"samples_ns\":{}"), "record: samples_ns: an object is not a list"},
      {line_with("\"kernels\":[\"a\",[]]"), "record: kernels: a list is not a text"},
      {line_with("\"near_floor\":1"), "record: near_floor: 1 is not true or false"},
      {line_with("\"problem\":true"), "record: problem: true is not a text"},
      {line_with("\"threads\":1,\"threads\":2"), "record: the name threads is there twice"},
      {line_with("\"provenance\":{\"cpu\":\"a\",\"cores\":1,\"\\u0063pu\":\"b\"}"),
       "record: the name cpu is there twice"},
      {line_with("\"unknown\":[{\"x\":[]},{\"x\":{\"x\":0},\"y\":1,\"x\":0}]"), "record: the name x is there twice"},
      {line_with("\"" + times("long", 100) + "\":0,\"" + times("long", 100) + "\":0"),
       "record: the name " + times("long", 10) + "... is there twice"},
      {many_names(500), "record: more than 500 names"}};
  return all;
}

TEST(HostileRecord, is_a_sentence) {
  for (const auto& [line, said] : hostile()) {
    Record r;
    EXPECT_EQ(from_json(line, r).message, said) << line.substr(0, 100);
  }
  Record r;
  EXPECT_EQ(from_json(line_with("\"unknown\":" + nested(15)), r).message, "");
  EXPECT_EQ(from_json(many_names(498), r).message, "");
  // Inside a string.
  EXPECT_EQ(from_json(line_with("\"message\":\"" + times(":[{\\\\\\\"", 1000) + "\""), r).message, "");
}

TEST(HostileRecord, costs_no_more_than_its_length) {
  const std::string line = many_names(100000);
  const auto before = std::chrono::steady_clock::now();
  Record r;
  EXPECT_FALSE(from_json(line, r).ok());
  // Quadratic in the number of names, this took more than half a minute.
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
}

TEST(HostileRecord, with_numbers_at_the_limit_reads_back) {
  Record r = record("cpu_forward", 512, 1000), again;
  r.samples_ns = {1e60, -1e60, 1}, r.median_ns = r.rest_s = r.flops = 1e60, r.taken_bytes = -1e60;
  ASSERT_EQ(from_json(to_json(r), again).message, "");
  EXPECT_EQ(to_json(again), to_json(r));
}

// A file whose second line is `line`; the others are valid.
std::string file_with(const std::string& line) {
  const std::string path = temporary("records.jsonl");
  std::ofstream file(path);
  for (const std::string& each : {to_json(record("cpu_forward", 512, 1000)), line,
                                  to_json(record("cpu_standard", 512, 2000))})
    file << each << "\n";
  return path;
}

TEST(HostileRecord, has_no_line_of_its_own_in_the_output_of_any_command) {
  const std::string path = temporary("lines.jsonl"), good = temporary("good.jsonl"), prices = temporary("prices.tsv");
  const std::string bars = temporary("bars.toml"), forged = "a\n::error::forged\r\nall 1 met";
  Record r = record(forged, 512, 1000);
  r.provenance.cpu = r.provenance.commit = r.message = r.note = r.why = r.parity.message = r.mode = forged;
  r.kernels = {forged};
  Record wrong = r;
  wrong.status = RecordStatus::failed;
  std::ofstream(path) << to_json(r) << "\n" << to_json(wrong) << "\n";
  std::ofstream(good) << to_json(record("cpu_forward", 512, 1000)) << "\n";
  std::ofstream(prices) << "attune-prices 1\noffer\ta cloud\t*\t1 an hour\tby the second\tminimum 0\n";
  std::ofstream(bars) << "[[bar]]\nname = \"x\"\nmicroseconds = 0.1\n";
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"verify", path}, {"report", path}, {"compare", good, path, "--github"}, {"compare", path, good, "--github"},
           {"bars", bars, path, "--all"}, {"tune", path, "--dry-run"}, {"scaling", path},
           {"cost", path, "--prices", prices}, {"store", path, "--db", temporary("lines.db")},
           {"history", r.problem, "--db", temporary("lines.db")}}) {
    const Ran ran = attune_says(words);
    EXPECT_FALSE(has(ran.out + ran.err, "\n::error::forged") || has(ran.out + ran.err, "\nall 1 met"))
        << words[0] << "\n" << ran.out << ran.err;
  }
  EXPECT_TRUE(has(attune_says({"verify", path}).out, "a\\u000a::error::forged\\u000d\\u000aall 1 met"));
  const Ran twice = attune_says({"verify", file_with("{\"a\\nb\":1,\"a\\nb\":2}")});
  EXPECT_TRUE(has(twice.out, "the name a\\u000ab is there twice")) << twice.out;
}

TEST(HostileRecord, is_file_and_line_and_exit_code_1_in_every_command) {
  const std::string good = temporary("good.jsonl"), prices = temporary("prices.tsv");
  std::ofstream(good) << to_json(record("cpu_forward", 512, 1000)) << "\n";
  std::ofstream(prices) << "attune-prices 1\noffer\ta cloud\tTest CPU\t1\t0.5\tUSD\t2026-01-01\n";
  for (const auto& [line, said] : hostile()) {
    const std::string path = file_with(line);
    for (const std::vector<std::string>& words :
         std::vector<std::vector<std::string>>{{"report", path, "--out", temporary("page.html")},
                                               {"report", good, "--baseline", path, "--out", temporary("page.html")},
                                               {"verify", path},
                                               {"compare", path, good},
                                               {"compare", good, path},
                                               {"tune", path, "--out", temporary("tuned.tsv")},
                                               {"tune", good, "--check", path, "--out", temporary("tuned.tsv")},
                                               {"scaling", path},
                                               {"cost", path, "--prices", prices},
                                               {"store", path, "--db", temporary("records.db")},
                                               {"serve", path, "--port", "0"},
                                               {"bench", "forward f32 b1 h1 q16 k16 d8 full", "--out", path,
                                                "--resume"}}) {
      std::vector<std::string> all = {"timeout", "60", ATTUNE_BUILD_DIR "/attune"};  // `serve` would not end
      all.insert(all.end(), words.begin(), words.end());
      const Ran ran = spawn(all, {"XDG_CONFIG_HOME=" + temporary("")});
      const std::string about = words[0] + ": " + line.substr(0, 60) + "\n" + ran.out + ran.err;
      EXPECT_EQ(ran.code, 1) << about;
      EXPECT_TRUE(has(ran.out + ran.err, said)) << about;
      // `verify` prints a table: the file is the one given.
      EXPECT_TRUE(has(ran.err, path + ":2: ") || words[0] == "verify") << about;
      EXPECT_FALSE(has(ran.out + ran.err, "exception")) << about;
    }
    // As the last line, terminated or not, it must not be treated as a torn line that may be cut off.
    for (const char* const end : {"", "\n"}) {
      std::ofstream(path) << to_json(record("cpu_forward", 512, 1000)) << "\n" << line << end;
      const std::string before = text_of(path);
      const Ran ran = attune_says({"bench", "forward f32 b1 h1 q16 k16 d8 full", "--out", path});
      EXPECT_EQ(ran.code, 1) << ran.err;
      EXPECT_EQ(ran.err, join("attune bench: ", path, ":2: ", said, "; the file is left unchanged\n"));
      EXPECT_EQ(text_of(path), before);
      const Ran report = attune_says({"report", path, "--out", temporary("page.html")});
      EXPECT_EQ(report.code, 1) << report.err;
    }
  }
}

TEST(HostileRecord, lines_that_are_no_records_are_named_a_hundred_times) {
  const std::string path = temporary("lines.txt");
  std::string text, versions;
  for (int n = 0; n < 1250; ++n) text += "x\n", versions += join("{\"attune_record\":", 1000 + n, "}\n");
  for (const std::string& all : {text, versions + text}) {
    std::ofstream(path) << all;
    const Ran r = attune_says({"verify", path});
    EXPECT_EQ(r.code, 1);
    EXPECT_TRUE(has(r.out, "more lines cannot be read as records\n")) << r.out.substr(0, 300);
    EXPECT_LT(std::count(r.out.begin(), r.out.end(), '\n'), 250);
  }
}

// A record whose texts all go on in a line of their own.
std::string forging() {
  nlohmann::json j = nlohmann::json::parse(to_json(record("cpu_forward", 64, 1e6)));
  const auto forge = [](auto& self, nlohmann::json& at) -> void {
    if (at.is_string()) at = at.get<std::string>() + "\nFORGED: 1 record, 0 wrong\n\u001b[2K\tFORGED";
    else if (at.is_structured())
      for (nlohmann::json& one : at) self(self, one);
  };
  for (const char* list : {"kernels"}) j[list] = {"avx2"};
  forge(forge, j);
  j["note"] = "a\nFORGED", j["peer"] = true;
  return j.dump();
}

TEST(HostileRecord, a_text_cannot_forge_a_line_of_output) {
  const std::string status = forging();
  nlohmann::json good = nlohmann::json::parse(status);
  good["status"] = "ok", good["parity"]["verdict"] = "PASS", good["problem"] = "forward f32 b1 h8 q64 k64 d64 causal";
  const std::string a = temporary("a.jsonl"), b = temporary("b.jsonl"), db = temporary("forged.db");
  std::ofstream(a) << good.dump() << "\n" << status << "\n{\"a\\nFORGED\":1,\"a\\nFORGED\":1}";
  std::ofstream(b) << good.dump() << "\n" << status << "\n";
  const std::string page = temporary("page.md");
  const std::vector<std::vector<std::string>> all = {
      {"verify", a}, {"verify", b}, {"compare", b, b}, {"compare", b, b, "--github"},
      {"report", b, "--markdown", page}, {"store", b, "--db", db}, {"history", "--db", db},
      {"history", "--db", db, "--records"}, {"scaling", b}, {"tune", b, "--out", temporary("x.tsv")}};
  for (const std::vector<std::string>& words : all) {
    const Ran r = attune_says(words);
    EXPECT_FALSE(has("\n" + r.out, "\nFORGED")) << words[0] << "\n" << r.out;
    EXPECT_FALSE(has("\n" + r.err, "\nFORGED")) << words[0] << "\n" << r.err;
    EXPECT_FALSE(has(r.out + r.err, "\tFORGED") || has(r.out + r.err, "\x1b")) << words[0];
  }
  EXPECT_TRUE(has(attune_says({"verify", b}).out, "\\u000aFORGED")) << "it is shown for what it is";
  EXPECT_FALSE(has(text_of(page), "\nFORGED"));
}

}  // namespace
}  // namespace attune
