// SPDX-License-Identifier: Apache-2.0
// `attune memory` from outside: the bytes add up, the workspace equals the plan's, and the longest context is maximal.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/plan.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

using nlohmann::json;

json answer(const std::string& line, std::vector<std::string> more = {}, int code = 0) {
  std::vector<std::string> words = {"memory", line, "--json"};
  words.insert(words.end(), more.begin(), more.end());
  const Ran r = attune_says(words);
  EXPECT_EQ(r.code, code) << r.err;
  return json::parse(r.out);
}

uint64_t bytes_of(const json& j, const std::string& role) {
  for (const json& t : j["tensors"])
    if (t["role"] == role) return t["bytes"];
  return 0;
}

TEST(Memory, tensors_and_workspace_add_up) {
  const json j = answer("forward f32 b2 h8/2 q64 k128 d64/32 causal sink");
  EXPECT_EQ(bytes_of(j, "q"), 2u * 64 * 8 * 64 * 4);
  EXPECT_EQ(bytes_of(j, "k"), 2u * 128 * 2 * 64 * 4);
  EXPECT_EQ(bytes_of(j, "v"), 2u * 128 * 2 * 32 * 4);
  EXPECT_EQ(bytes_of(j, "out"), 2u * 64 * 8 * 32 * 4);
  EXPECT_EQ(bytes_of(j, "lse"), 2u * 64 * 8 * 4);
  EXPECT_EQ(bytes_of(j, "sinks"), 8u * 4);
  EXPECT_EQ(bytes_of(j, "dq"), 0u);
  EXPECT_EQ(j["key_value_bytes_a_token"], 2 * 96 * 4);
  EXPECT_EQ(j["score_matrix_bytes"], 2 * 8 * 64 * 128 * 4);
  uint64_t all = 0;
  for (const json& t : j["tensors"]) all += t["bytes"].get<uint64_t>();
  EXPECT_EQ(j["tensor_bytes"], all);
  // Everything that the C interface counts.
  for (const char* word : {"live_buffers", "live_bytes", "block_bytes", "free_blocks", "free_bytes", "held_bytes",
                           "high_buffers", "high_bytes", "high_reserved_bytes", "hits", "misses", "crossed", "waited",
                           "given_back", "full", "graph_buffers"})
    EXPECT_TRUE(j["pool"].contains(word)) << word;
  const json plan = json::parse(attune_says({"plan", "forward f32 b2 h8/2 q64 k128 d64/32 causal sink", "--json"}).out);
  EXPECT_EQ(j["workspace_bytes"], plan["workspace_bytes"]);
  EXPECT_EQ(j["total_bytes"], all + plan["workspace_bytes"].get<uint64_t>());
}

TEST(Memory, block_lists_and_tensors_of_a_variant_are_counted) {
  const json listed = answer("backward f32 b1 h2 q256 k512 d64 causal blocks64x64x40");
  EXPECT_EQ(bytes_of(listed, "block_begin"), 2u * 5 * 4);
  EXPECT_EQ(bytes_of(listed, "block_begin_k"), 2u * 9 * 4);
  EXPECT_EQ(bytes_of(listed, "block_column"), 40u * 4);
  const json nsa =
      answer("backward f32 b1 h4/2 q256 k256 d64/32 causal : nsa d=16 gate=sigmoid l=32 n=4 phi=mean s=64 w=64");
  EXPECT_EQ(bytes_of(nsa, "k_select"), 256u * 2 * 64 * 4);
  EXPECT_EQ(bytes_of(nsa, "d_v_window"), 256u * 2 * 32 * 4);
  EXPECT_EQ(bytes_of(nsa, "branch_out"), 256u * 12 * 32 * 4);
  EXPECT_EQ(bytes_of(nsa, "blocks"), 256u * 2 * 4 * 4);
  EXPECT_NEAR(nsa["megabytes_a_token"].get<double>(), nsa["total_bytes"].get<double>() / 256 * 1e-6, 1e-9);
}

