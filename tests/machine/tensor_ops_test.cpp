// SPDX-License-Identifier: Apache-2.0
#include "machine/tensor_ops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/softmax.h"
#include "verify/world.h"

using namespace attune;

namespace {

constexpr Extents kShape{2, 37, 3, 21};
constexpr DType kFloats[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3};

// Distinct values that every dtype represents exactly.
Owned numbered(DType dtype, const Extents& e, Layout layout, int start = 0) {
  Owned o(dtype, e, layout);
  int n = start;
  o.each([&](int b, int s, int h, int d) { store(o.t, b, s, h, d, double(n++ % 7) - 3); });
  return o;
}

double at(const Tensor& t, int b, int s, int h, int d) {
  const Extents& e = t.extent;
  return load(t, e.batch == 1 ? 0 : b, e.seq == 1 ? 0 : s, e.head == 1 ? 0 : h, d);
}

TEST(TensorOps, fill_writes_every_element_and_nothing_else) {
  for (const DType dtype : kFloats) {
    Owned o(dtype, kShape, Layout::bhsd);
    ASSERT_EQ(fill(o.t, -1.5f, nullptr).message, "");
    o.each([&](int b, int s, int h, int d) { ASSERT_EQ(load(o.t, b, s, h, d), -1.5); });
    EXPECT_TRUE(o.surroundings_intact());
  }
}

TEST(TensorOps, convert_rounds_from_every_dtype_to_every_dtype) {
  for (const DType from : kFloats)
    for (const DType to : kFloats) {
      Owned x = numbered(from, kShape, Layout::bshd), y(to, kShape, Layout::bhsd, 3);
      ASSERT_EQ(convert(x.t, y.t, nullptr).message, "");
      y.each([&](int b, int s, int h, int d) { ASSERT_EQ(load(y.t, b, s, h, d), load(x.t, b, s, h, d)); });
      EXPECT_TRUE(y.surroundings_intact());
    }
}

TEST(TensorOps, f64_keeps_all_its_digits) {
  Owned x(DType::f64, {1, 1, 1, 2}), y(DType::f64, {1, 1, 1, 2});
  x.set(std::vector<double>{1 + 0x1p-50, -1 - 0x1p-50});
  ASSERT_EQ(convert(x.t, y.t, nullptr).message, "");
  EXPECT_EQ(load(y.t, 0, 0, 0, 0), 1 + 0x1p-50);
  ASSERT_EQ(add(x.t, y.t, nullptr).message, "");
  EXPECT_EQ(load(y.t, 0, 0, 0, 1), -2 - 0x1p-49);
}

TEST(TensorOps, sums_scale_and_broadcast) {
  for (const Extents e : {kShape, Extents{1, 37, 3, 21}, Extents{2, 1, 3, 21}, Extents{2, 37, 1, 21},
                          Extents{1, 1, 1, 21}}) {
    Owned x = numbered(DType::bf16, e, Layout::bshd), y = numbered(DType::f32, kShape, Layout::bshd, 2);
    const Owned before = numbered(DType::f32, kShape, Layout::bshd, 2);
    if (e.batch == 1) x.t.stride.batch = 999;  // the stride of an axis of length 1 is not used
    if (e.seq == 1) x.t.stride.seq = 999;
    if (e.head == 1) x.t.stride.head = 999;
    ASSERT_EQ(add(x.t, y.t, nullptr).message, "");
    y.each([&](int b, int s, int h, int d) {
      ASSERT_EQ(load(y.t, b, s, h, d), load(before.t, b, s, h, d) + at(x.t, b, s, h, d));
    });
    ASSERT_EQ(scale_add(x.t, 0.5f, y.t, -2.f, nullptr).message, "");
    y.each([&](int b, int s, int h, int d) {
      const double was = load(before.t, b, s, h, d) + at(x.t, b, s, h, d);
      ASSERT_EQ(load(y.t, b, s, h, d), 0.5 * at(x.t, b, s, h, d) - 2 * was);
    });
  }
}

TEST(TensorOps, what_has_the_factor_0_is_not_read) {
  Owned x = numbered(DType::f32, kShape, Layout::bshd), y(DType::f32, kShape), poison(DType::f32, kShape);
  ASSERT_EQ(scale_add(x.t, 2.f, y.t, 0.f, nullptr).message, "");
  ASSERT_EQ(scale_add(poison.t, 0.f, y.t, 1.f, nullptr).message, "");
  y.each([&](int b, int s, int h, int d) { ASSERT_EQ(load(y.t, b, s, h, d), 2 * load(x.t, b, s, h, d)); });
}

TEST(TensorOps, merge_is_one_softmax_over_both_parts) {
  const Extents row{kShape.batch, kShape.seq, kShape.head, 1};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Owned part = numbered(dtype, kShape, Layout::bhsd), out = numbered(DType::f32, kShape, Layout::bshd, 4);
    const Owned before = numbered(DType::f32, kShape, Layout::bshd, 4);
    Owned lse_part = numbered(DType::f32, row, Layout::bshd, 1), lse = numbered(DType::f32, row, Layout::bhsd, 3);
    const Owned lse_before = numbered(DType::f32, row, Layout::bhsd, 3);
    ASSERT_EQ(merge(part.t, lse_part.t, out.t, lse.t, nullptr).message, "");
    out.each([&](int b, int s, int h, int d) {
      const double p = std::exp(load(lse_part.t, b, s, h, 0)), r = std::exp(load(lse_before.t, b, s, h, 0));
      ASSERT_NEAR(load(lse.t, b, s, h, 0), std::log(p + r), 1e-6);
      const double sum = p * load(part.t, b, s, h, d) + r * load(before.t, b, s, h, d);
      ASSERT_NEAR(load(out.t, b, s, h, d), sum / (p + r), 1e-6);
    });
    EXPECT_TRUE(out.surroundings_intact() && lse.surroundings_intact());
  }
}

