// SPDX-License-Identifier: Apache-2.0
// Append on a GPU with wrong integers in device memory. They are not checked during a call, so the kernel itself must
// skip rows that have no place.
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

class Append : public OnGpu {
 protected:
  // Compares the cache after a run in which every number of a role was changed.
  void untouched(const char* line, Role r, int64_t value) {
    for (const Backend* b : takers(case_of(line).problem, gpu_)) {
      SCOPED_TRACE(join(b->name, ": ", line, ", ", name(r), " = ", value));
      Placed on(line, 0);
      ASSERT_EQ(on.plan_for(*b, gpu_).message, "");
      if (!on.fits()) continue;
      on.reset(stream_.get());
      const Written before = on.results(stream_.get(), {Role::k, Role::v});
      ASSERT_EQ(on.run(stream_.get()).message, "");
      EXPECT_NE(on.results(stream_.get(), {Role::k, Role::v}), before) << "a right run appends";
      on.reset(stream_.get());
      ASSERT_TRUE(on.change(r, [=](int64_t, int) { return value; }, stream_.get()));
      ASSERT_EQ(on.run(stream_.get()).message, "");
      EXPECT_EQ(on.results(stream_.get(), {Role::k, Role::v}), before) << "something was written";
      ++runs_;
    }
  }
  int runs_ = 0;
};

TEST_F(Append, wrong_numbers_write_nothing) {
  const char* linear = "forward bf16 b3 h4/2 q2 k70 d64 causal append rotary | seed=2 cache";
  const char* paged = "forward f16 b3 h4/2 q2 k70 d64 causal append rotary_half paged16 | seed=2 cache";
  for (const int64_t used : {int64_t(INT32_MAX), int64_t(INT32_MIN), int64_t(-1), int64_t(75), int64_t(80)}) {
    if (used != 75) untouched(paged, Role::used_k, used);  // 75 of 80 keys: the last page has space
    untouched(linear, Role::used_k, used);
  }
  for (const int64_t place : {int64_t(INT32_MAX), int64_t(INT32_MIN), int64_t(-1), int64_t(1000)}) {
    untouched(linear, Role::cache_index, place);
    untouched(paged, Role::page_table, place);
  }
  EXPECT_GT(runs_, 0);
}

}  // namespace
}  // namespace attune