TEST(Memory, a_pattern_behind_a_bar_gives_the_bound_at_every_length) {
  const std::string line = "forward f32 b1 h2 q4096 k4096 d64 full blocks64x64x1";
  const json half = answer(line + " | random density=0.5");
  EXPECT_EQ(bytes_of(half, "block_column"), 2u * 64 * 64 / 2 * 4);
  EXPECT_LT(half["longest"], answer(line)["longest"]);  // its list has one entry at any length
  EXPECT_LT(answer(line + " | dense")["longest"], half["longest"]);
  const json rank =
      answer("forward f32 b1 h2 q1024 k1024 d64 full blocks64x64x1 : ring layout=ring ranks=4 tokens=4096 | dense");
  EXPECT_EQ(bytes_of(rank, "block_column"), 2u * 64 * 64 * 4);
  EXPECT_EQ(bytes_of(rank, "block_begin"), 2u * 65 * 4);
  const Ran r = attune_says({"memory", "forward multihead f32 b1 s64 e64 h2 | causal"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("a pass given with a module line; give 'multihead f32 b1 s64 e64 h2 | causal', both passes"),
            std::string::npos)
      << r.err;
  EXPECT_NE(attune_says({"memory", line + " | spiral"}).err.find("'spiral' is not one of"), std::string::npos);
}

// Constant memory per token at every length: nothing is quadratic.
TEST(Memory, of_a_variant_is_linear_in_tokens) {
  for (const char* variant : {"dilated rates=1,2,4 segments=1024,2048,4096",
                              "nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512"})
    for (const char* pass : {"forward", "backward"}) {
      const auto a_token = [&](int tokens) {
        const std::string length = std::to_string(tokens);
        return answer(std::string(pass) + " bf16 b1 h8 q" + length + " k" + length + " d64 causal : " + variant)
            ["megabytes_a_token"].get<double>();
      };
      EXPECT_LT(a_token(65536), 1.1 * a_token(16384)) << pass << " " << variant;
    }
}

TEST(Memory, of_a_rank_is_that_of_its_rows_and_grows_with_all_tokens) {
  const auto line = [](uint64_t rows) {
    return "forward f32 b1 h8 q" + std::to_string(rows) + " k" + std::to_string(rows) +
           " d64 causal : ring layout=zigzag ranks=4 tokens=" + std::to_string(4 * rows);
  };
  const json j = answer(line(1024));
  EXPECT_EQ(bytes_of(j, "k"), 1024u * 8 * 64 * 4);
  EXPECT_EQ(j["score_matrix_bytes"], 8u * 1024 * 4096 * 4);
  const uint64_t longest = j["longest"], room = j["device_bytes"];
  ASSERT_GT(longest, 1024u);
  EXPECT_LE(answer(line(longest))["total_bytes"].get<uint64_t>(), room);
  EXPECT_GT(answer(line(longest + 2), {}, 3)["total_bytes"].get<uint64_t>(), room);
}

TEST(Memory, of_a_module_is_what_the_module_measures) {
  const json j = answer("llama f32 b2 s16 e64 h4/2 ffn=128");
  const uint64_t numbers = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128 + 2 * 64;  // q, k and v, o, mlp, norms
  EXPECT_GE(j["parameter_bytes"], 4 * numbers);
  EXPECT_LT(j["parameter_bytes"], 4 * numbers + 9 * 256);  // each is padded to a cache line
  EXPECT_EQ(j["parameters"], 9);
  EXPECT_EQ(j["tensor_bytes"], 2u * 2 * 16 * 64 * 4);
  const auto of = [&](const char* name) { return j[name].get<uint64_t>(); };
  EXPECT_EQ(of("inference_bytes"), of("parameter_bytes") + of("tensor_bytes") + of("forward_only_workspace_bytes"));
  EXPECT_EQ(of("training_bytes"),
            of("parameter_bytes") + of("gradient_bytes") + of("tape_bytes") + 2 * of("tensor_bytes") +
                std::max(of("forward_workspace_bytes"), of("backward_workspace_bytes")));
  EXPECT_TRUE(has(attune_says({"memory", "multihead f32 b1 s32 e32 h2 | full"}).out, "training"));
  EXPECT_EQ(answer("multihead f32 b2 s16 e64 h4 memory=48 | full")["tensor_bytes"], 2u * (16 + 48 + 16) * 64 * 4);
  EXPECT_EQ(answer("longnet_decoder f32 b2 s16 e64 h4 | causal")["tensor_bytes"], 2u * 3 * 16 * 64 * 4);
  const Ran bad = attune_says({"memory", "llama f32 b2 s16 e63 h4"});
  EXPECT_EQ(bad.code, 2);
  EXPECT_TRUE(has(bad.err, "module")) << bad.err;
  EXPECT_GT(answer("llama bf16 b1 s128 e65536 h512 ffn=1048576")["parameter_bytes"], 4e11);  // without allocating it
  EXPECT_EQ(attune_says({"memory", "llama f32 b2 s16 e64 h4", "--backend", "cpu_forward"}).code, 2);
  EXPECT_EQ(attune_says({"memory", "llama f32 b2 s16 e64 h4", "--peer", "torch"}).code, 2);
}

// The value in the records that `bench` writes for the same line.
TEST(Memory, scores_are_those_of_a_record) {
  const char* const line = "forward bf16 b1 h2 q16 k32 d16 full";
  EXPECT_EQ(answer(line)["score_matrix_bytes"], 2 * 16 * 32 * 2);
  EXPECT_TRUE(has(attune_says({"memory", line}).out, "of scores in bf16"));
  const json record = json::parse(attune_says({"bench", line, "--json", "--max-seconds", "0.01"}).out);
  EXPECT_EQ(record["scores_bytes"], answer(line)["score_matrix_bytes"]);
  EXPECT_EQ(record["cache_bytes"], 32 * answer(line)["key_value_bytes_a_token"].get<int>());
}

TEST(Memory, of_a_device_that_is_not_here_is_that_of_its_data_sheet) {
  const Ran r = attune_says({"memory", "--device", "h200"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out, "NVIDIA H200, 140 GiB by its data sheet; it is not in this machine, so the rest is computed\n");
}

// Whatever code a build has: tensors are those of the problem, and what fits is an estimate for a GPU elsewhere.
TEST(Memory, of_a_problem_on_a_device_that_is_not_here_is_an_estimate) {
  constexpr const char* kLine = "forward bf16 b1 h32/8 q1 k131072 d128 full";
  const Ran r = attune_says({"memory", kLine, "--device", "h200"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "  longest         est. ")) << r.out;
  EXPECT_TRUE(has(r.out, "NVIDIA H200, 140 GiB by its data sheet")) << r.out;
  const json h200 = json::parse(attune_says({"memory", kLine, "--device", "h200", "--json"}).out);
  const json l4 = json::parse(attune_says({"memory", kLine, "--device", "l4", "--json"}).out);
  const json here = answer(kLine);
  EXPECT_EQ(h200["tensor_bytes"], here["tensor_bytes"]);
  EXPECT_EQ(h200["estimated"], true);
  EXPECT_EQ(here["estimated"], false);
  EXPECT_GT(h200["longest"], 5 * l4["longest"].get<int64_t>());
  const bool planned = find_backend("cuda_standard");
  EXPECT_EQ(h200["backend"].is_null(), !planned);
  EXPECT_EQ(has(r.out, "workspace       unknown: this build of attune has no GPU code"), !planned) << r.out;
}

TEST(Memory, a_dry_run_for_a_device_that_is_not_here_is_an_estimate) {
  const Ran r = attune_says({"bench", "--suite", "memory", "--dry-run", "--device", "l4"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "26 rows, est. ") && has(r.out, " on NVIDIA L4, which is not here, ")) << r.out;
  EXPECT_TRUE(has(r.out, "q2097152 k2097152 d64 full: does not fit into memory")) << r.out;
}

// The mistake, and the word that was meant.
TEST(Memory, a_misspelt_module_is_named) {
  const Ran r = attune_says({"memory", "lama bf16 b1 s128 e256 h4 ffn=512 | causal"});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "attune memory: 'lama' is not a pass, dtype or module; did you mean 'llama'? See attune "
                         "memory --help\n  lama bf16 b1 s128 e256 h4 ffn=512 | causal\n  ^~~~\n")) << r.err;
  const Ran bench = attune_says({"bench", "forward lama bf16 b1 s128 e256 h4 ffn=512 | causal"});
  EXPECT_EQ(bench.code, 2);
  EXPECT_TRUE(has(bench.err, "did you mean 'llama'?\n  forward lama bf16")) << bench.err;
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"bench", "forward f32 b1 h8 q512 k512 d64 casual"}, {"memory", "forward f32 b1 h8 q512 k512 d64 casual"},
           {"profile", "--run", "forward f32 b1 h8 q512 k512 d64 casual"},
           {"parity", "--backend", "cpu_forward", "forward f32 b1 h8 q512 k512 d64 casual"}}) {
    const Ran c = attune_says(words);
    EXPECT_EQ(c.code, 2);
    EXPECT_TRUE(has(c.err, "did you mean 'causal'?") && has(c.err, " casual\n") && has(c.err, " ^~~~~~\n")) << c.err;
  }
}

