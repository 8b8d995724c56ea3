// SPDX-License-Identifier: Apache-2.0
// Ranks as threads with separate streams on one GPU: through GPU memory, and through pinned host memory as if the
// transport supported nothing else. One GPU proves correctness, not scaling.
#include <map>

#include "tests/cuda/gpu.h"
#include "verify/ring.h"

namespace attune {
namespace {

using RingOnGpu = OnGpu;

void run_all(const Device& gpu, bool gpu_memory, bool quick) {
  int runs = 0;
  std::map<Cut, int> lists, dilated;  // number of runs of each
  for (const Case& dense : ring_cases(quick)) {
    Case whole;
    ASSERT_EQ(whole_case(dense, whole).message, "");
    Trial trial(whole);
    ASSERT_EQ(trial.prepare().message, "") << name(dense);
    for (const Cut cut : all_cuts())
      for (const int ranks : {2, 4}) {
        Problem p;
        if (!shard_problem(trial.world, {cut, ranks}, p).ok()) continue;
        std::vector<Transport> transports;
        ASSERT_EQ(make_ranks(ranks, transports).message, "");
        for (Transport& t : transports) t.gpu = gpu_memory;
        std::vector<RankRun> each;
        const Outcome o = run_over(trial, {cut, ranks}, gpu, transports, each, 20);
        EXPECT_NE(o.verdict, Verdict::fail) << name(dense) << ", " << name(cut) << ", " << ranks << " ranks: " << o.why;
        ++runs, lists[cut] += p.mask.blocks.q > 0, dilated[cut] += word(dense.problem.variant) == "dilated";
      }
  }
  EXPECT_GE(runs, 100);
  for (const Cut cut : all_cuts()) {
    EXPECT_GE(lists[cut], 4) << name(cut) << " ran hardly any block lists";
    EXPECT_GE(dilated[cut], 4) << name(cut) << " ran hardly any dilated attention";
  }
}

TEST_F(RingOnGpu, ranks_that_share_the_memory_of_a_gpu_are_the_golden_attention) { run_all(gpu_, true, false); }

TEST_F(RingOnGpu, ranks_that_meet_through_the_host_are_the_golden_attention) { run_all(gpu_, false, true); }

TEST_F(RingOnGpu, a_rank_that_never_comes_is_an_error_on_the_others) {
  for (const bool gpu_memory : {true, false}) {
    std::vector<Transport> transports;
    ASSERT_EQ(make_ranks(2, transports).message, "");
    for (Transport& t : transports) t.gpu = gpu_memory;
    Communicator here(transports[0], 0.3), nobody(transports[1], 0.3);
    cuda::Memory memory;
    ASSERT_EQ(memory.allocate(0, 256).message, "");
    const Transfer one{1, 1, memory.data(), 256};
    const CopyLane lane{DeviceKind::cuda, 0, stream_.get()};
    Communicator::Ticket ticket = 0;
    ASSERT_EQ(here.start({&one, 1}, lane, ticket).message, "");
    EXPECT_EQ(here.finish(ticket, lane).message,
              "rank 0 of 2: a transfer did not finish: rank 1 sent nothing within 0.3 s");
    EXPECT_EQ(cuda::wait(stream_.get()).message, "") << "the stream goes on";
  }
}

}  // namespace
}  // namespace attune
