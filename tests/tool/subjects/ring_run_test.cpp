// SPDX-License-Identifier: Apache-2.0
// Ranks in this process as a subject of the timer: every layout gives the whole result, and a rank that stops ends all.
#include "tool/subjects/ring_run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/work.h"
#include "machine/host.h"
#include "tests/asked.h"
#include "tool/check/audit.h"
#include "tool/bench/row.h"

namespace attune {
namespace {

Bench small_bench() {
  Bench b;
  b.device = this_cpu();
  b.device.units = 2;
  b.timing.max_seconds = 0.004, b.timing.warm_up_seconds = 0.0005, b.timing.min_samples = 3;
  b.ceilings = Ceilings{.threads = 2, .f32 = {"none", 1e9}, .f16 = {"none", 1e9}, .bf16 = {}, .copy_gbs = 1e9};
  b.floor_ns = 1, b.aa_spread = 0.05;
  return b;
}

TEST(RingRun, every_layout_is_checked_and_timed_in_both_passes) {
  for (const char* pass : {"forward", "backward"})
    for (const char* tail : {"f32 b2 h4/2 q25 k25 d16 causal : ring layout=ring ranks=3 tokens=73",
                             "f16 b1 h4 q13 k13 d16 causal : ring layout=zigzag ranks=4 tokens=50",
                             "f32 b1 h4 q25 k25 d16 window9,0 : ring layout=striped ranks=3 tokens=73",
                             "f32 b1 h4 q16 k16 d16 full : ring layout=ulysses ranks=4 tokens=64",
                             "f32 b1 h4 q16 k16 d16 causal : ring inner=dilated rates=1,2 segments=8,32 layout=ring "
                             "ranks=4 tokens=64"})
      for (const Layout layout : {Layout::bhsd, Layout::bshd}) {
        const Problem p = problem(join(pass, " ", tail));
        Bench b = small_bench();
        b.layout = layout;
        const std::vector<Record> made = measure_row(p, b);
        ASSERT_EQ(made.size(), 1u) << name(p);
        const Record& r = made[0];
        EXPECT_EQ(r.status, RecordStatus::ok) << name(p) << ": " << r.message;
        EXPECT_EQ(r.parity.verdict, CheckVerdict::pass) << name(p) << ": " << r.parity.message;
        EXPECT_EQ(r.problem, name(p));
        EXPECT_GE(r.samples_ns.size(), 3u);
        EXPECT_EQ(r.flops, cost(whole_problem(p)).flops) << "of all ranks";
        EXPECT_EQ(r.tensor_bytes, cost(whole_problem(p)).bytes);
        EXPECT_NE(r.why.find("ranks are threads of this process"), std::string::npos) << r.why;
      }
}

TEST(RingRun, shards_are_not_what_a_call_takes_beside_its_tensors) {
  const Problem p = problem("forward f32 b4 h8 q512 k512 d64 causal : ring layout=ring ranks=2 tokens=1024");
  Bench b = small_bench();
  b.check = false;
  const std::vector<Record> made = measure_row(p, b);
  ASSERT_EQ(made.size(), 1u);
  ASSERT_EQ(made[0].status, RecordStatus::ok) << made[0].message;
  if (made[0].taken_bytes < 0) GTEST_SKIP() << "this system does not say what is resident";
  const double said = double(made[0].workspace_bytes);
  EXPECT_LT(made[0].taken_bytes, said + 0.25 * made[0].tensor_bytes) << said << " of workspace";
}

TEST(RingRun, what_is_not_timed_says_so) {
  const auto said = [](const char* line) {
    Bench b = small_bench();
    const std::vector<Record> made = measure_row(problem(line), b);
    EXPECT_EQ(made.size(), 1u);
    EXPECT_EQ(made[0].status, RecordStatus::unsupported);
    EXPECT_EQ(made[0].left_out, LeftOut::not_built);
    return made[0].message;
  };
  EXPECT_EQ(said("forward f32 b2 h4 q25 k25 d16 causal ragged : ring layout=ring ranks=2 tokens=50"),
            "not built: ranks are timed over linear keys only");
  EXPECT_EQ(said("backward f32 b1 h4 q25 k25 d16 causal sink : ring layout=ring ranks=2 tokens=50"),
            "not built: ranks are timed without sinks in a backward, because they would sum their gradients");
  Device gpu = this_cpu();
  gpu.kind = DeviceKind::cuda;
  const Problem two = problem("forward f32 b1 h4 q25 k25 d16 causal : ring layout=ring ranks=2 tokens=50");
  EXPECT_EQ(can_time_ring(two, gpu, Mode::graph).message, "not built: ranks are timed warm or cold, not in graphs");
  EXPECT_EQ(can_time_ring(two, gpu, Mode::cold).message, "");
  EXPECT_EQ(rank_device(gpu, two).units, gpu.units) << "ranks share a GPU";
}

TEST(RingRun, ranks_that_share_a_gpu_are_checked_and_timed) {
  Bench b = small_bench();
  if (const Status s = cuda::device(0, b.device); !s.ok()) GTEST_SKIP() << s.message;
  DeviceTimer timer;
  ASSERT_EQ(timer.open(0).message, "");
  b.timer = &timer, b.device_word = "cuda:0";
  for (const Mode mode : {Mode::cold, Mode::warm})
    for (const char* pass : {"forward", "backward"})
      for (const char* tail : {"f16 b1 h8 q100 k100 d64 causal : ring layout=zigzag ranks=4 tokens=400",
                               "bf16 b2 h8/2 q64 k64 d128 causal : ring layout=striped ranks=4 tokens=250",
                               "f16 b1 h8 q64 k64 d64 full : ring layout=ulysses ranks=4 tokens=256",
                               "f16 b1 h8 q128 k128 d64 causal : ring inner=dilated rates=1,2 segments=64,256 "
                               "layout=ring ranks=4 tokens=512"}) {
        const Problem p = problem(join(pass, " ", tail));
        b.mode = mode;
        const std::vector<Record> made = measure_row(p, b);
        ASSERT_EQ(made.size(), 1u) << name(p);
        EXPECT_EQ(made[0].status, RecordStatus::ok) << name(p) << ": " << made[0].message;
        EXPECT_EQ(made[0].parity.verdict, CheckVerdict::pass) << name(p) << ": " << made[0].parity.message;
        EXPECT_GE(made[0].samples_ns.size(), 3u);
        EXPECT_GT(made[0].workspace_bytes, 0u);
        EXPECT_NE(made[0].why.find("with one stream each on one GPU"), std::string::npos) << made[0].why;
      }
}

TEST(RingRun, a_rank_that_stops_ends_the_call_of_all) {
  const Problem p = problem("forward f32 b1 h4 q16 k16 d16 causal : ring layout=ring ranks=4 tokens=64");
  Plan plan;
  ASSERT_EQ(Planner{.device = rank_device(this_cpu(), p)}.plan(p, plan).message, "");
  static const Backend* const right = plan.backend;
  Backend stops = *right;
  stops.run = [](const Plan& made, const Args& a, Workspace w, Stream s) {
    if (static_cast<Communicator*>(a.communicator)->rank() == 2) return Status::no("rank 2 has had enough");
    return right->run(made, a, w, s);
  };
  plan.backend = &stops;
  Workload work(whole_problem(p), Layout::bhsd, 1, Distribution::normal);
  RingRun run(plan, work.args, work.outputs(), Layout::bhsd);
  ASSERT_EQ(run.open().message, "");
  ASSERT_EQ(run.cut().message, "");
  EXPECT_FALSE(run.run());
  EXPECT_NE(run.status().message.find("rank 2 has had enough"), std::string::npos) << run.status().message;
  EXPECT_FALSE(run.run()) << "a group that broke stays broken";
}

TEST(RingRun, flops_are_judged_by_those_of_all_ranks) {
  const Problem p = problem("forward f32 b1 h4 q16 k16 d16 causal : ring layout=ring ranks=4 tokens=64");
  Bench b = small_bench();
  std::vector<Record> made = measure_row(p, b);
  ASSERT_EQ(made.size(), 1u);
  const auto forged = [](const Record& r) {
    Line line;
    std::vector<Finding> found;
    EXPECT_TRUE(audit_line(to_json(r), line, found));
    audit({&line, 1}, found);
    return std::any_of(found.begin(), found.end(), [](const Finding& f) { return f.name == "forged-flops"; });
  };
  EXPECT_FALSE(forged(made[0]));
  made[0].flops *= 4;
  EXPECT_TRUE(forged(made[0]));
}

}  // namespace
}  // namespace attune
