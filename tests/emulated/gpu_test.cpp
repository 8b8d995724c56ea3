// SPDX-License-Identifier: Apache-2.0
// Tests of the emulator: a kernel of a few lines for each error it detects, at every kind of schedule. The same kernel
// without the error must pass.
#include <gtest/gtest.h>

#include "tests/emulated/gpu.h"

#include "machine/sm90/barrier.h"
#include "machine/sm90/memory.h"
#include "machine/sm90/tma.h"
#include "machine/sm90/wgmma.h"

namespace attune::sm90 {
namespace {

constexpr uint32_t kTile = 0, kFull = 32768, kEmpty = kFull + 8;

// A warp that repeatedly loads a 64 x 64 tile, and a warpgroup that multiplies it by itself; flags omit single steps.
struct Ring {
  bool waits_empty = true, waits_full = true, waits_product = true, gives_back = true, expects = true;
  int twice = -1;      // round in which it releases the stage twice
  int more_loads = 0;  // loads after the last round
  int rounds = 4;

  std::string run(const emulated::Schedule& schedule) const {
    std::vector<Bf16> numbers(64 * 64, Bf16(1.f));
    const CUtensorMap map{.data = reinterpret_cast<char*>(numbers.data()), .row = 64, .head = 0, .batch = 0,
                          .columns = 64, .rows = 64, .heads = 1, .batches = 1, .box = 64};
    return emulated::launch({1, 256}, schedule, [&] {
      if (threadIdx.x == 0) barrier_init(kFull, 1), barrier_init(kEmpty, 4);
      __syncthreads();
      if (threadIdx.x >= 128) return consume();
      if (threadIdx.x) return;
      for (int n = 0; n < rounds + more_loads; ++n) {
        if (waits_empty && n < rounds) wait(kEmpty, (n & 1) ^ 1);
        if (expects) arrive_expect(kFull, 64 * 128);
        else arrive(kFull);
        load_tile(kTile, map, kFull, 0, 0, 0, 0, Keep::last_to_go);
      }
    });
  }
  void consume() const {
    for (int n = 0; n < rounds; ++n) {
      if (waits_full) wait(kFull, n & 1);
      float d[32];
      begin_products();
      Product<Bf16, 64>::shared(d, operand(kTile, 0), operand(kTile, 0), 0);
      close_products();
      if (waits_product) wait_products<0>();
      for (int again = 0; again < 1 + (n == twice); ++again)
        if (gives_back && threadIdx.x % 32 == 0) arrive(kEmpty);
      if (!waits_product) wait_products<0>();
      if (d[0] != 16.f) emulated::may_not_be("wrong");
    }
  }
};

// Expects one of these messages at every schedule.
template <class Kernel>
void expect_found(const Kernel& kernel, const std::vector<std::string>& sentences) {
  for (unsigned n = 0; n < 20; ++n) {
    const emulated::Schedule schedule = emulated::Schedule::number(n);
    const std::string got = kernel.run(schedule);
    bool found = false;
    for (const std::string& one : sentences) found |= got.find(one) != got.npos;
    EXPECT_TRUE(found) << schedule.name() << ": " << got;
  }
}
template <class Kernel>
void expect_nothing(const Kernel& kernel) {
  for (unsigned n = 0; n < 40; ++n)
    EXPECT_EQ(kernel.run(emulated::Schedule::number(n)), "") << emulated::Schedule::number(n).name();
}

const std::string kReads = "has not waited for", kStill = "all stand still";

TEST(Emulated, a_ring_that_is_right_is_let_pass) { expect_nothing(Ring{}); }
TEST(Emulated, a_place_that_is_loaded_before_it_is_given_back) {
  expect_found(Ring{.waits_empty = false}, {"still read", "still to bring", "one arrival too many"});
  expect_found(Ring{.waits_product = false}, {"a product still reads", "a warp may still read"});
}
TEST(Emulated, a_product_of_what_is_not_there_yet) {
  expect_found(Ring{.waits_full = false}, {kReads, "wrong", "still read"});
}
TEST(Emulated, a_place_that_is_never_given_back) {
  expect_found(Ring{.gives_back = false},
               {"all stand still; block 0 warp 0 lane 0 waits for barrier 32776, which is in phase 0 and lacks 4"});
}
TEST(Emulated, a_place_that_is_given_back_twice) {
  expect_found(Ring{.twice = 1}, {"one arrival too many at barrier 32776", "still read", kReads, kStill});
}
TEST(Emulated, bytes_that_nobody_expects) {
  expect_found(Ring{.expects = false}, {"more bytes than", kReads, "wrong"});
}
TEST(Emulated, a_block_that_ends_before_its_copies) {
  expect_found(Ring{.waits_empty = false, .more_loads = 1, .rounds = 0}, {"before a copy to it"});
}

// A warp that repeatedly writes shared memory for a bulk store to global memory.
struct Store {
  bool publishes = true, waits_read = true, waits_end = true;

