// SPDX-License-Identifier: Apache-2.0
// NCCL as a transport. The real library allows one rank per GPU and is tested with one rank. The stand-in in this
// folder, found first through LD_LIBRARY_PATH, is tested with four ranks on one GPU. No test uses several GPUs.
#include <dlfcn.h>

#include <thread>

#include "tests/cuda/gpu.h"
#include "verify/ring.h"

namespace attune {
namespace {

class NcclTest : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    if (const Status s = make_nccl_id(id_); !s.ok()) GTEST_SKIP() << s.message;
    void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    calls_ = reinterpret_cast<int (*)()>(dlsym(library, "standin_calls"));
    break_ = reinterpret_cast<void (*)(int)>(dlsym(library, "standin_break"));
  }
  std::vector<Transport> open(int ranks) {
    std::vector<Transport> all(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;  // each waits for the others to arrive
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] { EXPECT_EQ(open_nccl(id_, r, ranks, 0, all[size_t(r)]).message, ""); });
    for (std::thread& t : threads) t.join();
    return all;
  }
  std::byte bytes_[kNcclIdBytes] = {};
  std::span<std::byte, kNcclIdBytes> id_{bytes_};
  int (*calls_)() = nullptr;
  void (*break_)(int) = nullptr;
};

void run_cases(const Device& gpu, int ranks, const std::function<std::vector<Transport>()>& open) {
  for (const char* line : {"forward f32 b1 h8/4 q75 k75 d16 causal", "backward f32 b1 h8/4 q75 k75 d16 causal",
                           "forward bf16 b2 h8/2 q65 k65 d64 window9,3", "backward bf16 b2 h8/2 q65 k65 d64 full"}) {
    Case whole;
    ASSERT_EQ(whole_case(case_of(line), whole).message, "");
    Trial trial(whole);
    ASSERT_EQ(trial.prepare().message, "");
    for (const Cut cut : all_cuts()) {
      std::vector<RankRun> each;
      const Outcome o = run_over(trial, {cut, ranks}, gpu, open(), each, 20);
      EXPECT_NE(o.verdict, Verdict::fail) << line << ", " << name(cut) << ": " << o.why;
    }
  }
}

TEST_F(NcclTest, one_rank_is_the_golden_attention) {
  run_cases(gpu_, 1, [&] { return open(1); });
}

TEST_F(NcclTest, four_ranks_over_the_stand_in_are_the_golden_attention) {
  if (!calls_) GTEST_SKIP() << "this is the real NCCL, which takes one rank a GPU, and one GPU is here";
  const int before = calls_();
  run_cases(gpu_, 4, [&] { return open(4); });
  EXPECT_GT(calls_(), before + 100);
}

TEST_F(NcclTest, memory_of_the_host_is_refused) {
  Communicator comm(open(1)[0]);
  Transport pair = {};
  ASSERT_EQ(open_nccl(id_, 0, 1, 0, pair).message, "");
  pair.ranks = 2;  // lets a transfer through the communicator's checks
  Communicator two(pair, 1);
  char x = 0;
  const Transfer one{1, 1, &x, 1};
  Communicator::Ticket ticket = 0;
  EXPECT_EQ(two.start({&one, 1}, {}, ticket).message,
            "rank 0 of 2: a transfer could not start: NCCL transfers GPU memory, not host memory");
  EXPECT_EQ(open_nccl(id_, 2, 2, 0, pair).message, "NCCL: rank 2 is not in 0 ... 1");
}

TEST_F(NcclTest, a_rank_that_never_comes_to_a_group_is_a_sentence_within_the_limit) {
  if (!calls_) GTEST_SKIP() << "the real NCCL would keep a thread of this process waiting";
  id_[1] = std::byte{3};  // a separate group
  Transport first = {};
  EXPECT_EQ(open_nccl(id_, 0, 2, 0, first, 0.3).message, "NCCL: rank 0 of 2: not all ranks joined within 0.3 s");
  EXPECT_EQ(first.self, nullptr);
}

TEST_F(NcclTest, an_error_that_nccl_reports_later_is_a_sentence) {
  if (!break_) GTEST_SKIP() << "only the stand-in breaks when it is told to";
  std::vector<Transport> transports = open(2);
  Communicator first(transports[0], 5), second(transports[1], 5);
  cuda::Memory memory;
  ASSERT_EQ(memory.allocate(0, 512).message, "");
  const CopyLane lane{DeviceKind::cuda, 0, stream_.get()};
  const auto move = [&](Communicator& comm, bool receive) {
    const Transfer one{1 - comm.rank(), receive, memory.data() + (receive ? 256 : 0), 256};
    Communicator::Ticket ticket = 0;
    if (Status s = comm.start({&one, 1}, lane, ticket); !s.ok()) return s;
    break_(6);
    return comm.finish(ticket, lane);
  };
  Status said;
  std::thread other([&] { said = move(second, true); });
  EXPECT_EQ(move(first, false).message, "rank 0 of 2: a transfer did not finish: NCCL: remote process exited");
  other.join();
  break_(0);
  EXPECT_EQ(said.message, "rank 1 of 2: a transfer did not finish: NCCL: remote process exited");
}

}  // namespace
}  // namespace attune
