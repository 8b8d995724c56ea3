// SPDX-License-Identifier: Apache-2.0
// Guarantees beyond correctness: a ring equals one accumulating run per shard; bits do not depend on neighbours,
// repetition or concurrent callers; splits change nothing but rounding.
#include <cstring>
#include <thread>

#include "tests/runs.h"
#include "verify/suite.h"

namespace attune {
namespace {

Status run_on(const Backend& backend, const Device& device, const Problem& p, const Args& args) {
  Plan plan;
  if (Status s = plan_on(backend, p, device, plan); !s.ok()) return s;
  return run_plan(plan, args);
}

const Backend& backend_of(Pass p) { return *find_backend(p == Pass::forward ? "cpu_forward" : "cpu_backward"); }

std::vector<unsigned char> bytes(const Outputs& o) {
  std::vector<unsigned char> all;
  for (const Owned& one : o.owned) all.insert(all.end(), one.memory.begin(), one.memory.end());
  return all;
}

// A ring is one accumulating run per shard of the keys. Dropout and ALiBi depend on positions, and the sink belongs to
// the last shard, so the result equals that of the whole with the same dropout mask.
TEST(conformance, ring_is_accumulate) {
  for (const Place& place : cpu_places()) {
    Trial trial(case_of("forward f32 b1 h2 q192 k192 d64 causal@absolute alibi dropout sink"));
    World& w = trial.world;
    int64_t* at = w.args.row<int64_t>(Role::positions);
    at[0] = at[1] = 1000;
    ASSERT_TRUE(trial.prepare().ok());
    Outputs got = w.outputs(false);
    for (const Owned& o : got.owned)
      o.each([&](int b, int s, int h, int d) {
        store(o.t, b, s, h, d, o.t.data == got.args[Role::lse].data ? -INFINITY : 0);
      });
    for (int rank = 0; rank < 3; ++rank) {
      Problem shard = w.problem;
      shard.len_k = 64;
      shard.set(Option::accumulate);
      if (rank < 2) shard.clear(Option::sink);
      Args args = got.args;
      if (rank < 2) args[Role::sinks] = {};
      at[1] = 1000 + rank * 64;
      for (const Role role : {Role::k, Role::v}) args[role] = pick_rows(w.args[role], rank * 64, 64);
      const Status s = run_on(backend_of(Pass::forward), place.device, shard, args);
      ASSERT_TRUE(s.ok()) << s.message;
    }
    at[1] = 1000;
    const Outcome o = trial.judge(got);
    EXPECT_NE(o.verdict, Verdict::fail) << place.word << ": " << o.why;
  }
}

// The same ring, backward. With out and lse of the whole, every shard computes its part of the gradients. dq
// accumulates over all shards; dk and dv of a shard are complete after all queries have passed.
TEST(conformance, gradients_of_a_ring_are_accumulate) {
  for (const Place& place : cpu_places()) {
    Trial trial(case_of("backward f32 b1 h2 q192 k192 d64 causal@absolute alibi dropout"));
    World& w = trial.world;
    int64_t* at = w.args.row<int64_t>(Role::positions);
    at[0] = at[1] = 1000;
    ASSERT_TRUE(trial.prepare().ok());
    Outputs got = w.outputs(false);
    for (const Owned& o : got.owned) o.each([&](int b, int s, int h, int d) { store(o.t, b, s, h, d, 0); });
    for (int queries = 0; queries < 2; ++queries)
      for (int rank = 0; rank < 3; ++rank) {
        Problem shard = w.problem;
        shard.len_q = 96, shard.len_k = 64;
        shard.set(Option::accumulate);
        Args args = got.args;
        at[0] = 1000 + queries * 96, at[1] = 1000 + rank * 64;
        for (const Role role : {Role::q, Role::out, Role::d_out, Role::lse, Role::dq})
          args[role] = pick_rows(args[role], queries * 96, 96);
        for (const Role role : {Role::k, Role::v, Role::dk, Role::dv})
          args[role] = pick_rows(args[role], rank * 64, 64);
        const Status s = run_on(backend_of(Pass::backward), place.device, shard, args);
        ASSERT_TRUE(s.ok()) << s.message;
      }
    at[0] = at[1] = 1000;
    const Outcome o = trial.judge(got);
    EXPECT_NE(o.verdict, Verdict::fail) << place.word << ": " << o.why;
  }
}

// Lists of different heads may share entries: here each row of the second head is the next row of the first. The list
// by key block has no space for both, so a backward must not build it.
TEST(conformance, lists_may_share_entries) {
  for (const Place& place : cpu_places()) {
    Trial trial(case_of("backward f32 b1 h2 q200 k200 d64 full blocks48x32x70 | lean shared"));
    Tensor& begin = trial.world.args[Role::block_begin];
    const int32_t* one = trial.world.args.row<const int32_t>(Role::block_begin);
    const int count = begin.extent.dim;
    std::vector<int32_t> two(one, one + count);
    two.insert(two.end(), one + 1, one + count);
    two.push_back(one[count - 1]);
    begin.data = two.data(), begin.extent.head = 2, begin.stride.head = count;
    ASSERT_EQ(trial.prepare().message, "");
    const Outputs got = trial.world.outputs(false);
    const Status s = run_on(backend_of(Pass::backward), place.device, trial.world.problem, got.args);
    ASSERT_TRUE(s.ok()) << s.message;
    const Outcome o = trial.judge(got);
    EXPECT_NE(o.verdict, Verdict::fail) << place.word << ": " << o.why;
  }
}

// Sequence 2 alone equals sequence 2 of three, bit for bit, for any number of threads.
void expect_rows_alone(std::string_view line, const Place& place, int units) {
  const Case c = case_of(line);
  Trial trial(c);
  ASSERT_TRUE(trial.prepare().ok());
  const World& w = trial.world;
  const Backend& backend = backend_of(c.problem.pass);
  const Outputs three = w.outputs(false), alone = w.outputs(false);
  Device other = place.device;
  other.units = units;
  ASSERT_TRUE(run_on(backend, place.device, c.problem, three.args).ok());
  Problem one = c.problem;
  one.batch = 1;
  Args args = alone.args;
  for (Tensor& t : args.tensor) {
    if (!t.data || t.extent.batch == 1) continue;
    t.data = row_address(t, 2, 0, 0);
    t.extent.batch = 1, t.stride.batch = 0;
  }
  const Status s = run_on(backend, other, one, args);
  ASSERT_TRUE(s.ok()) << s.message;
  for (const Role r : three.roles) {
    const Tensor &x = three.args[r], &y = alone.args[r];
    for (int i = 0; i < x.extent.seq; ++i)
      for (int h = 0; h < x.extent.head; ++h)
        ASSERT_FALSE(std::memcmp(row_address(x, 2, i, h), row_address(y, 2, i, h),
                                 size_t(x.extent.dim) * size_t(size_of(x.dtype))))
            << place.word << ": row " << i << " of head " << h << " depends on the batch: " << line;
  }
}

TEST(conformance, rows_do_not_depend_on_the_batch) {
  for (const Place& place : cpu_places())
    for (const std::string_view line :
         {"forward f32 b3 h4/2 q70 k130 d64 causal repro=batch", "forward bf16 b3 h4/2 q70 k130 d64 full repro=batch",
          "forward f32 b3 h4/2 q1 k1025 d64 causal repro=batch",
          "forward f16 b3 h4/1 q5 k300 d64 window99,0 repro=batch",
          "backward f32 b3 h4/2 q70 k130 d64 causal repro=batch",
          "backward bf16 b3 h4/2 q70 k130 d64 full repro=batch"})
      for (const int units : {1, 16}) expect_rows_alone(line, place, units);
}

// A plan gives the same bits when repeated, also while other threads are calling.
TEST(conformance, a_plan_repeats_its_bits) {
  for (const std::string_view line :
       {"forward f32 b1 h2 q1 k1025 d64 causal repro=run", "forward bf16 b2 h2 q100 k300 d64 causal repro=run",
        "backward f32 b1 h1 q200 k300 d64 causal repro=run",
        "backward bf16 b2 h4/2 q65 k130 d64 full bias repro=run"}) {
    const Case c = case_of(line);
    Trial trial(c);
    ASSERT_TRUE(trial.prepare().ok());
    Device device = this_cpu();
    device.units = 4;
    const auto once = [&](Outputs& o) { return run_on(backend_of(c.problem.pass), device, c.problem, o.args); };
    Outputs first = trial.world.outputs(false);
    ASSERT_TRUE(once(first).ok());
    const auto want = bytes(first);
    std::atomic<int> different = 0, refused = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int n = 0; n < 5; ++n) {
          Outputs again = trial.world.outputs(false);
          refused += !once(again).ok();
          different += bytes(again) != want;
        }
      });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(different, 0) << line;
    EXPECT_EQ(refused, 0) << line;
  }
}

