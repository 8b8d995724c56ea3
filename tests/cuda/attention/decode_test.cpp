// SPDX-License-Identifier: Apache-2.0
// Decode with repro=batch: the bits of a row must not depend on the batch. Every sequence of a batch is run again
// alone, with its own bounds, and must write the same bytes.
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

class Decode : public OnGpu {
 protected:
  // One integer per sequence; `otherwise` if the tensor is absent.
  std::vector<int> values(Placed& on, Role r, int otherwise) {
    std::vector<int> all;
    on.change(r, [&](int64_t x, int) { return all.push_back(int(x)), x; }, stream_.get());
    all.resize(size_t(on.problem().batch), otherwise);
    return all;
  }

  // Sequence b of the arguments, as a batch of one.
  static Args alone(Args a, int b) {
    const bool own_keys = a[Role::page_table].data || a[Role::cache_index].data;
    for (const Role r : {Role::q, Role::out, Role::lse, Role::k, Role::v, Role::used_q, Role::used_k, Role::left_pad,
                         Role::cache_index, Role::page_table}) {
      Tensor& t = a[r];
      if (!t.data || (own_keys && (r == Role::k || r == Role::v))) continue;
      t.data = row_address(t, b, 0, 0);
      t.extent.batch = 1, t.stride.batch = 0;
    }
    return a;
  }

  // The results of running each sequence alone. `most` becomes the largest number of splits.
  Written one_by_one(Placed& on, int& most) {
    const Problem& p = on.problem();
    const std::vector<int> used_q = values(on, Role::used_q, p.len_q), used_k = values(on, Role::used_k, p.len_k),
                           pad = values(on, Role::left_pad, 0);
    on.reset(stream_.get());
    for (int b = 0; b < p.batch; ++b) {
      Problem one = p;
      one.batch = 1;
      one.len_q = std::max(1, used_q[size_t(b)]), one.len_k = std::max(1, used_k[size_t(b)] - pad[size_t(b)]);
      Plan plan;
      EXPECT_EQ(plan_on(*find_backend("sm80_forward"), one, gpu_, plan).message, "");
      most = std::max(most, plan.splits);
      cuda::Memory scratch;
      EXPECT_EQ(scratch.allocate(0, plan.workspace_bytes).message, "");
      EXPECT_EQ(plan.backend->run(plan, alone(on.args(), b), {scratch.data()}, stream_.get()).message, "");
      EXPECT_EQ(cuda::wait(stream_.get()).message, "");
    }
    return on.results(stream_.get());
  }
};

TEST_F(Decode, rows_do_not_depend_on_the_batch) {
  for (const char* line :
       {"forward bf16 b5 h8/2 q1 k9000 d128 causal repro=batch | drawn cache",
        "forward f16 b4 h4 q3 k2500 d64 causal paged16 repro=batch | seed=2 drawn cache",
        "forward bf16 b3 h16/1 q2 k40000 d96 window3000,0 paged1 repro=batch | drawn cache",
        "forward f16 b3 h4/2 q5 k3000 d256 full sink repro=batch | drawn cache",
        "forward bf16/bf16/f32 b4 h8/2 q1 k1500 d128 full accumulate repro=batch | drawn cache",
        "forward bf16 b6 h8/2 q40 k2000 d128 causal paged3 repro=batch | seed=3 drawn cache used_q",
        "forward f16 b4 h4 q90 k700 d64 causal repro=batch | seed=4 drawn cache used_q"}) {
    SCOPED_TRACE(line);
    Placed on(line, 0);
    ASSERT_EQ(on.plan_for(*find_backend("sm80_forward"), gpu_).message, "");
    const Written together = on.fresh(stream_.get());
    int most = 1;
    EXPECT_EQ(one_by_one(on, most), together);
  }
}

// Shows that the test above can fail: splits chosen for the whole batch give different bits.
TEST_F(Decode, without_the_promise_rows_do_depend_on_the_batch) {
  Placed on("forward bf16 b20 h32/8 q1 k9000 d128 full", 0);
  ASSERT_EQ(on.plan_for(*find_backend("sm80_forward"), gpu_).message, "");
  const Written together = on.fresh(stream_.get());
  int most = 1;
  const Written apart = one_by_one(on, most);
  ASSERT_NE(most, on.plan().splits) << "both have the same parts, so this proves nothing";
  EXPECT_NE(apart, together);
}

}  // namespace
}  // namespace attune
