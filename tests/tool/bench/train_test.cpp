// SPDX-License-Identifier: Apache-2.0
// A forward and its backward as one row: how it is written, what it counts, and that both are run and checked.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/forward_of.h"
#include "core/work.h"
#include "machine/host.h"
#include "tests/asked.h"
#include "tests/tool/spawn.h"
#include "tool/bench/row.h"
#include "tool/check/audit.h"

namespace attune {
namespace {

using nlohmann::json;
constexpr const char* kTrainLine = "train f32 b1 h4/2 q24 k24 d16 causal";

std::string train_asked;  // of the peer below, which refuses everything
int64_t refuse_train(const char* problem) { return train_asked = problem, 0; }
void say_no(char* text, int64_t room) { std::strncpy(text, "no", size_t(room)); }
const attune_peer& refusing() {
  static const attune_peer peer{"torch:sdpa", "torch 9", refuse_train, [](int64_t) { return 0; },
                                [](int64_t) { return 0; }, [](int64_t) {}, say_no};
  return peer;
}

Bench train_bench() {
  Bench b{.device = this_cpu()};
  b.device.units = 1;
  b.timing.max_seconds = 0.05, b.timing.warm_up_seconds = 0.001;
  b.ceilings = Ceilings{}, b.floor_ns = b.peer_floor_ns = 1, b.aa_spread = 0.02;
  return b;
}
BenchRow train_row(const std::string& line) {
  BenchRow row;
  EXPECT_EQ(parse_bench_row(line, row).message, "");
  return row;
}

TEST(Train, is_a_line_of_its_own) {
  const BenchRow row = train_row("train f32 b1 d16 h4/2 q24 k24 causal");
  EXPECT_TRUE(row.train);
  EXPECT_EQ(name(row), kTrainLine) << "in the order of every line";
  EXPECT_EQ(row.problem.pass, Pass::backward);
  BenchRow wrong;
  EXPECT_NE(parse_bench_row("train f32 b1 h4/3 q24 k24 d16 causal", wrong).message, "");
  EXPECT_EQ(parse_bench_row("train multihead f16 b1 s2048 e512 h8 | causal", wrong).message,
            "'train multihead f16 b1 s2048 e512 h8 | causal': a module's backward contains its forward");
  EXPECT_NE(parse_row(kTrainLine, wrong).message, "") << "other commands have no such row";
  const Ran axes = attune_says({"bench", "--dry-run", "--pass", "forward,train", "--len", "8", "--dim", "16"});
  EXPECT_EQ(axes.out.substr(0, 66),
            "forward f32 b1 h8 q8 k8 d16 full\ntrain f32 b1 h8 q8 k8 d16 full\n2 ");
}

TEST(Train, counts_the_work_of_both_and_is_checked) {
  Bench b = train_bench();
  b.backends = {"cpu_standard", "cpu_backward"};
  const BenchRow row = train_row(kTrainLine);
  const std::vector<Record> made = measure_train(row, b);
  ASSERT_EQ(made.size(), 2u);
  const double flops = cost(row.problem).flops + cost(forward_of(row.problem)).flops;
  for (const Record& r : made) {
    EXPECT_EQ(r.status, RecordStatus::ok) << r.message;
    EXPECT_EQ(r.problem, kTrainLine);
    EXPECT_EQ(r.parity.verdict, CheckVerdict::pass) << r.parity.message;
    EXPECT_DOUBLE_EQ(r.flops, flops);
    EXPECT_EQ(r.tokens, 24) << "a token is trained once";
  }
  EXPECT_TRUE(made[0].why.starts_with("forward by cpu_standard; ")) << made[0].why;
  EXPECT_TRUE(made[1].why.starts_with("forward by cpu_forward; ")) << made[1].why;
}

// After the timing the queries change, and a result of the old forward would be wrong.
TEST(Train, what_is_timed_verifies_and_resumes) {
  const std::string out = temporary("train.jsonl");
  const std::vector<std::string> words = {"bench", kTrainLine, "backward f32 b1 h4/2 q24 k24 d16 causal", "--out", out,
                                          "--max-seconds", "0.05", "--json"};
  const Ran first = attune_says(words);
  ASSERT_EQ(first.code, 0) << first.err;
  std::istringstream lines(first.out);
  std::vector<json> all;
  for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_GT(all[0]["flops"], all[1]["flops"]);
  const Ran verified = attune_says({"verify", out});
  EXPECT_EQ(verified.code, 0) << verified.out;
  std::vector<std::string> again = words;
  again.push_back("--resume");
  EXPECT_TRUE(has(attune_says(again).err, "2 of 2 rows are already in ")) << "measured twice";
  std::string forged = text_of(out);
  const std::string flops = all[0]["flops"].dump(), half = all[1]["flops"].dump();
  for (size_t at; (at = forged.find("\"flops\":" + flops)) != forged.npos;)
    forged.replace(at, 8 + flops.size(), "\"flops\":" + half);
  std::ofstream(out) << forged;
  EXPECT_TRUE(has(attune_says({"verify", out}).out, "forged-flops")) << "the flops of one pass";
}

TEST(Train, a_peer_is_asked_for_both) {
  Bench b = train_bench();
  b.peers = {&refusing()};
  const std::vector<Record> made = measure_train(train_row(kTrainLine), b);
  ASSERT_EQ(made.size(), 2u);
  const json asked = json::parse(train_asked);
  EXPECT_EQ(asked["pass"], "train");
  EXPECT_TRUE(asked["results"].contains("dq") && asked["tensors"].contains("d_out")) << asked;
}

TEST(Train, what_cannot_be_a_row_says_so) {
  Bench b = train_bench();
  const Record ring =
      measure_train(train_row("train f32 b1 h4 q64 k64 d16 full : ring layout=zigzag ranks=2 tokens=128"), b).at(0);
  EXPECT_EQ(ring.left_out, LeftOut::not_built) << ring.message;
  EXPECT_TRUE(has(ring.message, "train rows have no variant, ranks, append and accumulate")) << ring.message;
}

}  // namespace
}  // namespace attune