TEST(TensorOps, a_side_without_keys_is_not_read_by_merge) {
  const Extents e{1, 3, 1, 8}, row{1, 3, 1, 1};
  Owned part(DType::f32, e), out(DType::f32, e), lse_part(DType::f32, row), lse(DType::f32, row);
  lse_part.set(std::vector<double>{1, -INFINITY, -INFINITY});
  lse.set(std::vector<double>{-INFINITY, 2, -INFINITY});
  for (int d = 0; d < 8; ++d) store(part.t, 0, 0, 0, d, 5), store(out.t, 0, 1, 0, d, 6);  // the others are poison
  ASSERT_EQ(merge(part.t, lse_part.t, out.t, lse.t, nullptr).message, "");
  const double wanted[] = {5, 6, 0}, wanted_lse[] = {1, 2, -INFINITY};
  out.each([&](int, int s, int, int d) { ASSERT_EQ(load(out.t, 0, s, 0, d), wanted[s]); });
  for (int s = 0; s < 3; ++s) EXPECT_EQ(load(lse.t, 0, s, 0, 0), wanted_lse[s]);
}

TEST(TensorOps, merge_without_out_is_of_lse_alone) {
  const Extents row{2, 5, 3, 1};
  Owned part = numbered(DType::f32, row, Layout::bshd), lse = numbered(DType::f32, row, Layout::bhsd, 2);
  const Owned before = numbered(DType::f32, row, Layout::bhsd, 2);
  ASSERT_EQ(merge({}, part.t, {}, lse.t, nullptr).message, "");
  lse.each([&](int b, int s, int h, int) {
    const double p = std::exp(load(part.t, b, s, h, 0)), r = std::exp(load(before.t, b, s, h, 0));
    ASSERT_NEAR(load(lse.t, b, s, h, 0), std::log(p + r), 1e-6);
  });
}

TEST(TensorOps, a_tensor_is_scaled_in_place) {
  Owned x = numbered(DType::bf16, kShape, Layout::bshd);
  const Owned before = numbered(DType::bf16, kShape, Layout::bshd);
  ASSERT_EQ(scale_add(x.t, 0.5f, x.t, 0.f, nullptr).message, "");
  x.each([&](int b, int s, int h, int d) { ASSERT_EQ(load(x.t, b, s, h, d), load(before.t, b, s, h, d) / 2); });
}

TEST(TensorOps, empty_tensors_are_no_work) {
  Owned x(DType::f32, {1, 0, 3, 4}), row(DType::f32, {1, 0, 3, 1});
  EXPECT_TRUE(fill(x.t, 1.f, nullptr).ok());
  EXPECT_TRUE(add(x.t, x.t, nullptr).ok());
  EXPECT_TRUE(merge(x.t, row.t, x.t, row.t, nullptr).ok());
}

TEST(TensorOps, mistakes_are_sentences) {
  Owned x(DType::f32, {2, 5, 3, 4}), y(DType::f32, {2, 4, 3, 4}), n(DType::i32, {2, 4, 3, 4});
  Owned row(DType::f32, {2, 4, 3, 1}), half(DType::bf16, {2, 4, 3, 4});
  EXPECT_EQ(add(x.t, y.t, nullptr).message, "scale_add: extents [2, 5, 3, 4] do not cover [2, 4, 3, 4]");
  EXPECT_EQ(add(n.t, y.t, nullptr).message, "scale_add: dtype i32 is not a floating-point type");
  EXPECT_EQ(convert(y.t, n.t, nullptr).message, "scale_add: dtype i32 is not a floating-point type");
  EXPECT_EQ(fill(n.t, 0.f, nullptr).message, "fill: dtype i32 is not a floating-point type");
  EXPECT_EQ(merge(y.t, y.t, y.t, row.t, nullptr).message, "merge: extents [2, 4, 3, 4] do not cover [2, 4, 3, 1]");
  EXPECT_EQ(merge(y.t, row.t, half.t, row.t, nullptr).message,
            "merge: out bf16, lse f32 and f32 given; all must be f32");
  Tensor there = y.t;
  there.device = DeviceKind::cuda;
  EXPECT_EQ(add(there, y.t, nullptr).message, "scale_add: the tensors are on different devices");
}

}  // namespace
