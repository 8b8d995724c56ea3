// SPDX-License-Identifier: Apache-2.0
#include "tool/subjects/workload.h"

#include <cmath>
#include <cstring>

#include "tests/asked.h"

namespace attune {
namespace {

TEST(Workload, ragged_sequences_have_the_lengths_that_were_asked_for) {
  const Problem ragged = problem("forward f32 b3 h1 q64 k64 d8 full ragged");
  const Workload w(ragged, Layout::bshd, 1, Distribution::normal, {5, 64, 1});
  for (const Role r : {Role::cu_q, Role::cu_k}) {
    const int32_t* cu = w.args.row<const int32_t>(r);
    ASSERT_NE(cu, nullptr);
    EXPECT_EQ(std::vector<int32_t>(cu, cu + 4), (std::vector<int32_t>{0, 5, 69, 70}));
  }
  const Workload full(problem("forward f32 b2 h1 q64 k64 d8 full ragged"), Layout::bshd, 1, Distribution::normal);
  EXPECT_EQ(full.args.row<const int32_t>(Role::cu_k)[2], 128);
}

TEST(Workload, large_inputs_are_normal_and_no_row_is_like_another) {
  const Workload w(problem("forward bf16 b1 h1 q1 k70000 d64 full"), Layout::bhsd, 1, Distribution::normal);
  const Tensor& k = w.args[Role::k];
  double sum = 0, square = 0;
  const int count = k.extent.seq;
  for (int s = 0; s < count; ++s) {
    const double x = load(k, 0, s, 0, 3);
    sum += x, square += x * x;
  }
  EXPECT_NEAR(sum / count, 0, 0.02);
  EXPECT_NEAR(square / count, 1, 0.03);
  // The values have a period of 1048573, of which no row distance is a multiple.
  const size_t bytes = size_t(k.extent.dim) * 2;
  for (const int s : {1, 16383, 16384, 16385, 65535})
    EXPECT_NE(std::memcmp(row_address(k, 0, 0, 0), row_address(k, 0, s, 0), bytes), 0) << s;
}

TEST(Workload, a_cache_that_is_appended_to_keeps_its_values) {
  Workload w(problem("forward f32 b1 h1 q2 k8 d8 causal append"), Layout::bshd, 1, Distribution::normal);
  w.poison_outputs();
  for (const Role r : {Role::k, Role::v}) {
    EXPECT_TRUE(std::isfinite(load(w.args[r], 0, 0, 0, 0)));
    EXPECT_TRUE(std::isnan(load(w.args[r], 0, 7, 0, 0))) << "the place of a new key";
  }
  EXPECT_TRUE(std::isnan(load(w.args[Role::out], 0, 0, 0, 0)));
}

TEST(Workload, that_a_gpu_copies_holds_the_same_and_can_be_poisoned) {
  const Problem p = problem("backward bf16 b2 h2 q8 k8 d8 causal");
  Workload aligned(p, Layout::bhsd, 3, Distribution::normal);
  Workload as_made(p, Layout::bhsd, 3, Distribution::normal, {}, {}, false);
  EXPECT_EQ(as_made.outputs(), aligned.outputs());
  for (const Role r : {Role::q, Role::k, Role::v, Role::d_out}) {
    const Tensor &a = aligned.args[r], &b = as_made.args[r];
    ASSERT_EQ(span_bytes(a), span_bytes(b));
    EXPECT_EQ(std::memcmp(a.data, b.data, span_bytes(a)), 0) << "role " << int(r);
  }
  as_made.poison_outputs();
  EXPECT_TRUE(std::isnan(load(as_made.args[Role::dk], 1, 7, 1, 7)));
  EXPECT_FALSE(std::isnan(load(as_made.args[Role::q], 1, 7, 1, 7)));
}

TEST(Workload, spans_from_the_first_to_the_last_element) {
  EXPECT_EQ(span_bytes({.dtype = DType::f32, .extent = {2, 3, 4, 8}, .stride = {96, 32, 8}}), 2u * 3 * 4 * 8 * 4);
  EXPECT_EQ(span_bytes({.dtype = DType::bf16, .extent = {1, 2, 1, 8}, .stride = {0, 100, 0}}), 108u * 2);
  EXPECT_EQ(span_bytes({.dtype = DType::bf16, .extent = {1, 0, 1, 8}}), 0u);
}

TEST(Workload, lists_of_a_pattern_are_those_and_are_counted) {
  for (const double density : {0.25, 0.5}) {
    const Problem p = problem(join("backward f32 b1 h2 q640 k640 d8 full blocks64x64x", int(200 * density)));
    const Workload w(p, Layout::bshd, 1, Distribution::normal, {}, join("random density=", density, " seed=3"));
    EXPECT_EQ(w.blocks()[size_t(BlockCount::active)], int64_t(200 * density));
    EXPECT_EQ(w.blocks()[size_t(BlockCount::shown)], 200);
    EXPECT_EQ(w.args.row<const int32_t>(Role::block_begin, 0, 0, 1)[10], int32_t(200 * density));
    EXPECT_EQ(w.args.row<const int32_t>(Role::block_begin_k, 0, 0, 1)[10], int32_t(200 * density));
  }
}

// Three streams of raw tokens plus the compressed tokens of the first; for a single branch, only what it reads.
TEST(CacheBytes, keys_and_values_of_native_sparse_attention_are_those_of_its_branches) {
  const auto bytes = [](const std::string& variant) {
    Problem p;
    const std::string line = "forward bf16 b2 h4/2 q1024 k1024 d64/32 causal : " + variant;
    EXPECT_EQ(parse(line, p).message, "") << line;
    EXPECT_DOUBLE_EQ(token_bytes(p), cache_bytes(p) / (2 * 1024)) << line;
    return cache_bytes(p) / (2 * 2 * 2);  // elements per sequence and head
  };
  constexpr double kRaw = 1024, kCompressed = 63, kToken = 64 + 32;  // (1024 - 32) / 16 + 1
  EXPECT_EQ(bytes("nsa d=16 gate=none l=32 n=16 phi=mean s=64 w=128"), (3 * kRaw + kCompressed) * kToken);
  EXPECT_EQ(bytes("nsa d=16 gate=none l=32 n=16 phi=none s=64 w=128"), (2 * kRaw + kCompressed) * kToken);
  EXPECT_EQ(bytes("nsa d=16 gate=none l=32 n=16 phi=mean s=64 w=0"), (2 * kRaw + kCompressed) * kToken);
  EXPECT_EQ(bytes("nsa d=16 gate=none l=32 n=16 only=cmp phi=mean s=64 w=128"), (kRaw + kCompressed) * kToken);
  EXPECT_EQ(bytes("nsa d=16 gate=none l=32 n=16 only=sel phi=mean s=64 w=128"),
            kRaw * kToken + (kRaw + kCompressed) * 64);  // block selection reads keys only
  EXPECT_EQ(bytes("nsa d=16 gate=none l=32 n=16 only=win phi=mean s=64 w=128"), kRaw * kToken);
  EXPECT_EQ(bytes("selected n=16 s=64"), kRaw * kToken);
  EXPECT_EQ(bytes("select d=16 l=32 n=16 s=64"), kCompressed * 64);
  EXPECT_EQ(bytes("reads d=16 l=32 n=16 s=64 w=128"), 0);
}

}  // namespace
}  // namespace attune
