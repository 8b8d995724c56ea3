// SPDX-License-Identifier: Apache-2.0
// Attention over ranks is attention: any number of ranks, every layout and both passes equal one rank and the golden
// reference of the whole. Ranks are threads here; tests/transport covers how they communicate.
#include <thread>

#include "tests/runs.h"
#include "verify/ring.h"

namespace attune {
namespace {

constexpr int kRanks[] = {1, 2, 4, 8};

Device one_thread() {
  Device cpu = this_cpu();
  cpu.units = 1;  // ranks provide the parallelism
  return cpu;
}

std::unique_ptr<Trial> prepared(std::string_view line) {
  Case dense, whole;
  Status s = parse(line, dense);
  if (s.ok()) s = whole_case(dense, whole);
  auto trial = s.ok() ? std::make_unique<Trial>(whole) : nullptr;
  if (s.ok()) s = trial->prepare();
  EXPECT_TRUE(s.ok()) << line << ": " << s.message;
  return s.ok() ? std::move(trial) : nullptr;
}

TEST(ring, every_layout_and_number_of_ranks_is_the_golden_attention) {
  int runs = 0;
  for (const Case& dense : ring_cases(false)) {
    const auto trial = prepared(name(dense));
    ASSERT_TRUE(trial);
    for (const Cut cut : all_cuts())
      for (const int ranks : kRanks) {
        Problem p;
        if (!shard_problem(trial->world, {cut, ranks}, p).ok()) continue;
        std::vector<RankRun> each;
        const Outcome o = run_ranks(*trial, {cut, ranks}, one_thread(), each, 20);
        EXPECT_NE(o.verdict, Verdict::fail) << name(dense) << ", " << name(cut) << ", " << ranks << " ranks: " << o.why;
        ++runs;
      }
  }
  EXPECT_GE(runs, 740);
}

TEST(ring, ring_and_zigzag_serve_every_case_and_no_line_is_left_out) {
  EXPECT_EQ(ring_cases(false).size(), 2 * ring_lines().size());
  int refused = 0;
  for (const Case& dense : ring_cases(false)) {
    const auto trial = prepared(name(dense));
    ASSERT_TRUE(trial);
    Problem p;
    const bool listed = dense.problem.mask.blocks.q;
    for (const Cut cut : {Cut::ring, Cut::zigzag}) {
      EXPECT_TRUE(listed || shard_problem(trial->world, {cut, 4}, p).ok()) << name(dense);
      EXPECT_TRUE(shard_problem(trial->world, {cut, 2}, p).ok()) << name(dense);
    }
    const bool special = listed || dense.problem.variant.text[0];
    for (const int ranks : kRanks)
      EXPECT_TRUE(!special || shard_problem(trial->world, {Cut::striped, ranks}, p).ok()) << name(dense);
    refused += !shard_problem(trial->world, {Cut::striped, 4}, p).ok();
  }
  EXPECT_GT(refused, 0);
}

// Property 28 of the definitions, in f32 and in numbers.
TEST(ring, any_number_of_ranks_gives_what_one_gives_to_1e_5) {
  for (const std::string_view line :
       {"forward f32 b2 h8/2 q131 k131 d32 causal", "backward f32 b2 h8/2 q131 k131 d32 causal",
        "forward f32 b1 h8/8 q96 k96 d16 full", "backward f32 b1 h8/8 q96 k96 d16 full",
        "forward f32 b1 h8/2 q129 k129 d16 causal blocks8x8x9999",
        "backward f32 b1 h8/2 q129 k129 d16 causal blocks8x8x9999",
        "forward f32 b1 h8/4 q131 k131 d16 causal : dilated rates=1,3,4 segments=16,50,200",
        "backward f32 b1 h8/4 q131 k131 d16 causal : dilated rates=1,3,4 segments=16,50,200",
        "forward f32 b1 h8/4 q131 k131 d16 causal : dilated offsets=contiguous rates=1,3,4 segments=16,50,200",
        "backward f32 b1 h8/4 q131 k131 d16 causal : dilated offsets=contiguous rates=1,3,4 segments=16,50,200"}) {
    Case dense, whole;
    ASSERT_TRUE(parse(line, dense).ok() && whole_case(dense, whole).ok());
    World world(whole.problem, whole.variation);
    if (dense.problem.pass == Pass::backward) {
      Plan plan;
      ASSERT_TRUE(Planner{.device = one_thread()}.plan(forward_of(whole.problem), plan).ok());
      ASSERT_EQ(run_plan(plan, world.forward_result()).message, "");
    }
    const auto joined = [&](Cut cut, int ranks) {
      const Shards shards{cut, dense.problem.len_q, ranks};
      Problem p;
      std::vector<Transport> transports;
      EXPECT_TRUE(shard_problem(world, {cut, ranks}, p).ok());
      EXPECT_TRUE(make_ranks(ranks, transports).ok());
      std::list<Shard> all;
      std::list<Communicator> comms;
      std::vector<std::thread> threads;
      for (int r = 0; r < ranks; ++r) {
        Shard* shard = &all.emplace_back(world, p, shards, r);
        Communicator* comm = &comms.emplace_back(transports[size_t(r)], 20);
        threads.emplace_back([=] {
          const Status s = comm->fail(shard->run(one_thread(), comm));
          EXPECT_TRUE(s.ok()) << s.message;
        });
      }
      for (std::thread& t : threads) t.join();
      Outputs result = world.outputs(false);
      for (const Shard& s : all) s.join(result);
      return result;
    };
    const Outputs one = joined(Cut::ring, 1);
    for (const Cut cut : all_cuts())
      for (const int ranks : kRanks) {
        Problem p;  // the heads of ulysses do not divide by every rate
        if (cut == Cut::ulysses && !shard_problem(world, {cut, ranks}, p).ok()) continue;
        const Outputs many = joined(cut, ranks);
        for (const Role r : one.roles) {
          double worst = 0;
          one.of(r).each([&](int b, int s, int h, int d) {
            worst = std::max(worst, std::fabs(load(one.args[r], b, s, h, d) - load(many.args[r], b, s, h, d)));
          });
          EXPECT_LE(worst, 1e-5) << line << ", " << name(cut) << ", " << ranks << " ranks, role " << int(r);
        }
      }
  }
}

uint64_t bytes_sent(std::string_view line, Cut cut, int ranks) {
  const auto trial = prepared(line);
  std::vector<RankRun> each;
  if (!trial) return 0;
  const Outcome o = run_ranks(*trial, {cut, ranks}, one_thread(), each, 20);
  EXPECT_NE(o.verdict, Verdict::fail) << o.why;
  uint64_t sent = 0;
  for (const RankRun& r : each) sent += r.traffic.sent;
  return sent;
}

TEST(ring, keys_travel_no_further_than_they_are_seen) {
  constexpr uint64_t kShard = 16 * 2 * (16 + 16) * 4;  // tokens, heads, dims, bytes: keys and values of a rank
  EXPECT_EQ(bytes_sent("forward f32 b1 h2 q64 k64 d16 full", Cut::ring, 4), 4 * 3 * kShard);
  // Rank 3 sends nothing, rank 2 its own keys, ...
  EXPECT_EQ(bytes_sent("forward f32 b1 h2 q64 k64 d16 causal", Cut::ring, 4), (3 + 2 + 1) * kShard);
  // A window shorter than a shard: one step, without wrapping around.
  EXPECT_EQ(bytes_sent("forward f32 b1 h2 q64 k64 d16 window9,0", Cut::ring, 4), 3 * kShard);
  EXPECT_EQ(bytes_sent("forward f32 b1 h2 q64 k64 d16 window0,0", Cut::ring, 4), 0u);
  // Segments that end with the shards.
  EXPECT_EQ(bytes_sent("forward f32 b1 h2 q64 k64 d16 causal : dilated rates=2 segments=16", Cut::ring, 4), 0u);
  EXPECT_EQ(bytes_sent("forward f32 b1 h2 q64 k64 d16 causal : dilated rates=2 segments=8", Cut::zigzag, 4), 0u);
  // Tokens with other remainders are never seen: keys come from two of four ranks, then from none.
  EXPECT_EQ(bytes_sent("forward f32 b1 h2 q64 k64 d16 full : dilated rates=2 segments=64", Cut::striped, 4),
            4 * 2 * kShard);
  EXPECT_EQ(bytes_sent("forward f32 b1 h2 q64 k64 d16 full : dilated rates=4 segments=64", Cut::striped, 4), 0u);
  // Backward: the keys again, and the gradient sums that follow them and return.
  EXPECT_EQ(bytes_sent("backward f32 b1 h2 q64 k64 d16 full", Cut::ring, 4), 4 * (3 + 4) * kShard);
  EXPECT_EQ(bytes_sent("backward f32 b1 h2 q64 k64 d16 window9,0", Cut::ring, 4), 3 * kShard + 4 * 2 * kShard);
}

// A transport that inspects the first number of a result when the first transfer starts and when it is waited for.
struct Watched {
  Transport inner{};
  const float* number = nullptr;
  std::vector<float> at_start{}, at_finish{};

