// SPDX-License-Identifier: Apache-2.0
// `attune scaling` and `attune cost` from outside.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tool/spawn.h"
#include "tool/record/record.h"

namespace attune {
namespace {

std::string records(const std::vector<int>& lengths) {
  std::ofstream file(temporary("run.jsonl"));
  for (const int n : lengths) {
    Record r;
    r.problem = join("forward f32 b1 h8 q", n, " k", n, " d64 causal");
    r.subject = "cpu_forward", r.threads = 2;
    r.median_ns = double(n) * n, r.samples_ns.assign(10, r.median_ns);
    r.flops = 1e3 * n, r.bytes = 100.0 * n;
    r.provenance.cpu = "Test CPU";
    file << to_json(r) << "\n";
  }
  return temporary("run.jsonl");
}
std::string prices(const std::string& device) {
  std::ofstream(temporary("prices.tsv")) << "attune-prices 1\noffer\ta cloud\t" << device
                                         << "\t3.60 an hour\tby the second\tminimum 0.25\n"
                                            "offer\tanother\tAnother CPU\t1 an hour\tby the hour\tminimum 0\n";
  return temporary("prices.tsv");
}

TEST(Scaling, exponents_are_told_with_their_intervals) {
  const std::string file = records({512, 1024, 2048, 4096});
  const Ran text = attune_says({"scaling", file});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(has(text.out, "2.00 [2.00, 2.00]")) << text.out;
  const auto j = nlohmann::json::parse(attune_says({"scaling", file, "--json"}).out);
  ASSERT_EQ(j.size(), 1u);
  EXPECT_EQ(j[0]["problems"], "forward f32 b1 h8 d64 causal");
  EXPECT_NEAR(j[0]["time"]["exponent"], 2, 1e-9);
  EXPECT_NEAR(j[0]["time_a_token"]["exponent"], 1, 1e-9);
  EXPECT_NEAR(j[0]["memory"]["exponent"], 1, 1e-9);
  EXPECT_EQ(j[0]["time"]["points"], 4);
}

TEST(Scaling, machines_and_layouts_are_curves_of_their_own) {
  std::ofstream file(temporary("both.jsonl"));
  for (const int n : {512, 1024, 2048})
    for (const bool other : {false, true}) {
      Record r;
      r.problem = join("forward f32 b1 h8 q", n, " k", n, " d64 causal");
      r.subject = "cpu_forward", r.threads = 2, r.provenance.cpu = other ? "B" : "A";
      r.median_ns = other ? n : double(n) * n, r.samples_ns.assign(10, r.median_ns);
      file << to_json(r) << "\n";
      if (r.layout = "bshd"; !other) r.median_ns = 1, r.samples_ns.assign(10, 1), file << to_json(r) << "\n";
    }
  file.close();
  const auto j = nlohmann::json::parse(attune_says({"scaling", temporary("both.jsonl"), "--json"}).out);
  ASSERT_EQ(j.size(), 3u) << j;
  const std::pair<const char*, double> curves[] = {
      {"cpu_forward, A, bhsd", 2}, {"cpu_forward, A, bshd", 0}, {"cpu_forward, B, bhsd", 1}};
  for (size_t n = 0; n < 3; ++n) {
    EXPECT_EQ(j[n]["subject"], curves[n].first);
    EXPECT_NEAR(j[n]["time"]["exponent"], curves[n].second, 1e-9);
  }
}

TEST(Cost, tokens_of_a_ring_are_those_of_all_ranks) {
  std::ofstream file(temporary("ring.jsonl"));
  for (const int n : {512, 1024, 2048}) {
    Record r;
    r.problem = join("forward f32 b1 h8 q", n / 4, " k", n / 4, " d64 causal : ring layout=zigzag ranks=4 tokens=", n);
    r.subject = "ring_rotate", r.threads = 4, r.provenance.cpu = "Test CPU";
    r.median_ns = double(n) * n, r.samples_ns.assign(10, r.median_ns), r.bytes = 100.0 * n;
    file << to_json(r) << "\n";
  }
  file.close();
  const auto j = nlohmann::json::parse(
      attune_says({"cost", temporary("ring.jsonl"), "--prices", prices("Test CPU"), "--json"}).out);
  EXPECT_NEAR(j["calls"][0]["tokens_a_usd"], 512 / (512 * 512e-9 * 0.001), 1);
  const auto grown = nlohmann::json::parse(attune_says({"scaling", temporary("ring.jsonl"), "--json"}).out);
  ASSERT_EQ(grown.size(), 1u);
  EXPECT_EQ(grown[0]["problems"], "forward f32 b1 h8 d64 causal : ring layout=zigzag ranks=4");
  EXPECT_NEAR(grown[0]["time_a_token"]["exponent"], 1, 1e-9);
}

TEST(Cost, no_seconds_are_refused) {
  const Ran r = attune_says({"cost", records({1000}), "--prices", prices("Test CPU"), "--seconds", "0"});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "--seconds: '0' is not")) << r.err;
}

