// SPDX-License-Identifier: Apache-2.0
#include "tool/record/seal.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/tool/check/honest.h"
#include "tests/tool/spawn.h"
#include "tool/record/sha256.h"
#include "tool/record/store.h"

namespace attune {
namespace {

using Records = std::vector<Record>;

TEST(Seal, is_the_digest_of_the_line_before_it) {
  Records r = honest();
  seal(r);
  for (const Record& x : r) {
    const std::string line = to_json(x), end = ",\"seal\":\"" + x.seal + "\"}";
    ASSERT_TRUE(line.ends_with(end));
    EXPECT_EQ(sha256_hex(line.substr(0, line.size() - end.size())), x.seal);
    EXPECT_EQ(seal_of(line), x.seal);
    EXPECT_EQ(seal_of(line + " \r"), x.seal);
    EXPECT_NE(seal_of(" " + line), x.seal);
    EXPECT_EQ(seal_of(line + "}"), "");
  }
  for (const char* const line : {"", "}", "{}", ",\"seal\":\"\"}", "{\"attune_record\":4}"})
    EXPECT_EQ(seal_of(line), "");
}

TEST(Seal, survives_reading_and_writing) {
  Records r = honest_run();
  r[1].message = "bad \xff byte", r[2].parity.error = INFINITY, r[3].samples_ns[0] = 1.0 / 3;
  seal(r);
  for (const Record& x : r) {
    Record again;
    const std::string line = to_json(x);
    ASSERT_EQ(from_json(line, again).message, "");
    EXPECT_EQ(to_json(again), line);
  }
}

TEST(Seal, chains_the_records_of_a_run_from_its_plan_to_its_end) {
  Records r = honest_run();
  seal(r, "before");
  EXPECT_EQ(r[0].previous, "before");
  for (size_t n = 0; n < r.size(); ++n) {
    EXPECT_EQ(r[n].planned_rows, n == 0 ? 4 : 0);
    EXPECT_EQ(r[n].closes, n + 1 == r.size());
    if (n) {
      EXPECT_EQ(r[n].previous, r[n - 1].seal);
    }
  }
}

TEST(Seal, does_not_close_a_run_that_was_interrupted_or_is_unfinished) {
  Records r = honest();
  Chain two(2, "");
  two.add(r);
  EXPECT_FALSE(r[2].closes);
  r[1].status = RecordStatus::interrupted;
  Chain one(1, "");
  one.add(r);
  EXPECT_FALSE(r[2].closes);
}

TEST(Seal, outlives_a_store) {
  const std::string db = temporary("records.db");
  Records r = honest_run(), out;
  seal(r);
  std::ofstream(temporary("run.jsonl")) << text_of(r);
  const Ran made = attune_says({"store", temporary("run.jsonl"), "--db", db});
  if (has(made.err, "SQLite is not installed")) GTEST_SKIP() << "requires SQLite; it is not installed";
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(attune_says({"history", "--records", "--db", db}).out, text_of(r));
}

// What bench writes: killed in the middle, resumed, and appended to.
TEST(Seal, of_a_run_that_was_killed_and_resumed_holds) {
  const std::string path = temporary("killed.jsonl"), other = temporary("other.jsonl"), both = temporary("both.jsonl");
  const auto bench = [](const std::string& out, std::vector<std::string> more) {
    std::vector<std::string> words = {"bench", "--len", "16,24,32", "--dim", "8", "--heads", "1", "--mask", "full",
                                      "--dtype", "f32", "--backend", "cpu_forward,cpu_standard", "--max-seconds",
                                      "0.05", "--out", out};
    words.insert(words.end(), more.begin(), more.end());
    return attune_says(words);
  };
  const auto verified = [](const std::string& file) { return attune_says({"verify", file}); };
  const auto records = [](const std::string& file) {
    Records all;
    EXPECT_EQ(read_records(file, all).message, "");
    return all;
  };
  ASSERT_EQ(bench(path, {}).code, 0);
  const Records whole = records(path);
  ASSERT_EQ(whole.size(), 6u);
  EXPECT_EQ(verified(path).code, 0) << verified(path).out;
  EXPECT_FALSE(has(verified(path).out, "unfinished"));
  const std::string text = text_of(path);
  std::ofstream(path) << text.substr(0, text.rfind("\"seal\""));  // torn in its last line
  EXPECT_EQ(verified(path).code, 0) << verified(path).out;
  EXPECT_TRUE(has(verified(path).out, "unfinished-run: ")) << verified(path).out;
  ASSERT_EQ(bench(path, {"--resume"}).code, 0);
  const Records resumed = records(path);
  ASSERT_EQ(resumed.size(), 6u);
  EXPECT_EQ(resumed[4].previous, whole[3].seal);
  EXPECT_EQ(resumed[4].planned_rows, 1);
  EXPECT_TRUE(resumed[5].closes);
  EXPECT_EQ(verified(path).code, 0) << verified(path).out;
  EXPECT_FALSE(has(verified(path).out, "unfinished")) << verified(path).out;
  // The end of the first run is now fixed by the second one.
  Records cut = resumed;
  cut.erase(cut.begin() + 3);
  EXPECT_TRUE(names(audited(text_of(cut)), "dropped-record"));
  ASSERT_EQ(bench(path, {"--resume"}).code, 0);  // nothing is left to do
  EXPECT_EQ(records(path).size(), 6u);
  ASSERT_EQ(bench(path, {}).code, 0);  // another run, which continues nothing
  EXPECT_EQ(records(path)[6].previous, "");
  EXPECT_EQ(verified(path).code, 0) << verified(path).out;
  ASSERT_EQ(bench(other, {"--cold", "--warm", "--threads", "1"}).code, 0);
  EXPECT_EQ(verified(other).code, 0) << verified(other).out;
  std::ofstream(both) << text_of(other) << text_of(path);
  EXPECT_EQ(verified(both).code, 0) << verified(both).out;
}

// The JSON of stdout is sealed as the file is.
TEST(Seal, is_in_what_is_printed_as_json) {
  const std::string path = temporary("printed.jsonl");
  const Ran r = attune_says({"bench", "forward f32 b1 h1 q16 k16 d8 full", "--max-seconds", "0.05", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  std::ofstream(path) << r.out;
  EXPECT_EQ(attune_says({"verify", path}).code, 0) << attune_says({"verify", path}).out;
}

TEST(Seal, of_published_results_is_not_asked_for) {
  for (const char* const suite : {"forward", "backward", "decode"}) {
    const std::string path = join(ATTUNE_SOURCE_DIR "/docs/results/records/h200_", suite, ".jsonl");
    const Ran r = attune_says({"verify", path});
    EXPECT_EQ(r.code, 0) << r.out;
    EXPECT_TRUE(has(r.out, "warning: extract: ")) << r.out;
    EXPECT_TRUE(has(r.out, "0 wrong, 1 warning")) << r.out;
  }
}

}  // namespace
}  // namespace attune