  Transport transport() {
    Transport t = inner;
    t.self = this;
    t.start = [](void* self, const Transfer* all, int32_t count, int32_t device, void* stream, void** ticket) {
      Watched& w = *static_cast<Watched*>(self);
      w.at_start.push_back(*w.number);
      return w.inner.start(w.inner.self, all, count, device, stream, ticket);
    };
    t.finish = [](void* self, void* ticket, double seconds, void* stream) {
      Watched& w = *static_cast<Watched*>(self);
      w.at_finish.push_back(*w.number);
      return w.inner.finish(w.inner.self, ticket, seconds, stream);
    };
    t.fail = [](void* self, const char* why) {
      if (const Transport& in = static_cast<Watched*>(self)->inner; in.fail) in.fail(in.self, why);
    };
    t.error = [](void* self) {
      const Transport& in = static_cast<Watched*>(self)->inner;
      return in.error(in.self);
    };
    t.destroy = [](void* self) {
      if (const Transport& in = static_cast<Watched*>(self)->inner; in.destroy) in.destroy(in.self);
    };
    return t;
  }
};

TEST(ring, a_step_is_computed_while_the_keys_of_the_next_one_travel) {
  for (const char* layout : {"ring", "zigzag", "striped"})
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const Problem p = problem(join(name(pass), " f32 b1 h2 q16 k16 d16 full : ring layout=", layout,
                                     " ranks=2 tokens=32"));
      Plan plan;
      ASSERT_EQ(Planner{.device = one_thread()}.plan(p, plan).message, "");
      std::vector<Transport> transports;
      ASSERT_TRUE(make_ranks(2, transports).ok());
      std::list<Watched> watched;
      std::list<Owned> owned;
      std::vector<std::thread> threads;
      const Role result = pass == Pass::forward ? Role::out : Role::dq;
      for (const Transport& inner : transports) {
        Args a;
        const auto give = [&](Role r, int dim) {
          Owned& o = owned.emplace_back(DType::f32, Extents{1, 16, 2, dim});
          Random random{uint32_t(r) + 1};
          o.each([&](int b, int s, int h, int d) { store(o.t, b, s, h, d, r == result ? 0 : random.normal()); });
          a[r] = o.t;
        };
        for (const Role r : {Role::q, Role::k, Role::v, Role::out}) give(r, 16);
        if (pass == Pass::backward)
          for (const Role r : {Role::d_out, Role::dq, Role::dk, Role::dv}) give(r, 16);
        if (pass == Pass::backward) give(Role::lse, 1);
        Watched& w = watched.emplace_back(Watched{inner, static_cast<const float*>(a[result].data)});
        threads.emplace_back([&w, &plan, a]() mutable {
          Communicator comm(w.transport(), 20);
          a.communicator = &comm;
          EXPECT_EQ(run_plan(plan, a).message, "");
        });
      }
      for (std::thread& t : threads) t.join();
      for (const Watched& w : watched) {
        ASSERT_FALSE(w.at_start.empty());
        EXPECT_EQ(w.at_start[0], 0.f) << layout << " " << name(pass) << ": keys waited for the work";
        EXPECT_NE(w.at_finish[0], 0.f) << layout << " " << name(pass) << ": the work waited for the keys";
      }
    }
}

TEST(ring, workspace_is_linear_in_tokens) {
  const auto bytes = [](const std::string& pass, int tokens, const char* layout) {
    Plan plan;
    const Problem p = problem(join(pass, " f32 b1 h8/2 q", tokens / 4, " k", tokens / 4, " d64 causal : ring layout=",
                                 layout, " ranks=4 tokens=", tokens));
    const Status s = Planner{.device = one_thread()}.plan(p, plan);
    EXPECT_TRUE(s.ok()) << s.message;
    return double(plan.workspace_bytes);
  };
  for (const char* layout : {"ring", "zigzag", "striped", "ulysses"})
    for (const char* pass : {"forward", "backward"})
      EXPECT_LT(bytes(pass, 1 << 18, layout), 4.1 * bytes(pass, 1 << 16, layout)) << layout << " " << pass;
}

// The error of a rank called alone, without a group that would wait for it.
std::string alone(const std::string& line, Communicator* comm, int rows) {
  const Problem p = problem(line);
  Plan plan;
  if (Status s = Planner{.device = one_thread()}.plan(p, plan); !s.ok()) return s.message;
  Owned q(DType::f32, {1, rows, p.heads_q, p.dim_qk}), k(DType::f32, {1, rows, p.heads_kv, p.dim_qk});
  Args a;
  a[Role::q] = q.t, a[Role::k] = a[Role::v] = k.t, a[Role::out] = q.t;
  a.communicator = comm;
  return run_plan(plan, a).message;
}

TEST(ring, a_call_that_does_not_fit_its_group_is_refused) {
  const std::string line = "forward f32 b1 h2 q16 k16 d16 causal : ring layout=ring ranks=4 tokens=64";
  EXPECT_EQ(alone(line, nullptr, 16), "ring_rotate: the problem has 4 ranks, but no communicator is given");
  std::vector<Transport> transports;
  ASSERT_TRUE(make_ranks(2, transports).ok());
  Communicator comm(transports[0]), other(transports[1]);
  EXPECT_EQ(alone(line, &comm, 16), "ring_rotate: the problem has 4 ranks, but the communicator has 2");
  std::vector<Transport> four;
  ASSERT_TRUE(make_ranks(4, four).ok());
  std::list<Communicator> all;
  for (const Transport& t : four) all.emplace_back(t);
  EXPECT_EQ(alone(line, &all.front(), 15), "ring_rotate: q has 15 tokens, but rank 0 has 16 of the 64");
}

TEST(ring, sequences_that_are_not_those_of_the_stream_are_refused) {
  const auto said = [](std::vector<int> sequences) {
    const Problem p = problem("forward f32 b3 h2 q16 k16 d16 causal ragged : ring layout=striped ranks=1 tokens=32");
    Plan plan;
    EXPECT_EQ(Planner{.device = one_thread()}.plan(p, plan).message, "");
    Owned q(DType::f32, {1, 32, 2, 16}), starts(DType::i32, {1, 1, 1, 4});
    starts.set(sequences);
    Args a;
    a[Role::q] = a[Role::k] = a[Role::v] = a[Role::out] = q.t;
    a[Role::cu_q] = a[Role::cu_k] = a[variant_tensor(kRingSequences)] = starts.t;
    return run_plan(plan, a).message;
  };
  EXPECT_EQ(said({0, 5, 20, 31}), "ring_rotate: sequences[3] = 31; the last sequence must end at 32");
  EXPECT_EQ(said({1, 5, 20, 32}), "ring_rotate: sequences[0] = 1; the first sequence must begin at 0");
  EXPECT_EQ(said({0, 17, 20, 32}), "ring_rotate: sequences[1] = 17; it must be in 0 ... 0 + 16");
  EXPECT_EQ(said({0, 9, 7, 32}), "ring_rotate: sequences[2] = 7; it must be in 9 ... 9 + 16");
}

TEST(ring, a_rank_that_refuses_ends_the_others_with_its_sentence) {
  for (const char* layout : {"ring", "ulysses"}) {
    const std::string line = join("forward f32 b1 h4 q16 k16 d16 full : ring layout=", layout, " ranks=4 tokens=64");
    std::vector<Transport> transports;
    ASSERT_TRUE(make_ranks(4, transports).ok());
    std::vector<std::thread> threads;
    std::string said[4];
    std::list<Communicator> comms;
    for (const Transport& t : transports) comms.emplace_back(t, 300);
    auto comm = comms.begin();
    for (int r = 0; r < 4; ++r, ++comm)
      threads.emplace_back([&, r, mine = &*comm] { said[r] = alone(line, mine, r == 2 ? 9 : 16); });
    for (std::thread& t : threads) t.join();
    for (int r = 0; r < 4; ++r)
      EXPECT_NE(said[r].find(r == 2 ? "q has 9 tokens, but rank 2 has 16 of the 64" : "stopped: "), std::string::npos)
          << said[r];
  }
}

TEST(ring, a_rank_that_never_comes_is_an_error_on_the_others) {
  for (const char* layout : {"ring", "zigzag", "striped", "ulysses"}) {
    const std::string line = join("forward f32 b1 h4 q16 k16 d16 full : ring layout=", layout, " ranks=4 tokens=64");
    std::vector<Transport> transports;
    ASSERT_TRUE(make_ranks(4, transports).ok());
    std::list<Communicator> comms;
    for (const Transport& t : transports) comms.emplace_back(t, 0.3);
    std::vector<std::thread> threads;
    std::string said[4];
    auto comm = comms.begin();
    for (int r = 0; r < 3; ++r, ++comm)  // rank 3 is absent
      threads.emplace_back([&, r, mine = &*comm] { said[r] = alone(line, mine, 16); });
    for (std::thread& t : threads) t.join();
    for (int r = 0; r < 3; ++r) EXPECT_NE(said[r].find("a transfer did not finish"), std::string::npos) << said[r];
  }
}

}  // namespace
}  // namespace attune
