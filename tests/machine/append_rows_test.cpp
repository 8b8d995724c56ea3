// SPDX-License-Identifier: Apache-2.0
#include "machine/append_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "verify/world.h"

using namespace attune;

namespace {

constexpr Extents kShape{2, 5, 3, 7};

Owned numbered(DType dtype, Layout layout) {
  Owned o(dtype, kShape, layout, 3);
  int n = 0;  // no axis has a period of 11
  o.each([&](int b, int s, int h, int d) { store(o.t, b, s, h, d, n++ % 11 - 5); });
  return o;
}

TEST(CopyAll, every_row_arrives_and_nothing_else_is_written) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::e4m3}) {
    const Owned x = numbered(dtype, Layout::bshd), y = numbered(dtype, Layout::bhsd);
    Owned to_x(dtype, kShape, Layout::bhsd, 1), to_y(dtype, kShape, Layout::bshd);
    const Copy all[] = {{x.t, to_x.t}, {y.t, to_y.t}};
    ASSERT_EQ(copy_all(all, nullptr).message, "");
    to_x.each([&](int b, int s, int h, int d) {
      ASSERT_EQ(load(to_x.t, b, s, h, d), load(x.t, b, s, h, d));
      ASSERT_EQ(load(to_y.t, b, s, h, d), load(y.t, b, s, h, d));
    });
    EXPECT_TRUE(to_x.surroundings_intact() && to_y.surroundings_intact());
  }
}

TEST(CopyAll, tensors_that_differ_are_refused) {
  const Owned x = numbered(DType::f32, Layout::bshd);
  Owned other(DType::bf16, kShape), shorter(DType::f32, {2, 4, 3, 7});
  EXPECT_NE(copy_all(std::vector<Copy>{{x.t, other.t}}, nullptr).message.find("dtype"), std::string::npos);
  EXPECT_EQ(copy_all(std::vector<Copy>{{x.t, shorter.t}}, nullptr).message,
            "copy: the extents of source and destination differ");
  Tensor there = x.t;
  there.device = DeviceKind::cuda;
  EXPECT_EQ(copy_all(std::vector<Copy>{{x.t, there}}, nullptr).message, "copy: the tensors are on different devices");
  EXPECT_EQ(copy_all({}, nullptr).message, "");
}

}  // namespace