TEST(Scaling, too_few_lengths_are_a_failure_that_says_so) {
  const Ran r = attune_says({"scaling", records({512, 1024})});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.err, "attune scaling: no subject was measured at three or more lengths of one problem\n");
}

TEST(Cost, run_and_calls_are_priced_by_the_offers_that_fit) {
  const std::string file = records({1000});
  const Ran text = attune_says({"cost", file, "--prices", prices("Test CPU")});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(has(text.out, "by its samples and warm-up, a lower bound")) << text.out;
  EXPECT_FALSE(has(text.out, "another")) << text.out;
  const auto j = nlohmann::json::parse(
      attune_says({"cost", file, "--prices", prices("Test CPU"), "--seconds", "1000", "--json"}).out);
  ASSERT_EQ(j["runs"].size(), 1u);
  EXPECT_NEAR(j["runs"][0]["usd"], 1.0, 1e-9);
  ASSERT_EQ(j["calls"].size(), 1u);
  EXPECT_NEAR(j["calls"][0]["usd_a_million_calls"], 1.0, 1e-9);  // 1 ms per call, $0.001 per second
  EXPECT_NEAR(j["calls"][0]["tokens_a_usd"], 1e9, 1);
}

TEST(Cost, an_offer_is_billed_for_the_rows_of_its_device) {
  const std::string path = temporary("two.jsonl"), offers = temporary("two.tsv");
  std::ofstream file(path);
  for (const int threads : {2, 0}) {
    Record r;
    r.problem = "forward f32 b1 h8 q64 k64 d64 causal", r.subject = "x", r.threads = threads;
    r.median_ns = threads ? 1e9 : 1e6, r.samples_ns.assign(10, r.median_ns), r.calls = 1;
    r.provenance.cpu = "Test CPU", r.provenance.gpu = threads ? "" : "Test GPU";
    file << to_json(r) << "\n";
  }
  file.close();
  std::ofstream(offers) << "attune-prices 1\noffer\tc\tTest CPU\t1 an hour\tby the second\tminimum 0\n"
                           "offer\tg\tTest GPU\t9 an hour\tby the second\tminimum 0\n"
                           "offer\tany\t*\t1 an hour\tby the second\tminimum 0\n";
  const auto j = nlohmann::json::parse(attune_says({"cost", path, "--prices", offers, "--json"}).out);
  ASSERT_EQ(j["runs"].size(), 3u);
  EXPECT_NEAR(j["runs"][0]["seconds"], 10, 1e-9);
  EXPECT_NEAR(j["runs"][1]["seconds"], 0.01, 1e-9);
  EXPECT_NEAR(j["runs"][2]["seconds"], 10.01, 1e-9);
  const Ran text = attune_says({"cost", path, "--prices", offers});
  EXPECT_TRUE(has(text.out, "Test GPU  10.0 ms")) << text.out;
}

TEST(Cost, no_offer_for_what_was_measured_is_a_failure_that_names_it) {
  const Ran r = attune_says({"cost", records({1000}), "--prices", prices("NVIDIA H200")});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.err, "matches a measured device: Test CPU")) << r.err;
  const Ran missing = attune_says({"cost", records({1000}), "--prices", temporary("none.tsv")});
  EXPECT_EQ(missing.code, 3);
  EXPECT_TRUE(has(missing.err, "none.tsv' cannot be read")) << missing.err;
}

}  // namespace
}  // namespace attune