  std::string run(const emulated::Schedule& schedule) const {
    std::vector<float> out(256);
    return emulated::launch({1, 32}, schedule, [&] {
      for (int n = 0; n < 3; ++n) {
        if (waits_read && threadIdx.x == 0) wait_stores_read();
        __syncwarp();
        store_shared4(threadIdx.x * 16, 1.f, 2.f, 3.f, 4.f);
        if (publishes) publish_shared();
        __syncwarp();
        if (threadIdx.x == 0) store_floats(out.data(), 0, 512, Keep::last_to_go);
      }
      if (waits_end) wait_stores();
    });
  }
};

TEST(Emulated, stores_that_are_right_are_let_pass) { expect_nothing(Store{}); }
TEST(Emulated, a_place_that_is_written_before_a_store_has_read_it) {
  expect_found(Store{.waits_read = false}, {"a bulk store has not read yet"});
}
TEST(Emulated, what_threads_write_for_a_store_without_a_fence) {
  expect_found(Store{.publishes = false}, {"no fence has published"});
}
TEST(Emulated, a_thread_that_ends_before_its_store_has_read) {
  int found = 0;
  for (unsigned n = 0; n < 20; ++n) {
    const std::string got = Store{.waits_end = false}.run(emulated::Schedule::number(n));
    found += got.find("ends before a bulk") != got.npos;
  }
  EXPECT_GT(found, 5);  // at schedules where copies land at once
}

// Two warps that communicate through shared memory with named barriers.
struct Named {
  int first = 64, second = 64;
  bool meets = true, again = false;

  std::string run(const emulated::Schedule& schedule) const {
    return emulated::launch({1, 64}, schedule, [&] {
      const bool writes = threadIdx.x < 32;
      if (writes) store_shared4(threadIdx.x * 16, 1.f, 1.f, 1.f, 1.f);
      if (meets) named_sync(1, writes ? first : second);
      if (!writes && load_shared4(threadIdx.x % 32 * 16).x != 1.f) emulated::may_not_be("wrong");
      if (again && writes) named_arrive(1, 64), named_arrive(1, 64);
    });
  }
};

TEST(Emulated, a_named_barrier_that_is_right_is_let_pass) { expect_nothing(Named{}); }
TEST(Emulated, a_named_barrier_of_two_counts_or_that_some_come_to_twice) {
  expect_found(Named{.first = 32}, {"is one of", kStill, "another warp writes"});
  expect_found(Named{.second = 96}, {"is one of", kStill});
  expect_found(Named{.again = true}, {"comes twice to named barrier 1"});
}
TEST(Emulated, what_another_warp_has_written_without_word_of_it) {
  int found = 0;
  for (unsigned n = 0; n < 20; ++n) {
    const std::string got = Named{.meets = false}.run(emulated::Schedule::number(n));
    found += got.find("another warp writes") != got.npos || got.find("wrong") != got.npos;
  }
  EXPECT_EQ(found, 20);
}

// A warp that confuses a phase with the one two before it: it skips the second phase and reaches the third too early.
struct Phases {
  bool early = true;

  std::string run(const emulated::Schedule& schedule) const {
    emulated::gpu.phases_once = true;
    const std::string wrong = emulated::launch({1, 64}, schedule, [&] {
      if (threadIdx.x == 0) barrier_init(kFull, 1), barrier_init(kEmpty, 1);
      __syncthreads();
      if (threadIdx.x == 0) {
        arrive(kFull);
        wait(kEmpty, 0);
        arrive(kFull), arrive(kFull);
      }
      if (threadIdx.x == 32) {
        wait(kFull, 0);
        if (!early) arrive(kEmpty), wait(kFull, 1);
        wait(kFull, 0);
        if (early) arrive(kEmpty);
      }
    });
    emulated::gpu.phases_once = false;
    return wrong;
  }
};
TEST(Emulated, a_wait_that_passes_on_the_phase_two_before) {
  expect_found(Phases{}, {"waits for phase 2 of barrier 32768, and passes on phase 0"});
}

}  // namespace
}  // namespace attune::sm90
