// SPDX-License-Identifier: Apache-2.0
// Guarantees of attention over block lists for every backend, on the CPU and on cuda:0 if present. All blocks give full
// attention; a row has one softmax over all its blocks; the future does not reach the past; heads of different kinds do
// not affect each other.
#include <cstring>

#include "tests/runs.h"
#include "variants/blocks/blocks.h"

namespace attune {
namespace {

// The line with a bound for the pattern; "" gives a problem without lists.
Problem with_blocks(std::string_view line, std::string_view text) {
  Problem p = problem(line);
  if (text.empty()) return p;
  Pattern pattern;
  EXPECT_EQ(parse(text, p, pattern).message, "");
  p.mask.blocks.bound = int32_t(std::max<int64_t>(1, bound(pattern, p, p.batch, p.heads_q, true)));
  return p;
}

// A problem with the lists of a pattern, its inputs and the results of one device.
struct Attended {
  World world;
  Outputs got{};

  Attended(std::string_view line, std::string_view text, Variation v = {})
      : world(with_blocks(line, text), v) {
    if (world.problem.pass == Pass::backward) {
      const Args forward = world.forward_result();  // from the reference, once the lists are built
      list(text);
      run_forward(world, forward);
    } else {
      list(text);
    }
  }
  void list(std::string_view text) {
    if (text.empty()) return;
    BlockSource from;
    EXPECT_EQ(parse(text, world.problem, from.pattern).message, "");
    EXPECT_EQ(build_blocks(world.problem, world.args, from, nullptr).message, "");
  }
  Attended& run(const Device& device) {
    got = world.outputs(false);
    EXPECT_EQ(run_on(device, world, got).message, "");
    return *this;
  }
  double at(Role r, int b, int s, int h, int d) const { return load(got.args[r], b, s, h, d); }
};

double apart(const Attended& x, const Attended& y, Role r) {
  double most = 0;
  x.got.of(r).each([&](int b, int s, int h, int d) {
    const double one = x.at(r, b, s, h, d), other = y.at(r, b, s, h, d);
    if (one != other) most = std::max(most, std::fabs(one - other));
  });
  return most;
}

TEST(BlockSparse, all_blocks_active_is_full_attention) {
  for (const Device& device : devices())
    for (const char* mask : {"full", "causal", "window100,30"})
      for (const int length : {1, 31, 33, 65, 300}) {
        SCOPED_TRACE(join(device.name, " ", mask, " ", length));
        const std::string sizes = join(" f32 b2 h4/2 q", length, " k", length, " d64 ", mask);
        Attended listed(join("forward", sizes, " blocks64x64x1"), "dense"), plain(join("forward", sizes), "");
        for (const Role r : {Role::out, Role::lse}) EXPECT_LT(apart(listed.run(device), plain.run(device), r), 1e-5);
        Attended listed_back(join("backward", sizes, " blocks64x64x1"), "dense");
        Attended plain_back(join("backward", sizes), "");
        const Tensor from = plain_back.world.args[Role::d_out], to = listed_back.world.args[Role::d_out];
        for (int n = 0; n < 2 * length * 4 * 64; ++n) {  // drawn after the lists
          const int d = n % 64, h = n / 64 % 4, s = n / 256 % length, b = n / 256 / length;
          store(to, b, s, h, d, load(from, b, s, h, d));
        }
        for (const Role r : {Role::dq, Role::dk, Role::dv})
          EXPECT_LT(apart(listed_back.run(device), plain_back.run(device), r), 2e-5);
      }
}

TEST(BlockSparse, fewer_blocks_are_another_result) {
  for (const Device& device : devices()) {
    const char* line = "forward f32 b1 h2 q512 k512 d64 full blocks64x64x1";
    Attended all(line, "dense"), most(line, "random density=0.9 seed=1"), half(line, "random density=0.5 seed=1");
    all.run(device), most.run(device), half.run(device);
    EXPECT_GT(apart(all, most, Role::out), 1e-3);
    EXPECT_GT(apart(most, half, Role::out), 1e-3);
  }
}

// The weights of a row sum to 1 over all its blocks: with values of 1 the result is 1, and 0 for a row without blocks.
TEST(BlockSparse, a_row_has_one_softmax_over_its_blocks) {
  for (const Device& device : devices()) {
    Attended x("forward f32 b1 h3 q256 k256 d64 causal blocks64x64x1", "random density=0.4 seed=5");
    const Tensor v = x.world.args[Role::v];
    for (int j = 0; j < 256; ++j)
      for (int h = 0; h < 3; ++h)
        for (int d = 0; d < 64; ++d) store(v, 0, j, h, d, 1);
    x.run(device);
    int empty = 0;
    for (int i = 0; i < 256; ++i)
      for (int h = 0; h < 3; ++h) {
        const bool none = x.at(Role::lse, 0, i, h, 0) == -INFINITY;
        EXPECT_NEAR(x.at(Role::out, 0, i, h, 7), none ? 0 : 1, 1e-5) << i << " " << h;
        empty += none;
      }
    EXPECT_GT(empty, 0);
    EXPECT_LT(empty, 256 * 3);
  }
}

TEST(BlockSparse, what_comes_after_a_token_changes_nothing_at_or_before_it) {
  for (const Device& device : devices())
    for (const char* text : {"dense", "local_window window=256", "strided stride=2", "random density=0.5 seed=2",
                             "global_local global=64 window=128", "hierarchical", "streaming sink=64 local=128"}) {
      const char* line = "forward f32 b1 h2 q300 k300 d64 causal blocks64x64x1";
      Attended x(line, text), y(line, text);
      constexpr int kFrom = 161;
      for (const Role r : {Role::k, Role::v, Role::q})
        for (int j = kFrom; j < 300; ++j)
          for (int h = 0; h < 2; ++h)
            for (int d = 0; d < 64; ++d) store(y.world.args[r], 0, j, h, d, 3 - load(y.world.args[r], 0, j, h, d));
      x.run(device), y.run(device);
      bool later = false;
      x.got.of(Role::out).each([&](int b, int s, int h, int d) {
        if (s < kFrom) EXPECT_EQ(x.at(Role::out, b, s, h, d), y.at(Role::out, b, s, h, d)) << text << " " << s;
        else later |= x.at(Role::out, b, s, h, d) != y.at(Role::out, b, s, h, d);
      });
      EXPECT_TRUE(later) << text;
    }
}

TEST(BlockSparse, heads_of_different_kinds_are_each_what_they_are_alone) {
  for (const Device& device : devices())
    for (const char* pass : {"forward", "backward"}) {
      const std::string line = join(pass, " f32 b1 h4 q500 k500 d64 causal blocks64x64x1");
      Attended mixed(line, "local_window window=128 kinds=dense,sparse,streaming,sparse sink=64 local=64");
      Attended dense(line, "dense"), local(line, "local_window window=128");
      Attended streaming(line, "streaming sink=64 local=64");
      const Attended* alone[] = {&dense, &local, &streaming, &local};
      for (Attended* x : {&mixed, &dense, &local, &streaming}) x->run(device);
      for (const Role r : mixed.got.roles)
        mixed.got.of(r).each([&](int b, int s, int h, int d) {
          const double x = mixed.at(r, b, s, h, d), y = alone[h]->at(r, b, s, h, d);
          EXPECT_TRUE(x == y || std::fabs(x - y) < 1e-6 * (1 + std::fabs(y))) << h << " " << s << " " << x << " " << y;
        });
    }
}

TEST(BlockSparse, sequences_change_places_with_their_results) {
  for (const Device& device : devices()) {
    const char* line = "forward f32 b2 h2 q200 k200 d64 causal blocks64x64x1";
    Attended x(line, "strided stride=2"), y(line, "strided stride=2");
    for (const Role r : {Role::q, Role::k, Role::v})
      for (int b = 0; b < 2; ++b)
        for (int s = 0; s < 200; ++s)
          for (int h = 0; h < 2; ++h)
            for (int d = 0; d < 64; ++d) store(y.world.args[r], b, s, h, d, load(x.world.args[r], 1 - b, s, h, d));
    x.run(device), y.run(device);
    x.got.of(Role::out).each([&](int b, int s, int h, int d) {
      EXPECT_EQ(x.at(Role::out, b, s, h, d), y.at(Role::out, 1 - b, s, h, d));
    });
  }
}

TEST(BlockSparse, small_and_large_values_stay_finite_and_zeros_give_zeros) {
  for (const Device& device : devices())
    for (const int magnitude : {-4, 0, 4}) {
      Attended x("forward f32 b1 h2 q200 k200 d64 causal blocks64x64x1", "local_window", {.magnitude = magnitude});
      x.run(device);
      x.got.of(Role::out).each([&](int b, int s, int h, int d) {
        EXPECT_TRUE(std::isfinite(x.at(Role::out, b, s, h, d))) << magnitude;
      });
    }
  for (const Device& device : devices()) {
    Attended x("forward f32 b1 h2 q200 k200 d64 causal blocks64x64x1", "local_window");
    for (const Role r : {Role::q, Role::k, Role::v})
      for (int s = 0; s < 200; ++s)
        for (int h = 0; h < 2; ++h)
          for (int d = 0; d < 64; ++d) store(x.world.args[r], 0, s, h, d, 0);
    x.run(device);
    x.got.of(Role::out).each([&](int b, int s, int h, int d) { EXPECT_EQ(x.at(Role::out, b, s, h, d), 0); });
  }
}

TEST(BlockSparse, every_run_gives_the_same_bits) {
  for (const Device& device : devices())
    for (const char* pass : {"forward", "backward"}) {
      const std::string line = join(pass, " f32 b1 h2 q200 k200 d64 causal blocks64x64x1 repro=run");
      Attended x(line, "random density=0.5 seed=1"), first(line, "random density=0.5 seed=1");
      first.run(device);
      for (int n = 0; n < (device.kind == DeviceKind::cpu ? 1000 : 100); ++n) {
        x.run(device);
        for (const Role r : x.got.roles) ASSERT_EQ(x.got.of(r).memory, first.got.of(r).memory) << n;
      }
    }
}

}  // namespace
}  // namespace attune
