// SPDX-License-Identifier: Apache-2.0
// share_memory compared with every pair of elements, on small layouts of all kinds: nested, interleaved and entangled.
#include "core/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace attune {
namespace {

float memory[4096];

Tensor random_tensor(std::mt19937& random) {
  const auto up_to = [&](int n) { return int(random() % unsigned(n + 1)); };
  Tensor t{.data = memory + up_to(24), .dtype = DType::f32};
  t.extent = {up_to(3), up_to(3) + 1, up_to(3), up_to(3)};
  const auto stride = [&](int extent) { return int64_t(extent == 1 ? 0 : up_to(14)); };
  t.stride = {stride(t.extent.batch), stride(t.extent.seq), stride(t.extent.head)};
  return t;
}

// The addresses of all elements; sets `twice` if two elements share one.
std::set<const float*> elements(const Tensor& t, bool& twice) {
  std::set<const float*> all;
  twice = false;
  for (int b = 0; b < t.extent.batch; ++b)
    for (int s = 0; s < t.extent.seq; ++s)
      for (int h = 0; h < t.extent.head; ++h)
        for (int d = 0; d < t.extent.dim; ++d) twice |= !all.insert(view<float>(t).row(b, s, h) + d).second;
  return all;
}

TEST(Overlap, sharing_is_what_the_elements_say) {
  std::mt19937 random(1);
  int shared = 0, interleaved = 0;
  for (int n = 0; n < 60000; ++n) {
    const Tensor a = random_tensor(random), b = random_tensor(random);
    bool twice;
    const std::set<const float*> in_a = elements(a, twice), in_b = elements(b, twice);
    bool both = false;
    for (const float* p : in_a) both |= in_b.count(p) > 0;
    ASSERT_EQ(share_memory(a, b), both) << "layout " << n;
    Bytes bytes_a, bytes_b;
    ASSERT_TRUE(bytes_of(a, bytes_a) && bytes_of(b, bytes_b));
    shared += both;
    interleaved += !both && bytes_a.meets(bytes_b);
  }
  EXPECT_GT(shared, 1000);
  EXPECT_GT(interleaved, 1000);
}

TEST(Overlap, no_tensor_that_overlaps_itself_is_let_through) {
  std::mt19937 random(2);
  int overlapping = 0, fine = 0;
  for (int n = 0; n < 60000; ++n) {
    const Tensor t = random_tensor(random);
    bool twice;
    elements(t, twice);
    ASSERT_TRUE(!twice || overlaps_itself(t)) << "layout " << n;
    overlapping += twice;
    fine += !overlaps_itself(t);
  }
  EXPECT_GT(overlapping, 1000);
  EXPECT_GT(fine, 1000);
}

TEST(Overlap, every_order_of_compact_axes_is_fine) {
  const Extents e{2, 3, 4, 5};
  Tensor t{.data = memory, .dtype = DType::f32, .extent = e};
  for (const Strides s : {Strides{60, 20, 5}, {60, 5, 15}, {20, 40, 5}, {5, 40, 10}, {15, 5, 30}, {5, 10, 30}}) {
    t.stride = s;
    EXPECT_FALSE(overlaps_itself(t)) << s.batch << " " << s.seq << " " << s.head;
  }
}

TEST(Overlap, slices_of_one_packed_tensor_do_not_share) {
  const auto slice = [](int first_head, int heads) {  // of [2, 8, 12, 4]
    return Tensor{
        .data = memory + first_head * 4, .dtype = DType::f32, .extent = {2, 8, heads, 4}, .stride = {384, 48, 4}};
  };
  EXPECT_FALSE(share_memory(slice(0, 8), slice(8, 2)));
  EXPECT_FALSE(share_memory(slice(8, 2), slice(10, 2)));
  EXPECT_TRUE(share_memory(slice(0, 9), slice(8, 2)));
  EXPECT_TRUE(share_memory(slice(8, 3), slice(10, 2)));
}

TEST(Overlap, entangled_layouts_end_and_count_as_sharing) {
  // Even and odd bytes with coprime strides never coincide, but no short search can prove it.
  const Tensor a{
      .data = memory, .dtype = DType::e4m3, .extent = {60000, 60000, 60000, 1}, .stride = {60002, 60004, 60006}};
  Tensor b = a;
  b.data = reinterpret_cast<char*>(memory) + 1;
  b.stride = {60008, 60010, 60012};
  EXPECT_TRUE(share_memory(a, b));
}

TEST(Overlap, spans_that_leave_memory_are_refused) {
  Bytes bytes;
  Tensor t{.data = memory, .dtype = DType::f64, .extent = {1, 2, 1, 64}, .stride = {0, int64_t(1) << 40, 0}};
  EXPECT_TRUE(bytes_of(t, bytes));
  EXPECT_EQ(bytes.last - bytes.first, (uint64_t(1) << 43) + 512);
  t.stride.seq = int64_t(1) << 53;
  EXPECT_FALSE(bytes_of(t, bytes));
  t.stride.seq = INT64_MAX;
  EXPECT_FALSE(bytes_of(t, bytes));
  t.stride.seq = -64;
  EXPECT_FALSE(bytes_of(t, bytes));
  t.stride.seq = 64, t.extent.batch = -1;
  EXPECT_FALSE(bytes_of(t, bytes));
  t.extent.batch = 1, t.data = reinterpret_cast<void*>(UINTPTR_MAX - 63);
  EXPECT_FALSE(bytes_of(t, bytes));
  t.extent.seq = 0;  // an empty tensor covers no memory
  EXPECT_TRUE(bytes_of(t, bytes));
  EXPECT_EQ(bytes.first, bytes.last);
}

}  // namespace
}  // namespace attune
