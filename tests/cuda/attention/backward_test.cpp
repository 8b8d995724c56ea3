// SPDX-License-Identifier: Apache-2.0
// Reproducible gradients: CTAs add to dQ in ticket order, so the bits are the same whatever else runs on the GPU or
// shares the batch. There are enough key tiles that the order would vary without tickets.
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

class Backward : public OnGpu {};

TEST_F(Backward, a_reproducible_run_gives_the_same_bits_beside_others) {
  constexpr const char* kLines[] = {
      "backward bf16 b2 h4/2 q700 k900 d64 causal repro=run",
      "backward f16 b1 h4 q900 k900 d128 full repro=run",
      "backward bf16 b2 h2 q600 k650 d192 causal repro=run",
      "backward bf16 b1 h2 q300 k600 d256 full repro=run",
      "backward f16 b4 h4/2 q500 k500 d96 causal ragged repro=run | seed=2",
      "backward bf16 b1 h4/2 q400 k500 d64 causal softcap dropout repro=run",
      "backward bf16 b3 h2 q200 k256 d128 full paged16 repro=run | seed=2",
  };
  const Backend* b = find_backend("sm80_backward");
  Placed load("backward bf16 b2 h4 q500 k500 d64 full", 0);
  ASSERT_EQ(load.plan_for(*b, gpu_).message, "");
  cuda::OwnStream beside;
  ASSERT_EQ(beside.open(0).message, "");
  for (const char* line : kLines) {
    SCOPED_TRACE(line);
    Placed on(line, 0);
    ASSERT_EQ(on.plan_for(*b, gpu_).message, "");
    const Written first = on.fresh(stream_.get());
    for (int n = 0; n < 10; ++n) {
      for (int m = 0; m < n; ++m) ASSERT_EQ(load.run(beside.get()).message, "");
      ASSERT_EQ(on.fresh(stream_.get()), first) << "run " << n + 2;
    }
    ASSERT_EQ(cuda::wait_all(0).message, "");
  }
}

// repro=batch: the gradients of a sequence do not depend on the rest of the batch.
TEST_F(Backward, a_sequence_has_the_same_gradients_alone_and_in_company) {
  const Backend* b = find_backend("sm80_backward");
  Placed one("backward bf16 b1 h4/2 q300 k700 d128 causal repro=batch", 0);
  Placed many("backward bf16 b5 h4/2 q300 k700 d128 causal repro=batch", 0);
  ASSERT_EQ(one.plan_for(*b, gpu_).message, "");
  ASSERT_EQ(many.plan_for(*b, gpu_).message, "");
  const auto each_row = [](Placed& on, Role r, auto f) {
    const Tensor& t = on.args()[r];
    for (int s = 0; s < t.extent.seq; ++s)
      for (int h = 0; h < t.extent.head; ++h)
        f(row_address(t, 0, s, h), size_t(t.extent.dim) * size_t(size_of(t.dtype)));
  };
  const auto read = [&](Placed& on, Role r) {
    Written all;
    each_row(on, r, [&](const char* row, size_t bytes) {
      all.resize(all.size() + bytes);
      ASSERT_EQ(cudaMemcpy(all.data() + all.size() - bytes, row, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    });
    return all;
  };
  for (const Role r : {Role::q, Role::k, Role::v, Role::out, Role::lse, Role::d_out}) {
    const Written from = read(one, r);
    size_t at = 0;
    each_row(many, r, [&](char* row, size_t bytes) {
      ASSERT_EQ(cudaMemcpy(row, from.data() + at, bytes, cudaMemcpyHostToDevice), cudaSuccess);
      at += bytes;
    });
  }
  ASSERT_EQ(one.run(stream_.get()).message, "");
  ASSERT_EQ(many.run(stream_.get()).message, "");
  ASSERT_EQ(cuda::wait_all(0).message, "");
  for (const Role r : {Role::dq, Role::dk, Role::dv}) EXPECT_EQ(read(one, r), read(many, r)) << int(r);
}

}  // namespace
}  // namespace attune
