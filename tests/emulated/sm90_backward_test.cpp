// SPDX-License-Identifier: Apache-2.0
// The kernels of sm90/backward/kernel.h on the emulator, compared with attention in double, each case at one schedule;
// the matrix test has all of them. Covers transposed tiles, persistent CTAs that prepare later heads, and head splits
// with the kernel that combines dK and dV. Each kernel runs in one dtype, which changes none of its steps.
#include "tests/emulated/backward_problem.h"

namespace attune::sm90 {
namespace {

TEST(Sm90Backward, turned_tiles_are_right) {
  expect_right<Transposed<Bf16>>({1, 2, 2, 1, 300, 300, 128, kCausal, false, 2}, 1);
  expect_right<Transposed<Bf16>>({2, 2, 1, 1, 170, 290, 104, kCausal, true, 2}, 2);
  expect_right<Transposed<Bf16>>({1, 1, 1, 1, 250, 129, 128, kFull}, 3);
  expect_right<Transposed<Bf16>>({1, 1, 1, 1, 200, 200, 120, kTopLeft}, 4);
  expect_right<Transposed<Bf16>>({1, 1, 1, 1, 330, 270, 128, kWindow}, 5);
}
// Tiles of several lengths, including a single step; more and fewer than a CTA has slots for; GQA.
TEST(Sm90Backward, blocks_that_take_tiles_from_a_counter_are_right) {
  expect_right<Persistent<Bf16, 64, 128>>({1, 2, 2, 1, 400, 400, 64, kCausal, false, 2, 2}, 1);
  expect_right<Persistent<Bf16, 64, 128>>({2, 2, 1, 1, 170, 290, 40, kFull, true, 1, 2}, 2);
  expect_right<Persistent<Bf16, 64, 128>>({1, 1, 1, 1, 600, 300, 64, kWindow, false, 1, 1}, 3);
  expect_right<Persistent<F16, 128, 64>>({1, 2, 2, 1, 260, 260, 128, kCausal, false, 2, 2}, 4);
  expect_right<Persistent<F16, 128, 64>>({2, 2, 1, 1, 70, 290, 104, kFull, true, 1, 1}, 5);
  expect_right<Persistent<F16, 128, 64>>({1, 1, 1, 1, 300, 260, 128, kWindow, false, 1, 1}, 8);
  expect_right<Persistent<F16, 128, 64>>({1, 1, 1, 1, 64, 65, 128, kNarrow, false, 1, 1},
                                          10);  // all but one pair hidden
  expect_right<Persistent<F16, 128, 64>>({1, 1, 1, 1, 64, 129, 128, kNarrow, false, 1, 1}, 11);
  expect_right<Persistent<Bf16, 128, 80>>({1, 2, 2, 1, 300, 300, 128, kCausal, false, 2, 2}, 6);
  expect_right<Persistent<Bf16, 128, 80>>({2, 2, 1, 1, 100, 290, 104, kFull, true, 1, 1}, 7);
  expect_right<Persistent<Bf16, 128, 80>>({1, 2, 2, 1, 300, 260, 128, kWindow, false, 1, 1}, 9);
}
// The first heads are preprocessed, the others by idle warps: head dims below the kernel's, rows that see no key, tiles
// that start before their head is ready.
TEST(Sm90Backward, idle_warps_prepare_heads_to_come) {
  expect_right<Persistent<Bf16, 64, 128>>({2, 2, 2, 1, 170, 150, 40, kCausal, true, 1, 2, 1, Asked::d_lse}, 1);
  expect_right<Persistent<Bf16, 64, 128>>({1, 3, 3, 1, 140, 200, 64, kFull, false, 1, 1, 1}, 2);
  expect_right<Persistent<F16, 128, 64>>({1, 3, 3, 1, 150, 130, 104, kCausal, false, 1, 1, 1, Asked::d_lse}, 3);
  expect_right<Persistent<F16, 128, 64>>({1, 4, 4, 1, 100, 140, 128, kWindow, true, 1, 2, 2}, 4);
  expect_right<Persistent<Bf16, 128, 80>>({1, 3, 3, 1, 170, 150, 128, kCausal, false, 1, 1, 1, Asked::d_lse}, 5);
  expect_right<Persistent<Bf16, 128, 80>>({2, 2, 2, 1, 90, 140, 112, kFull, true, 1, 2, 1}, 6);
}
// The CTA starts to check for large logits before these heads are ready.
TEST(Sm90Backward, far_rows_of_heads_to_come_are_known_in_time) {
  expect_right<Persistent<Bf16, 64, 128>>({1, 3, 3, 1, 140, 130, 64, kFull, false, 1, 1, 1, Asked::large_logits}, 1);
  expect_right<Persistent<F16, 128, 64>>({1, 3, 3, 1, 100, 130, 128, kFull, true, 1, 1, 2, Asked::large_logits}, 2);
  expect_right<Persistent<Bf16, 128, 80>>({1, 3, 3, 1, 100, 130, 128, kFull, false, 1, 2, 1, Asked::large_logits}, 3);
}
TEST(Sm90Backward, gradients_of_divided_heads_are_right) {
  expect_right<HeadSplit<Bf16, 128>>({1, 2, 1, 2, 130, 130, 128, kCausal, false, 2}, 1);
  expect_right<HeadSplit<Bf16, 128>>({2, 4, 2, 2, 70, 150, 104, kFull, true}, 2);
  expect_right<HeadSplit<Bf16, 128>>({1, 6, 1, 3, 90, 64, 80, kWindow}, 3);
  expect_right<HeadSplit<Bf16, 64>>({2, 4, 1, 2, 130, 140, 64, kCausal, true, 4}, 4);
  expect_right<HeadSplit<Bf16, 64>>({1, 4, 2, 2, 60, 260, 40, kCausal, false, 4}, 5);
}
TEST(Sm90Backward, divided_heads_by_blocks_that_stay_are_right) {
  expect_right<PersistentHeadSplit<F16>>({1, 4, 1, 2, 190, 260, 128, kCausal, false, 2, 2}, 33);
  expect_right<PersistentHeadSplit<F16>>({2, 6, 2, 3, 100, 150, 104, kFull, true, 1, 3}, 34);
  expect_right<PersistentHeadSplit<F16>>({1, 8, 2, 2, 170, 150, 128, kCausal, false, 1, 2, 4, Asked::d_lse}, 35);
}
TEST(Sm90Backward, keys_that_nobody_sees_have_gradients_of_zero) {
  expect_right<HeadSplit<Bf16, 128>>({1, 2, 1, 2, 60, 300, 128, kTopLeft, false, 2}, 6);
  expect_right<HeadSplit<Bf16, 64>>({1, 2, 1, 2, 60, 300, 64, kTopLeft}, 7);
}
TEST(Sm90Backward, a_fixed_order_is_right) {
  expect_right<HeadSplit<Bf16, 128, true>>({1, 4, 2, 2, 130, 260, 128, kCausal, false, 2}, 8);
  expect_right<HeadSplit<F16, 64, true>>({1, 4, 1, 4, 140, 200, 64, kCausal, true, 4}, 9);
  expect_right<Deterministic<Bf16, 96>>({1, 2, 2, 1, 200, 300, 96, kCausal, false, 2}, 10);
  expect_right<Deterministic<Bf16, 96>>({2, 2, 1, 1, 90, 260, 72, kFull, true}, 11);
  expect_right<Deterministic<Bf16, 128>>({1, 2, 2, 1, 150, 300, 128, kWindow, false, 2}, 12);
  expect_right<Deterministic<Bf16, 64>>({1, 2, 1, 1, 150, 270, 40, kCausal, true}, 13);
  expect_right<Deterministic<Bf16, 64>>({1, 1, 1, 1, 300, 140, 64, kCausal}, 14);  // rows that see no key
}
// Lists: both block sizes, blocks cut by a band, key blocks in no list, later heads prepared by idle warps, query
// splits of which some are empty, and long tiles, which start first.
TEST(Sm90Backward, lists_by_blocks_that_stay_are_right) {
  expect_right<PersistentListed<Bf16>>(list({1, 2, 2, 1, 512, 384, 128, kFull, false, 1, 2}, 128, 0.5), 1);
  expect_right<PersistentListed<Bf16>>(list({2, 2, 2, 1, 300, 290, 104, kFull, true, 1, 2}, 64, 0.4), 2);
  expect_right<PersistentListed<Bf16>>(list({1, 2, 2, 1, 400, 400, 128, kCausal, false, 2, 3}, 64, 0.6), 3);
  expect_right<PersistentListed<Bf16>>(list({1, 2, 2, 1, 390, 270, 120, kWindow, false, 1, 1}, 128, 0.7), 4);
  expect_right<PersistentListed<Bf16>>(
      list({1, 3, 3, 1, 200, 300, 128, kCausal, false, 1, 2, 1, Asked::d_lse}, 128, 0.5), 5);
  expect_right<PersistentListed<Bf16>>(list({1, 1, 1, 1, 300, 500, 128, kFull, false, 1, 1}, 128, 0.3), 6);
  expect_right<PersistentListed<Bf16>>(
      list({1, 2, 2, 1, 390, 260, 128, kFull, false, 1, 3, 0, Asked::none, 3, 3}, 64, 0.3), 7);
  expect_right<PersistentListed<Bf16>>(list({1, 3, 3, 1, 390, 640, 128, kFull, false, 1, 2}, 128, 0.2, 2), 8);
  expect_right<PersistentListed<Bf16>>(list({2, 2, 2, 1, 300, 500, 104, kFull, true, 1, 3, 1}, 64, 0.2, 3), 9);
  expect_right<PersistentListed<Bf16>>(list({3, 4, 4, 1, 130, 400, 128, kFull, false, 1, 1}, 64, 0.2, 1),
                                       10);  // 48 tiles
}
// The order in which a single CTA loads the key tiles.
template <class C>
std::vector<int> order_of_tiles(Call<C>& call) {
  std::vector<int> order;
  emulated::gpu.loads = [&](const char* data, int row, int head, int batch) {
    const int tile = (batch * call.w.heads + head) * call.tiles + row / C::kTileK;
    if (data == reinterpret_cast<const char*>(call.k.data()) && (order.empty() || order.back() != tile))
      order.push_back(tile);
  };
  EXPECT_EQ(call.run(1), "");
  emulated::gpu.loads = nullptr;
  return order;
}
TEST(Sm90Backward, long_tiles_of_a_list_are_begun_first) {
  Call<PersistentListed<Bf16>> call(list({1, 2, 2, 1, 390, 640, 128, kFull, false, 1, 1}, 128, 0.3, 2), 1);
  std::vector<int> longs, others;
  for (int tile = 0; tile < 2 * call.tiles; ++tile) {
    const int32_t* const begin = call.list_begin.data() + tile + tile / call.tiles;
    (begin[1] - begin[0] > 2 ? longs : others).push_back(tile);
  }
  ASSERT_GT(longs.size(), 1u);
  ASSERT_GT(others.size(), 1u);
  longs.insert(longs.end(), others.begin(), others.end());
  EXPECT_EQ(order_of_tiles(call), longs);
}
// An unchecked list: begins that decrease, or lie before or behind the list.
TEST(Sm90Backward, begins_of_a_list_may_be_any_numbers) {
  for (const int most : {INT32_MAX, 1}) {
    Call<PersistentListed<Bf16>> call(list({1, 2, 2, 1, 130, 384, 128, kFull, false, 1, 2}, 128, 0.5, most), 1);
    call.list_begin = {3, 1, -7, INT32_MAX, INT32_MIN, 5, 2, 1 << 24};
    EXPECT_EQ(call.run(1), "");
  }
}
// Two steps of two warpgroups, with S, dP, dV, dK and dQ each. With a causal mask the second warpgroup sees nothing of
// the first step and computes only dQ.
TEST(Sm90Backward, hidden_products_of_a_tiles_first_step_are_left_out) {
  const auto products = [](const Mask& mask) {
    Call<Persistent<F16, 128, 64>> call({1, 1, 1, 1, 128, 128, 128, mask, false, 1, 1}, 1);
    EXPECT_EQ(call.run(1), "");
    return emulated::gpu.products / 128;
  };
  EXPECT_EQ(products(kFull), 20);
  EXPECT_EQ(products(kCausal), 16);
}
// Key tiles split over CTAs, each with some of the queries.
TEST(Sm90Backward, query_splits_of_a_tile_add_up) {
  expect_right<QuerySplit<Bf16, 64, 128>>({1, 2, 2, 1, 390, 260, 64, kFull, false, 1, 3, 0, Asked::none, 2, 3}, 21);
  expect_right<QuerySplit<F16, 128, 64>>({1, 2, 1, 1, 300, 300, 104, kFull, true, 1, 2, 0, Asked::none, 1, 4}, 22);
  expect_right<QuerySplit<Bf16, 128, 80>>({1, 2, 2, 1, 400, 140, 128, kFull, false, 1, 3, 1, Asked::none, 3, 2}, 23);
  expect_right<QuerySplit<Bf16, 64, 128>>({1, 1, 1, 1, 270, 130, 40, kFull, false, 1, 6, 0, Asked::none, 2, 3}, 24);
  expect_right<QuerySplit<Bf16, 64, 128>>({1, 2, 2, 1, 390, 390, 64, kCausal, false, 2, 3, 0, Asked::none, 4, 2}, 25);
  expect_right<QuerySplit<F16, 128, 64>>({1, 2, 1, 1, 300, 300, 104, kCausal, true, 1, 2, 0, Asked::none, 2, 3}, 26);
  expect_right<QuerySplit<Bf16, 128, 80>>({2, 1, 1, 1, 400, 300, 128, kCausal, false, 2, 4, 0, Asked::none, 4, 3}, 27);
}
TEST(Sm90Backward, blocks_that_take_tiles_in_a_fixed_order_are_right) {
  expect_right<PersistentDeterministic<Bf16, 128>>({1, 2, 2, 1, 200, 300, 128, kCausal, false, 2, 2}, 17);
  expect_right<PersistentDeterministic<Bf16, 128>>({2, 2, 1, 1, 90, 290, 104, kFull, true, 1, 3}, 18);
  expect_right<PersistentDeterministic<Bf16, 128>>({1, 2, 2, 1, 60, 300, 128, kFull, false, 2, 1}, 19);
  expect_right<PersistentDeterministic<Bf16, 128>>({1, 1, 1, 1, 300, 260, 128, kWindow, false, 1, 2}, 20);
  expect_right<PersistentDeterministic<Bf16, 64>>({1, 2, 2, 1, 400, 400, 64, kCausal, false, 2, 2}, 28);
  expect_right<PersistentDeterministic<Bf16, 64>>({2, 2, 1, 1, 170, 290, 40, kFull, true, 1, 3}, 29);
  expect_right<PersistentDeterministic<Bf16, 64>>({1, 2, 2, 1, 100, 390, 64, kFull, false, 2, 1},
                                                  30);  // tiles of one step
  expect_right<PersistentDeterministic<Bf16, 64>>({1, 1, 1, 1, 600, 300, 64, kWindow, false, 1, 2}, 31);
  expect_right<PersistentDeterministic<Bf16, 64>>({1, 5, 5, 1, 140, 100, 56, kFull, true, 1, 2},
                                                 32);  // heads of one tile
}
// More CTAs than key tiles, as when a CTA starts after the others took them all: it must add nothing. At d64 it once
// added the dQ of a step that never ran to the first query tile.
TEST(Sm90Backward, a_block_that_comes_too_late_for_a_tile_adds_nothing) {
  for (unsigned seed = 1; seed < 4; ++seed) {
    expect_right<PersistentDeterministic<Bf16, 64>>({1, 1, 1, 1, 300, 140, 64, kCausal, false, 1, 3}, seed);
    expect_right<PersistentDeterministic<Bf16, 128>>({1, 1, 1, 1, 300, 140, 128, kCausal, false, 1, 3}, seed);
  }
}
// Deterministic dQ sums, at several schedules.
template <class C>
void expect_same_bits(const Asked& w) {
  std::vector<float> once;
  for (unsigned pace = 1; pace < 5; ++pace) {
    Call<C> call(w, 1);
    ASSERT_EQ(call.run(pace), "");
    if (once.empty()) once = call.sums;
    EXPECT_EQ(std::memcmp(once.data(), call.sums.data(), once.size() * sizeof(float)), 0) << pace;
  }
}
TEST(Sm90Backward, a_fixed_order_gives_the_same_bits_at_any_pace) {
  expect_same_bits<PersistentDeterministic<Bf16, 64>>({1, 1, 1, 1, 256, 500, 64, kFull, false, 1, 4});
  expect_same_bits<PersistentDeterministic<Bf16, 128>>({1, 1, 1, 1, 128, 500, 128, kFull, false, 1, 4});
  expect_same_bits<Deterministic<Bf16, 64>>({1, 1, 1, 1, 256, 500, 64, kFull});
}
TEST(Sm90Backward, no_pace_of_warps_and_copies_makes_it_stand_still) {
  for (unsigned seed = 20; seed < 23; ++seed) {
    expect_right<HeadSplit<Bf16, 128>>({1, 2, 1, 2, 130, 130, 128, kCausal}, seed);
    expect_right<Persistent<Bf16, 64, 128>>({1, 1, 1, 1, 130, 390, 64, kFull, false, 1, 1}, seed);
    expect_right<Persistent<F16, 128, 64>>({1, 1, 1, 1, 70, 390, 128, kFull, false, 1, 1}, seed);
    expect_right<Persistent<Bf16, 128, 80>>({1, 1, 1, 1, 90, 390, 128, kFull, false, 1, 1}, seed);
    expect_right<QuerySplit<Bf16, 64, 128>>({1, 1, 1, 1, 390, 130, 64, kFull, false, 1, 2, 0, Asked::none, 2, 2}, seed);
    expect_right<Deterministic<Bf16, 64>>({1, 1, 1, 1, 390, 390, 64, kCausal}, seed);
    expect_right<Deterministic<Bf16, 128>>({1, 1, 1, 1, 200, 390, 128, kFull}, seed);
    expect_right<PersistentDeterministic<Bf16, 128>>({1, 1, 1, 1, 200, 390, 128, kFull, false, 1, 2}, seed);
    expect_right<PersistentDeterministic<Bf16, 64>>({1, 1, 1, 1, 390, 390, 64, kFull, false, 1, 3}, seed);
    expect_right<Persistent<F16, 128, 64>>({1, 1, 1, 1, 260, 260, 128, kCausal, false, 1, 1}, seed);  // hidden steps
    expect_right<PersistentDeterministic<Bf16, 128>>({1, 1, 1, 1, 260, 260, 128, kCausal, false, 1, 2}, seed);
    expect_right<PersistentListed<Bf16>>(list({1, 1, 1, 1, 260, 390, 128, kFull, false, 1, 2}, 64, 0.3, 3), seed);
  }
}

}  // namespace
}  // namespace attune::sm90
