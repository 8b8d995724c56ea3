// SPDX-License-Identifier: Apache-2.0
// Guarantees of dilated attention, on the CPU and on a GPU if there is one: it equals plain attention where it should,
// and its parameters have their documented effect. `attune parity` checks correctness everywhere.
#include "tests/runs.h"
#include "variants/dilated/shape.h"

namespace attune {
namespace {

// Calls f(element of a, element of b) for every element of a role in both results.
template <class F>
void each_pair(const Ran& a, const Ran& b, Role r, F f) {
  a.got.of(r).each([&](int x, int s, int h, int d) { f(a.at(r, x, s, h, d), b.at(r, x, s, h, d)); });
}

TEST(Dilated, one_segment_of_rate_1_is_plain_attention) {
  for (const Device& device : devices())
    for (const std::string_view dtype : {"f32", "bf16"})
      for (const std::string_view mask : {"full", "causal"})
        for (const std::string_view mode : {"longnet", "headgroup"}) {
          const std::string sizes = join(dtype, " b2 h4/2 q131 k131 d64 ", mask);
          const std::string as = join(" : dilated mode=", mode, " rates=1 segments=131");
          const Ran f(join("forward ", sizes, as), device), f_plain(join("forward ", sizes), device);
          for (const Role r : {Role::out, Role::lse})
            each_pair(f, f_plain, r, [](double x, double y) { ASSERT_EQ(x, y); });
          const Ran b(join("backward ", sizes, as), device), b_plain(join("backward ", sizes), device);
          for (const Role r : {Role::dq, Role::dk, Role::dv})
            each_pair(b, b_plain, r, [&](double x, double y) {
              ASSERT_NEAR(x, y, dtype == "f32" ? 1e-5 : 0.05 * std::fmax(1, std::fabs(y)));
            });
        }
}

TEST(Dilated, segment_beyond_the_end_is_the_sequence) {
  for (const Device& device : devices()) {
    const Ran a("forward f32 b1 h4 q50 k50 d16 causal : dilated rates=1,3 segments=16,50", device);
    const Ran b("forward f32 b1 h4 q50 k50 d16 causal : dilated rates=1,3 segments=16,5000", device);
    for (const Role r : {Role::out, Role::lse}) each_pair(a, b, r, [](double x, double y) { ASSERT_EQ(x, y); });
  }
}

TEST(Dilated, a_key_of_two_branches_counts_twice) {
  for (const Device& device : devices()) {
    const std::string_view sizes = "forward f32 b2 h3 q40 k40 d16 causal : dilated ";
    const Ran once(join(sizes, "rates=2 segments=20"), device);
    const Ran twice(join(sizes, "rates=2,2 segments=20,20"), device);
    each_pair(once, twice, Role::out, [](double x, double y) { ASSERT_NEAR(x, y, 1e-6); });
    each_pair(once, twice, Role::lse, [](double x, double y) {
      ASSERT_TRUE(x == y || std::fabs(x + std::log(2.) - y) < 1e-5) << x << " " << y;
      ASSERT_EQ(x == y, std::isinf(x));
    });
    const Ran sum(join(sizes, "norm=none rates=2,2 segments=20,20"), device);
    each_pair(once, sum, Role::out, [](double x, double y) { ASSERT_NEAR(2 * x, y, 1e-6); });
    const Ran mean(join(sizes, "norm=divide rates=2,2 segments=20,20"), device);
    each_pair(once, mean, Role::out, [](double x, double y) { ASSERT_NEAR(x, y, 1e-6); });
  }
}

// The slow, obvious method: dense attention over all keys, with the log of each key's multiplicity as bias.
TEST(Dilated, is_dense_attention_with_a_bias) {
  for (const Device& device : devices()) {
    const std::string sizes = "f32 b2 h4/2 q60 k60 d16";
    const std::string as = " : dilated rates=1,2,3 segments=8,20,60";
    const Ran f(join("forward ", sizes, " causal", as), device);
    const Case dense = case_of(join("forward ", sizes, " full bias"));
    World world(dense.problem, dense.variation);
    const Dilated d = dilated_of(f.world->problem);
    const Tensor& bias = world.args[Role::bias];
    ASSERT_EQ(bias.extent.dim, 60);
    for (int b = 0; b < bias.extent.batch; ++b)
      for (int i = 0; i < 60; ++i)
        for (int h = 0; h < bias.extent.head; ++h)
          for (int j = 0; j < 60; ++j) {
            int often = 0;
            for (int n = 0; n < 3; ++n) {
              const int w = d.segment[n], r = d.rate[n];
              often += i / w == j / w && i % w % r == h % r && j % w % r == h % r && j <= i;
            }
            store(bias, b, i, h, j, std::log(double(often)));
          }
    Outputs got = world.outputs(false);
    ASSERT_EQ(run_on(device, world, got).message, "");
    ASSERT_EQ(load(world.args[Role::k], 1, 7, 1, 3), load(f.world->args[Role::k], 1, 7, 1, 3));
    for (const Role r : {Role::out, Role::lse})
      f.got.of(r).each([&](int b, int s, int h, int x) {
        ASSERT_NEAR(f.at(r, b, s, h, x), load(got.args[r], b, s, h, x), 1e-5);
      });
  }
}

TEST(Dilated, rows_that_no_branch_has_are_0_and_have_no_keys) {
  for (const Device& device : devices()) {
    const Ran f("forward f32 b1 h2 q21 k21 d16 full : dilated rates=3 segments=7", device);
    const Ran b("backward f32 b1 h2 q21 k21 d16 full : dilated rates=3 segments=7", device);
    for (int h = 0; h < 2; ++h)
      for (int s = 0; s < 21; ++s) {
        const bool has = s % 7 % 3 == h;
        EXPECT_EQ(std::isfinite(f.at(Role::lse, 0, s, h)), has);
        EXPECT_EQ(f.at(Role::out, 0, s, h) != 0, has);
        for (const Role r : {Role::dq, Role::dk, Role::dv}) {
          EXPECT_TRUE(has || b.at(r, 0, s, h) == 0);
        }
      }
  }
}

TEST(Dilated, head_groups_divide_by_how_many_there_are) {
  for (const Device& device : devices()) {
    const std::string_view sizes = "forward f32 b1 h5 q30 k30 d16 causal : dilated mode=headgroup ";
    const Ran whole(join(sizes, "norm=none rates=1,2 segments=10,30"), device);
    const Ran joined(join(sizes, "norm=lse rates=1,2 segments=10,30"), device);
    const Ran half(join(sizes, "norm=divide rates=1,2 segments=10,30"), device);
    each_pair(whole, joined, Role::out, [](double x, double y) { ASSERT_EQ(x, y); });
    each_pair(whole, half, Role::out, [](double x, double y) { ASSERT_EQ(x, 2 * y); });
    // Three heads have the first branch, two the second with offset 1.
    for (int h = 0; h < 5; ++h)
      for (int s = 0; s < 30; ++s) EXPECT_EQ(std::isfinite(whole.at(Role::lse, 0, s, h)), h < 3 || s % 2 == 1);
  }
}

TEST(Dilated, what_comes_later_changes_nothing) {
  for (const Device& device : devices()) {
    const Case c = case_of("forward bf16 b1 h6 q90 k90 d16 causal : dilated rates=1,2,3 segments=16,32,90");
    World world(c.problem, c.variation);
    Outputs before = world.outputs(false), after = world.outputs(false);
    ASSERT_EQ(run_on(device, world, before).message, "");
    constexpr int kSeen = 37;
    for (const Role r : {Role::q, Role::k, Role::v})
      for (int s = kSeen; s < 90; ++s)
        for (int h = 0; h < 6; ++h) store(world.args[r], 0, s, h, s % 16, 5);
    ASSERT_EQ(run_on(device, world, after).message, "");
    int changed = 0;
    for (int s = 0; s < 90; ++s)
      for (int h = 0; h < 6; ++h) {
        const bool same = load(before.args[Role::out], 0, s, h, 0) == load(after.args[Role::out], 0, s, h, 0) &&
                          load(before.args[Role::lse], 0, s, h, 0) == load(after.args[Role::lse], 0, s, h, 0);
        ASSERT_TRUE(same || s >= kSeen) << s << " " << h;
        changed += !same;
      }
    EXPECT_GT(changed, 100);
  }
}

TEST(Dilated, detached_gradients_differ_where_branches_share) {
  for (const Device& device : devices()) {
    const auto differ = [&](std::string_view branches) {
      const std::string_view sizes = "backward f32 b1 h4 q40 k40 d16 causal : dilated ";
      const Ran a(join(sizes, branches), device), b(join(sizes, "gradient=detached ", branches), device);
      double most = 0;
      each_pair(a, b, Role::dq, [&](double x, double y) { most = std::fmax(most, std::fabs(x - y)); });
      return most;
    };
    EXPECT_LT(differ("rates=2 segments=20"), 1e-6);
    EXPECT_GT(differ("rates=1,2 segments=10,40"), 1e-2);
  }
}

TEST(Dilated, an_empty_sequence_is_no_work) {
  const Problem p = problem("forward f32 b1 h2 q8 k8 d16 full : dilated rates=1,2 segments=4,8");
  Owned t(DType::f32, {1, 0, 2, 16}), lse(DType::f32, {1, 0, 2, 1});
  Args a;
  for (const Role r : {Role::q, Role::k, Role::v, Role::out}) a[r] = t.t;
  a[Role::lse] = lse.t;
  Plan plan;
  ASSERT_EQ(Planner{.device = this_cpu()}.plan(p, plan).message, "");
  std::vector<std::byte> memory(plan.workspace_bytes + 256);
  EXPECT_EQ(plan.backend->run(plan, a, {memory.data()}, nullptr).message, "");
}

// Sums in a wider type than the output exist for one chunk of rows at a time.
TEST(Dilated, chunks_change_nothing) {
  const Backend& dilated = *find_backend("dilated");
  int cut = 0;
  for (const Device& device : devices())
    for (const std::string_view line :
         {"forward bf16 b2 h4 q95 k95 d16 causal : dilated rates=1,2,3 segments=8,24,48",
          "forward f16 b2 h4/2 q95 k95 d16 full : dilated rates=2,3 segments=20,95",
          "forward bf16 b1 h4 q95 k95 d16 causal : dilated norm=divide rates=1,3 segments=20,95 | seed=3",
          "backward bf16 b2 h4 q95 k95 d16 causal : dilated rates=1,2,3 segments=8,24,48 | d_lse",
          "backward bf16 b2 h4/2 q95 k95 d16 full : dilated rates=2,3 segments=10,20",
          "backward f32 b1 h4 q95 k95 d16 causal : dilated gradient=detached rates=1,3 segments=20,40 | d_lse",
          "backward bf16 b1 h4 q95 k95 d16 causal : dilated norm=none rates=1,3 segments=20,40 | seed=3"}) {
      Trial trial(case_of(line));
      ASSERT_EQ(trial.prepare().message, "");
      for (const int64_t least : {1, 4000, 9000, 20000}) {
        Plan plan{.backend = &dilated, .problem = trial.world.problem, .device = device};
        ASSERT_EQ(shape_dilated(plan, {.device = device}, least).message, "");
        cut += plan.tile_q < 95;
        Outputs got = trial.world.outputs(false);
        ASSERT_EQ(run_plan(plan, trial.world, got).message, "");
        const Outcome o = trial.judge(got);
        EXPECT_NE(o.verdict, Verdict::fail) << line << ", " << plan.tile_q << " rows at a time: " << o.why;
      }
    }
  EXPECT_GT(cut, 15);
}

size_t between_bytes(const Problem& p) {
  Workspace count;
  carve_dilated(count, p, DilatedShape(p), {});
  return count.used;
}

// A part only has its own problem, and a step has none: their errors are reported as errors of the whole.
TEST(Compositions, an_error_of_a_part_names_the_whole) {
  const auto fall = [](const Plan&, const Args&, Workspace, Stream) {
    return Status::failure(Code::device, "nsa_lengths: fell");
  };
  const Backend broken{.name = "broken", .supports = nullptr, .shape = nullptr, .run = fall};
  for (const auto& [who, line] :
       {std::pair{"dilated", "forward f32 b1 h2 q20 k20 d16 causal : dilated rates=1,2 segments=10,20"},
        {"nsa", "forward f32 b1 h2 q20 k20 d16 causal : nsa d=4 gate=none l=4 n=4 phi=mean s=4 w=8"},
        {"adaptive", "forward f32 b1 h2 q20 k20 d16 causal : adaptive block=4 density=0.5 hidden=8"},
        {"masked_dense", "forward f32 b1 h2 q20 k20 d16 causal blocks4x4x60"}}) {
    const Case c = case_of(line);
    const World world(c.problem, c.variation);
    Plan plan;
    ASSERT_EQ((Planner{.device = this_cpu(), .forced = who}).plan(c.problem, plan).message, "");
    for (Plan& part : plan.sub_plans) part.backend = &broken;
    const Status s = run_plan(plan, world.outputs(false).args);
    EXPECT_EQ(s.message, join(who, ": nsa_lengths: fell, in: ", name(c.problem)));
    EXPECT_EQ(s.code, Code::device);
  }
}

// Dilated attention may take at most 5000 bytes per token at any length, inputs included.
TEST(Dilated, memory_is_a_small_part_of_the_tensors) {
  for (const int tokens : {262144, 1048576})
    for (const std::string_view branches : {"rates=1,2,4,6,12 segments=2048,4096,8192,16384,32768",
                                            "rates=1,2,4 segments=2048,65536,262144", "rates=1,2 segments=1000,7777"}) {
      const Problem p = problem(join("forward f16 b1 h8 q", tokens, " k", tokens, " d64 causal : dilated ", branches));
      const double tensors = 4. * 8 * 64 * 2 + 8 * 4;
      EXPECT_LE(tensors + double(between_bytes(p)) / tokens, 5000) << branches;
    }
}

TEST(Dilated, workspace_is_that_of_a_chunk) {
  const Problem p = problem("forward f16 b2 h8 q262144 k262144 d64 causal : dilated rates=1,2 segments=2048,16384");
  const DilatedShape s(p);
  // A sixth of q, k, v and out: 4096 bytes per token and sequence, 2048 bytes of f32 per row of a chunk.
  const int64_t most = (int64_t(262144) * 2 * 4096 / 6) / (2 * 8 * 64 * 4) / 16384 * 16384;
  EXPECT_LE(s.chunk, most);
  EXPECT_EQ(s.chunk, round_up(ceil_div(262144, ceil_div(262144, most)), 16384));  // as many chunks, about equal
  EXPECT_EQ(between_bytes(p), size_t(s.chunk) * 2 * 8 * (64 * 4 + 4));
  Problem f32 = p;
  f32.dtype.out = DType::f32;
  EXPECT_EQ(between_bytes(f32), size_t(262144) * 2 * 8 * 4);  // only an lse, if none is given
}

}  // namespace
}  // namespace attune