// Few rows and many threads: the keys are split, and the splits combined.
TEST(conformance, split_over_keys_equals_unsplit) {
  for (const Place& place : cpu_places())
    for (const std::string_view line :
         {"forward f32 b1 h1 q1 k1025 d64 causal", "forward bf16 b1 h1 q1 k1025 d64 full sink",
          "forward f32 b1 h2/1 q3 k1025 d64 full softcap accumulate",
          "forward f32 b2 h1 q1 k2000 d64 causal paged16 | drawn cache", "backward f32 b1 h1 q65 k1025 d64 causal",
          "backward bf16 b1 h2/1 q33 k1025 d64 full sink"}) {
      const Case c = case_of(line);
      const Backend& backend = backend_of(c.problem.pass);
      Trial trial(c);
      ASSERT_TRUE(trial.prepare().ok());
      int most = 0;
      for (const int units : {1, 16}) {
        Device device = place.device;
        device.units = units;
        Plan plan;
        ASSERT_TRUE(plan_on(backend, c.problem, device, plan).ok());
        most = plan.splits;
        const Outcome o = trial.run(backend, device);
        EXPECT_NE(o.verdict, Verdict::fail) << place.word << ", " << units << " threads, " << line << ": " << o.why;
      }
      EXPECT_GT(most, 1) << "16 threads and the keys are not split: " << line;
    }
}

}  // namespace
}  // namespace attune