TEST(Memory, a_backward_has_gradients_and_pages_are_whole) {
  const json back = answer("backward f32 b1 h4 q32 k32 d64 full");
  for (const char* role : {"d_out", "dq", "dk", "dv"}) EXPECT_EQ(bytes_of(back, role), 32u * 4 * 64 * 4) << role;
  const json paged = answer("forward f32 b3 h2 q1 k100 d64 full paged16");
  EXPECT_EQ(bytes_of(paged, "k"), 3u * 7 * 16 * 2 * 64 * 4);
  EXPECT_EQ(bytes_of(paged, "page_table"), 3u * 7 * 4);
}

TEST(Memory, the_longest_context_fits_and_one_more_does_not) {
  const json j = answer("forward f32 b1 h8 q1 k1024 d64 full");
  const uint64_t room = j["device_bytes"], longest = j["longest"];
  const auto asked = [](uint64_t keys) {
    return attune_says({"memory", "forward f32 b1 h8 q1 k" + std::to_string(keys) + " d64 full", "--json"});
  };
  const Ran fits = asked(longest), more = asked(longest + 1);
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_LE(json::parse(fits.out)["total_bytes"].get<uint64_t>(), room);
  EXPECT_EQ(more.code, 3);
  EXPECT_TRUE(has(more.err, " do not fit in the ")) << more.err;
  EXPECT_GT(json::parse(more.out)["total_bytes"].get<uint64_t>(), room);
  EXPECT_TRUE(json::parse(more.out).contains("error"));
}

