// SPDX-License-Identifier: Apache-2.0
// What the f32 GPU kernels accept, the text of their refusals, and the workspace they plan. Pure functions: no GPU
// required.
#include "tests/attention/refusals.h"

namespace attune {
namespace {

std::string refusal(std::string_view line, std::string_view on = "h200") {
  const Problem p = problem(line);
  const Backend* b = find_backend(p.pass == Pass::forward ? "sm80_forward_f32" : "sm80_backward_f32");
  return b->supports(p, known(on)).message;
}

using F32OnGpu = WithGpuCode;

TEST_F(F32OnGpu, every_dense_problem_is_taken_from_ampere_on) {
  for (const char* on : {"a100", "a10g", "l4", "rtx4090", "h100", "h200"})
    for (const std::string_view rest :
         {"b1 h1 q1 k1 d1 full", "b2 h4/2 q33 k65 d20/36 window3,2@top_left", "b1 h1 q64 k64 d256/8 full",
          "b2 h4/2 q64 k96 d64 causal softcap alibi bias.bf16 dropout sink", "b4 h8 q64 k64 d128 causal ragged",
          "b4 h8 q64 k64 d64 causal@absolute paged16", "b1 h2 q128 k128 d64 causal blocks16x16x64",
          "b1 h2 q128 k128 d64 causal/4+3 repro=batch"})
      for (const std::string_view pass : {"forward", "backward"})
        for (const std::string_view precision : {"tf32", "tf32x3"}) {
          const std::string line = join(pass, " f32 ", rest, " precision=", precision);
          EXPECT_EQ(refusal(line, on), "") << line << " on " << on;
        }
  EXPECT_EQ(refusal("forward f32 b1 h2 q8 k8 d64 full accumulate precision=tf32"), "");
}

TEST_F(F32OnGpu, what_is_refused_is_said) {
  const Refusal cases[] = {
      {"sm80_forward_f32", "forward f32 b1 h1 q8 k8 d8 full", "h200", "precision=tf32 or tf32x3, not with full"},
      {"sm80_backward_f32", "backward f32 b1 h1 q8 k8 d8 full", "h200", "computes with precision=tf32 or tf32x3"},
      {"sm80_forward_f32", "forward bf16 b1 h1 q8 k8 d8 full precision=tf32", "h200", "dtypes bf16 are not all f32"},
      {"sm80_forward_f32", "forward f32/bf16/f32 b1 h1 q8 k8 d8 full precision=tf32", "h200", "are not all f32"},
      {"sm80_forward_f32", "forward f32 b1 h1 q8 k8 d257 full precision=tf32", "h200", "dim 257 is over 256"},
      {"sm80_backward_f32", "backward f32 b1 h1 q8 k8 d8/260 full precision=tf32", "h200", "dim 260 is over 256"},
      {"sm80_forward_f32", "forward f32 b1 h1 q8 k8 d8 full precision=tf32", "t4",
       "requires sm_80 or later, but Tesla T4 is sm_75"},
      {"sm80_backward_f32", "backward f32 b1 h1 q8 k8 d8 full bias repro=run precision=tf32", "h200",
       "in no fixed order"},
  };
  expect_refusals(cases);
  const Problem p = problem("forward f32 b1 h1 q8 k8 d8 full precision=tf32");
  EXPECT_EQ(find_backend("sm80_forward_f32")->supports(p, Device{}).message,
            "sm80_forward_f32: requires a GPU, but this device is a CPU");
}

// Without permission for tf32, f32 goes to cuda_standard in full precision.
TEST_F(F32OnGpu, the_chain_takes_them_only_where_tf32_is_allowed) {
  const auto chosen = [](std::string_view line) {
    Plan plan;
    const Status s = Planner{.device = known("h200")}.plan(problem(line), plan);
    return s.ok() ? std::string(plan.backend->name) : s.message;
  };
  EXPECT_EQ(chosen("forward f32 b1 h8 q512 k512 d64 causal precision=tf32"), "sm80_forward_f32");
  EXPECT_EQ(chosen("forward f32 b1 h8 q512 k512 d64 causal precision=tf32x3"), "sm80_forward_f32");
  EXPECT_EQ(chosen("backward f32 b1 h8 q512 k512 d64 causal precision=tf32x3"), "sm80_backward_f32");
  EXPECT_EQ(chosen("forward f32 b1 h8 q512 k512 d64 causal"), "cuda_standard");
  EXPECT_EQ(chosen("backward f32 b1 h8 q512 k512 d64 causal"), "cuda_standard");
}

TEST_F(F32OnGpu, memory_is_linear_and_kernels_are_by_width) {
  const auto planned = [](std::string_view line) {
    const Problem p = problem(line);
    Plan plan{.backend = find_backend(p.pass == Pass::forward ? "sm80_forward_f32" : "sm80_backward_f32"),
              .problem = p,
              .device = known("l4")};
    EXPECT_TRUE(plan.backend->shape(plan, Planner{.device = plan.device}).ok()) << line;
    return plan;
  };
  EXPECT_EQ(planned("forward f32 b4 h16 q4096 k4096 d64 full precision=tf32").workspace_bytes, 0u);
  const Plan backward = planned("backward f32 b4 h16 q4096 k4096 d64 full precision=tf32");
  EXPECT_EQ(backward.workspace_bytes, size_t(4) * 16 * 4096 * 8) << "two numbers a row";
  EXPECT_EQ(planned("forward f32 b1 h1 q8 k8 d64 full precision=tf32").kernel, 0);
  EXPECT_EQ(planned("forward f32 b1 h1 q8 k8 d64/68 full precision=tf32").kernel, 1);
  EXPECT_EQ(planned("forward f32 b1 h1 q8 k8 d129 full precision=tf32").kernel, 2);
}

TEST_F(F32OnGpu, a_grid_that_no_launch_takes_is_refused) {
  for (const std::string_view pass : {"forward", "backward"}) {
    Plan plan;
    const std::string line = join(pass, " f32 b65536 h65536 q100 k100 d8 full precision=tf32");
    const Status s = Planner{.device = known("h200"), .forced = join("sm80_", pass, "_f32")}.plan(problem(line), plan);
    EXPECT_NE(s.message.find("blocks are over 2^31 - 1"), std::string::npos) << s.message;
  }
}

}  // namespace
}  // namespace attune
