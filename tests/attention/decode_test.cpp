// SPDX-License-Identifier: Apache-2.0
// A decode reads keys where they lie. It agrees with the reference for every mask, key source and option.
#include "attention/cpu/decode.h"

#include "tests/runs.h"
#include "verify/suite.h"

namespace attune {
namespace {

// 1 to 4 rows of a KV head, all rows of a GQA group too, and keys of several tiles, at their edges and beyond.
constexpr const char* kLines[] = {
    "forward f32 b1 h8 q1 k1100 d64 full",
    "forward f32 b2 h4/2 q2 k257 d72 causal",
    "forward f32 b3 h2 q3 k300 d40/24 window40,3 | drawn cache used_q",
    "forward f32 b2 h2 q4 k129 d256 causal@top_left",
    "forward f32 b1 h3/1 q1 k128 d8 causal sink",
    "forward f32 b2 h2 q4 k200 d64 window130,-140 | empty",
    "forward f32 b2 h2 q3 k200 d64 causal/4+3",
    "forward f32 b2 h2 q4 k150 d64 causal softcap alibi",
    "forward f32 b2 h2 q2 k150 d64 full bias | bias=k",
    "forward f32 b2 h2 q4 k150 d32 causal dropout sink",
    "forward f32 b2 h2 q4 k300 d64 causal accumulate",
    "forward f32 b3 h2 q2 k500 d64 causal ragged | seed=2 drawn",
    "forward f32 b2 h4/2 q1 k500 d64 causal paged16 | seed=2 drawn shared",
    "forward f32 b2 h2 q3 k200 d64 causal append rotary | cache new=3",
    "forward f32 b1 h2 q4 k300 d64 causal | far",
    "forward f32 b1 h2 q4 k300 d64 full | x1e4",
    "forward f32 b1 h1 q1 k5000 d128 full repro=run",
    "forward f16 b2 h4/2 q2 k300 d72 causal",
    "forward f16 b1 h2 q1 k1100 d64 full | bhsd pad=3",
};

TEST(Decode, agree_with_the_reference) {
  Suite suite{.cases = {}, .backends = {find_backend("cpu_forward")}, .places = cpu_places(), .progress = {}};
  suite.places.push_back(busy_cpu());
  for (const char* line : kLines) suite.cases.push_back(case_of(line));
  int decoded = 0;
  for (const Attempt& a : suite.run()) {
    EXPECT_EQ(a.outcome.verdict, Verdict::pass) << command(suite, a) << "\n  " << a.outcome.why;
    Plan plan;
    EXPECT_TRUE(plan_on(*a.backend, suite.cases[a.case_index].problem, suite.places[a.place_index].device, plan).ok());
    decoded += plan.kernel == cpu::kDecodeKernel;
  }
  EXPECT_TRUE(decoded > 0 || !best_kernels(DType::f32, this_cpu().features)->row_scores);
}

TEST(Decode, is_for_few_rows_without_a_list_and_without_bits_of_panels) {
  const CpuKernels& m = *best_kernels(DType::f32, this_cpu().features);
  if (!m.row_scores) GTEST_SKIP() << "requires loops for few rows, but those of " << m.isa << " are for panels only";
  EXPECT_TRUE(cpu::is_decode(problem("forward f32 b1 h8 q4 k9000 d64 causal"), m));
  EXPECT_TRUE(cpu::is_decode(problem("forward f32 b1 h8/2 q1 k9000 d64 causal"), m));
  EXPECT_FALSE(cpu::is_decode(problem("forward f32 b1 h8 q16 k9000 d64 causal"), m));
  EXPECT_FALSE(cpu::is_decode(problem("forward f32 b1 h16/1 q1 k9000 d64 causal"), m));
  EXPECT_FALSE(cpu::is_decode(problem("forward f32 b1 h8 q4 k9000 d64 causal repro=batch"), m));
  EXPECT_FALSE(cpu::is_decode(problem("forward f32 b1 h8 q4 k64 d64 causal blocks4x64x8"), m));
}

}  // namespace
}  // namespace attune
