// SPDX-License-Identifier: Apache-2.0
#include "core/tensor.h"

#include <gtest/gtest.h>

using namespace attune;

namespace {

struct Numbered {
  float data[2 * 6 * 3 * 2];
  Tensor t{.data = data, .dtype = DType::f32, .extent = {2, 6, 3, 2}, .stride = {36, 6, 2}};
  Numbered() { for (int n = 0; n < 72; ++n) data[n] = float(n); }
};

TEST(Tensor, rows_are_found_by_their_strides) {
  Numbered n;
  EXPECT_EQ(view<float>(n.t).row(1, 4, 2)[1], 36 + 24 + 4 + 1);
  EXPECT_EQ(row_address(n.t, 1, 4, 2), reinterpret_cast<char*>(n.data + 64));
}

TEST(Tensor, axis_of_extent_1_broadcasts) {
  Numbered n;
  const Tensor t{.data = n.data, .dtype = DType::f32, .extent = {1, 6, 1, 2}, .stride = {0, 2, 0}};
  EXPECT_EQ(view<float>(t).row(9, 3, 9)[0], 6);
}

TEST(Tensor, segment_or_dilated_sequence_is_a_view) {
  Numbered n;
  const Tensor every_second = pick_rows(n.t, 1, 3, 2);
  EXPECT_EQ(every_second.extent.seq, 3);
  for (int s = 0; s < 3; ++s) EXPECT_EQ(view<float>(every_second).row(1, s, 2)[0], 36 + (1 + 2 * s) * 6 + 4);
  const Tensor segment = pick_rows(n.t, 2, 4);
  EXPECT_EQ(view<float>(segment).row(0, 3, 0)[0], 5 * 6);
}

TEST(Tensor, head_is_a_view_that_broadcasts) {
  Numbered n;
  const Tensor head = pick_head(n.t, 1);
  EXPECT_EQ(head.extent.head, 1);
  EXPECT_EQ(view<float>(head).row(1, 2, 5)[0], 36 + 12 + 2);
}

}  // namespace