TEST(Memory, every_backend_that_takes_the_problem_has_its_workspace_and_longest_context) {
  const Ran r = attune_says({"memory", "forward f32 b1 h8 q1024 k1024 d64 causal", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = nlohmann::json::parse(r.out);
  ASSERT_GE(j["backends"].size(), 2u);
  EXPECT_EQ(j["backends"][0]["backend"], "cpu_forward");
  EXPECT_EQ(j["backends"][0]["workspace_bytes"], j["workspace_bytes"]);
  EXPECT_EQ(j["backends"][0]["longest"], j["longest"]);
  EXPECT_EQ(j["backends"][1]["backend"], "cpu_standard");  // stores the scores, so less fits
  EXPECT_LT(j["backends"][1]["longest"], j["longest"]);
}

TEST(Memory, what_every_backend_takes_is_measured_against_its_plan) {
  const char* const line = "forward f32 b1 h4 q1024 k1024 d64 full";
  const auto j = nlohmann::json::parse(attune_says({"memory", line, "--measure", "--json"}).out);
  ASSERT_GE(j["measured"].size(), 2u);
  bool standard = false;
  for (const auto& m : j["measured"]) {
    EXPECT_EQ(m["status"], "ok") << m;
    if (m["taken_bytes"].is_null()) GTEST_SKIP() << "this system does not say what is resident";
    EXPECT_EQ(m["peak_bytes"].get<double>(), m["taken_bytes"].get<double>() + j["tensor_bytes"].get<double>());
    if (m["subject"] != "cpu_standard") continue;
    standard = true;
    EXPECT_GT(m["taken_bytes"].get<double>(), 2e6);  // whole rows of scores
  }
  EXPECT_TRUE(standard);
  EXPECT_TRUE(has(attune_says({"memory", line, "--measure"}).out, " planned; ")) << "and as text";
  const auto one = nlohmann::json::parse(
      attune_says({"memory", line, "--measure", "--backend", "cpu_standard", "--json"}).out);
  ASSERT_EQ(one["measured"].size(), 1u) << one["measured"];
  EXPECT_EQ(one["measured"][0]["subject"], "cpu_standard");
  // For one rank: its share of what all ranks took, without their shards.
  const char* const ring = "forward f32 b1 h4 q1024 k1024 d64 causal : ring layout=ring ranks=2 tokens=2048";
  const auto rank = nlohmann::json::parse(attune_says({"memory", ring, "--measure", "--json"}).out);
  EXPECT_LT(rank["measured"][0]["taken_bytes"].get<double>(), 1.5 * rank["workspace_bytes"].get<double>()) << rank;
  EXPECT_EQ(attune_says({"memory", "--measure"}).code, 2);
  EXPECT_EQ(attune_says({"memory", line, "--peer", "torch"}).code, 2);
}

TEST(Memory, without_a_problem_the_device_alone) {
  const Ran r = attune_says({"memory"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "lent to threads of this process")) << r.out;
  const Ran text = attune_says({"memory", "forward f32 b1 h8 q64 k64 d64 causal"});
  for (const char* part : {"workspace", "together", "per token", "not stored", "longest"})
    EXPECT_TRUE(has(text.out, part)) << part << "\n" << text.out;
}

TEST(Memory, mistakes_are_sentences) {
  const Ran line = attune_says({"memory", "nonsense"});
  EXPECT_EQ(line.code, 2);
  EXPECT_TRUE(has(line.err, "attune memory: problem line: ")) << line.err;
  const Ran device = attune_says({"memory", "--device", "toaster"});
  EXPECT_EQ(device.code, 2);
  EXPECT_TRUE(has(device.err, "attune memory: device 'toaster' is unknown")) << device.err;
  const Ran backend = attune_says({"memory", "forward f32 b1 h8 q64 k64 d64 causal", "--backend", "nobody"});
  EXPECT_EQ(backend.code, 2);
  EXPECT_TRUE(has(backend.err, "backend 'nobody' is not one of")) << backend.err;
  const Ran nobody = attune_says({"memory", "forward f32 b1 h8 q64 k64 d64 causal : no_such_variant"});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_TRUE(has(nobody.err, "no backend supports")) << nobody.err;
}

}  // namespace
}  // namespace attune
