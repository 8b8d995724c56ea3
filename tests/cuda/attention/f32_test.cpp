// SPDX-License-Identifier: Apache-2.0
// f32 on tensor cores: every run gives the same bits, with or without repro=run, and they do not depend on the memory
// layout of the rows.
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

class F32 : public OnGpu {
 protected:
  static const Backend& backend(const Problem& p) {
    return *find_backend(p.pass == Pass::forward ? "sm80_forward_f32" : "sm80_backward_f32");
  }
  static std::vector<Role> outputs(const Problem& p) {
    if (p.pass == Pass::forward) return {Role::out, Role::lse};
    return {Role::dq, Role::dk, Role::dv};
  }
  // The rows of one sequence of a batch, in order.
  static Written rows(Placed& on, Role r, int b) {
    const Tensor& t = on.args()[r];
    const size_t bytes = size_t(t.extent.dim) * size_t(size_of(t.dtype));
    Written all;
    for (int s = 0; s < t.extent.seq; ++s)
      for (int h = 0; h < t.extent.head; ++h) {
        all.resize(all.size() + bytes);
        EXPECT_EQ(cudaMemcpy(all.data() + all.size() - bytes, row_address(t, b, s, h), bytes, cudaMemcpyDeviceToHost),
                  cudaSuccess);
      }
    return all;
  }
  void run(Placed& on) {
    ASSERT_EQ(on.plan_for(backend(on.problem()), gpu_).message, "");
    ASSERT_EQ(on.run(stream_.get()).message, "");
    ASSERT_EQ(cuda::wait_all(0).message, "");
  }
};

TEST_F(F32, every_run_gives_the_same_bits) {
  for (const char* line :
       {"forward f32 b2 h4/2 q300 k700 d64 causal precision=tf32",
        "forward f32 b2 h4/2 q300 k700 d200/128 causal softcap dropout sink precision=tf32x3",
        "backward f32 b2 h4/2 q300 k700 d64 causal precision=tf32x3",
        "backward f32 b1 h4/1 q300 k500 d128 window100,20 alibi precision=tf32",
        "backward f32 b1 h2 q200 k300 d256 full precision=tf32x3",
        "backward f32 b3 h2 q100 k128 d64 full paged16 repro=run precision=tf32 | seed=2 shared"}) {
    SCOPED_TRACE(line);
    Placed on(line, 0);
    ASSERT_EQ(on.plan_for(backend(on.problem()), gpu_).message, "");
    const Written first = on.fresh(stream_.get());
    for (int n = 0; n < 5; ++n) ASSERT_EQ(on.fresh(stream_.get()), first) << "run " << n + 2;
  }
}

TEST_F(F32, rows_that_are_not_aligned_give_the_same_bits) {
  for (const char* line : {"forward f32 b2 h4/2 q70 k130 d64 causal precision=tf32",
                           "forward f32 b2 h2 q70 k130 d256 causal precision=tf32x3",
                           "backward f32 b2 h4/2 q70 k130 d128/60 causal precision=tf32x3"}) {
    SCOPED_TRACE(line);
    Placed aligned(line, 0), odd(join(line, " | pad=3"), 0);
    run(aligned), run(odd);
    for (const Role r : outputs(aligned.problem()))
      for (int b = 0; b < 2; ++b) EXPECT_EQ(rows(aligned, r, b), rows(odd, r, b)) << name(r) << " of sequence " << b;
  }
}

}  // namespace
}  // namespace attune
