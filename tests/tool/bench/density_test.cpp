// SPDX-License-Identifier: Apache-2.0
// Records of sparse problems contain the actual density, and the requested density changes it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/status.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

using nlohmann::json;

json record(const std::string& line, std::vector<std::string> more = {}) {
  std::vector<std::string> words = {"bench", line, "--json", "--max-seconds", "0.01"};
  words.insert(words.end(), more.begin(), more.end());
  const Ran r = attune_says(words);
  EXPECT_EQ(r.code, 0) << r.err;
  return json::parse(r.out.substr(0, r.out.find('\n')));
}

TEST(Density, of_a_pattern_is_in_the_record_and_follows_what_is_asked_for) {
  const std::string line = "forward f32 b1 h2 q640 k640 d16 causal blocks64x64x1 | random density=";
  const json tenth = record(line + "0.1 seed=2"), half = record(line + "0.5 seed=2");
  EXPECT_EQ(tenth["pattern"], "random density=0.1 seed=2");
  EXPECT_EQ(tenth["shown_blocks"], 110);
  EXPECT_EQ(tenth["active_blocks"], 12);  // round(5.5) per list
  EXPECT_EQ(half["active_blocks"], 56);
  EXPECT_NEAR(half["density"].get<double>(), 56. / 110, 1e-12);
  EXPECT_GT(half["flops"].get<double>(), 3 * tenth["flops"].get<double>());
  EXPECT_EQ(half["parity"]["verdict"], "PASS");
}

TEST(Density, of_nothing_is_empty_and_not_a_pass) {
  for (const char* const pass : {"forward", "backward"}) {
    const json r = record(join(pass, " f32 b1 h2 q640 k640 d16 causal blocks64x64x1 | random density=0"));
    EXPECT_EQ(r["active_blocks"], 0);
    EXPECT_EQ(r["parity"]["verdict"], "EMPTY") << pass;
    EXPECT_EQ(r["parity"]["message"], "no query that was looked at sees a key");
  }
  const std::string file = temporary("empty.jsonl");
  const Ran r = attune_says({"bench", "forward f32 b1 h2 q64 k64 d16 full blocks64x64x1 | random density=0",
                             "--max-seconds", "0.01", "--out", file});
  EXPECT_TRUE(has(r.out, "1 EMPTY: nothing to compare")) << r.out;
  const Ran verified = attune_says({"verify", file});
  EXPECT_TRUE(has(verified.out, "skipped-parity")) << verified.out;
}

// The lists that ranks share are those of all tokens.
TEST(Density, over_ranks_is_that_of_the_whole) {
  const json r = record("forward f32 b1 h2 q128 k128 d16 causal blocks32x32x1 : ring layout=zigzag ranks=2 tokens=256 "
                        "| random density=0.5 seed=3");
  EXPECT_EQ(r["shown_blocks"], 2 * 36);
  EXPECT_EQ(r["active_blocks"], 2 * 18);
  EXPECT_EQ(r["density"], 0.5);
  EXPECT_EQ(r["parity"]["verdict"], "PASS");
}

TEST(Density, of_adaptive_blocks_is_what_was_kept) {
  const json r = record("forward f32 b1 h2 q256 k256 d16 full : adaptive block=32 density=0.5 hidden=8");
  EXPECT_EQ(r["active_blocks"], 2 * 8 * 4);
  EXPECT_EQ(r["shown_blocks"], 2 * 8 * 8);
  EXPECT_EQ(r["density"], 0.5);
}

TEST(Density, the_masked_dense_counterpart_is_checked_and_timed_beside) {
  for (const auto& [line, fast] :
       {std::pair{"forward f32 b1 h2 q128 k128 d16 causal blocks32x32x1 | strided stride=2", "cpu_forward"},
        {"forward f32 b1 h2 q128 k128 d16 causal : adaptive block=32 density=0.5 hidden=8", "adaptive"},
        {"forward f32 b1 h4/2 q128 k128 d16 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=8 w=20", "nsa"}}) {
    const Ran r = attune_says({"bench", line, "--json", "--backend", std::string(fast) + ",masked_dense",
                               "--max-seconds", "0.01"});
    EXPECT_EQ(r.code, 0) << r.err;
    const json second = json::parse(r.out.substr(r.out.find('\n') + 1));
    EXPECT_EQ(second["subject"], "masked_dense");
    EXPECT_EQ(second["parity"]["verdict"], "PASS");
    EXPECT_EQ(second["baseline"], fast);
  }
}

}  // namespace
}  // namespace attune
