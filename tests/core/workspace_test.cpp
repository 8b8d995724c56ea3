// SPDX-License-Identifier: Apache-2.0
// Counting and placing use the same code, so the counted size equals the used size.
#include "core/workspace.h"

#include <gtest/gtest.h>

#include <vector>

using namespace attune;

namespace {

struct Buffers { float* a; double* b; char* c; };
Buffers carve(Workspace& w) { return {w.take<float>(3), w.take<double>(100), w.take<char>(1)}; }

TEST(Workspace, counts_what_it_will_place) {
  Workspace counting;
  const Buffers none = carve(counting);
  EXPECT_TRUE(!none.a && !none.b && !none.c);
  std::vector<std::byte> memory(counting.used);
  Workspace placing{.data = memory.data()};
  const Buffers buffers = carve(placing);
  EXPECT_EQ(placing.used, counting.used);
  EXPECT_EQ(static_cast<void*>(buffers.a), memory.data());
  EXPECT_EQ(static_cast<void*>(buffers.c + 1), memory.data() + counting.used);
}

TEST(Workspace, places_are_256_bytes_aligned_and_do_not_overlap) {
  Workspace counting;
  carve(counting);
  EXPECT_EQ(counting.used, 256u + 1024u + 1u);
  alignas(256) std::byte memory[1281];
  Workspace placing{.data = memory};
  const Buffers buffers = carve(placing);
  EXPECT_EQ(reinterpret_cast<std::byte*>(buffers.b), memory + 256);
  EXPECT_EQ(reinterpret_cast<std::byte*>(buffers.c), memory + 1280);
}

TEST(Workspace, nothing_taken_is_nothing_used) {
  Workspace w;
  w.take<float>(0);
  EXPECT_EQ(w.used, 0u);
}

}  // namespace
