// SPDX-License-Identifier: Apache-2.0
// Keys and values broadcast over heads or sequences with a stride of 0 give the same bits as an equivalent call without
// broadcasting.
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

class SharedKeys : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    backend_ = find_backend("sm90_forward");
    if (!backend_ || gpu_.arch != 90) GTEST_SKIP() << "this is no Hopper, or a build without its kernels";
  }
  const Backend* backend_ = nullptr;
};

TEST_F(SharedKeys, of_one_head_are_those_of_grouped_heads) {
  Placed on("forward bf16 b2 h4 q200 k300 d64 causal | seed=2 used_q", 0);
  ASSERT_EQ(on.plan_for(*backend_, gpu_).message, "");
  for (const Role r : {Role::k, Role::v}) on.args()[r].stride.head = 0;
  ASSERT_TRUE(on.fits());
  const Written shared = on.fresh(stream_.get());
  Plan grouped;
  const Problem p = case_of("forward bf16 b2 h4/1 q200 k300 d64 causal").problem;
  ASSERT_EQ(plan_on(*backend_, p, gpu_, grouped).message, "");
  for (const Role r : {Role::k, Role::v}) on.args()[r].extent.head = 1;
  on.reset(stream_.get());
  ASSERT_EQ(backend_->run(grouped, on.args(), {on.scratch()}, stream_.get()).message, "");
  EXPECT_EQ(on.results(stream_.get()), shared);
}

TEST_F(SharedKeys, of_one_sequence_are_those_of_one_row_of_a_cache) {
  Placed on("forward bf16 b3 h2 q200 k300 d128 causal | seed=2 cache shared", 0);  // all use row 1
  ASSERT_EQ(on.plan_for(*backend_, gpu_).message, "");
  const Written one_row = on.fresh(stream_.get());
  for (const Role r : {Role::k, Role::v}) {
    Tensor& t = on.args()[r];
    t.data = row_address(t, 1, 0, 0), t.stride.batch = 0;
  }
  ASSERT_TRUE(on.fits());
  EXPECT_EQ(on.fresh(stream_.get()), one_row);
}

TEST_F(SharedKeys, by_keys_but_not_by_values_are_the_next_links) {
  Placed on("forward bf16 b2 h4 q200 k300 d64 causal", 0);
  ASSERT_EQ(on.plan_for(*backend_, gpu_).message, "");
  EXPECT_TRUE(on.fits());
  on.args()[Role::k].stride.head = 0;
  EXPECT_FALSE(on.fits());
}

}  // namespace
}  // namespace attune
