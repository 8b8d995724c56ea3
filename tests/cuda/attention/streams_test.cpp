// SPDX-License-Identifier: Apache-2.0
// Many threads on many streams and GPUs at once: every result equals that of a single thread, bit for bit.
#include <atomic>
#include <thread>

#include "attune/attune.h"
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

// All problems are reproducible, so that agreement of two runs is not luck.
constexpr const char* kLines[] = {
    "forward bf16 b2 h4/2 q130 k257 d64 causal",
    "forward f16 b1 h4/1 q1 k4096 d128 full",
    "forward bf16 b3 h4/2 q1 k256 d128 full paged16 repro=batch | seed=2",
    "forward bf16 b2 h2 q64 k128 d64 causal softcap dropout",
    "forward f16 b4 h4/2 q127 k127 d96 causal ragged | seed=2",
    "backward bf16 b2 h4/2 q130 k257 d64 causal repro=run",
    "backward f16 b4 h4/2 q64 k96 d128 causal ragged repro=run | seed=2",
    "forward f32 b1 h2 q33 k65 d64 causal repro=run",
};

class Streams : public OnGpu {};

TEST_F(Streams, a_run_twice_gives_the_same_bits) {
  for (const char* line : kLines)
    for (const Backend* b : takers(case_of(line).problem, gpu_)) {
      SCOPED_TRACE(join(b->name, ": ", line));
      Placed on(line, 0);
      ASSERT_EQ(on.plan_for(*b, gpu_).message, "");
      if (!on.fits()) continue;
      const Written first = on.fresh(stream_.get());
      for (int n = 0; n < 10; ++n) ASSERT_EQ(on.fresh(stream_.get()), first) << "run " << n + 2;
    }
}

// repro=batch: the result of a sequence does not depend on the rest of the batch.
TEST_F(Streams, a_row_by_batch_has_the_same_bits_alone_and_in_company) {
  const char* alone = "forward bf16 b1 h8/2 q1 k700 d128 full repro=batch";
  const char* beside = "forward bf16 b5 h8/2 q1 k700 d128 full repro=batch";
  for (const Backend* b : takers(case_of(alone).problem, gpu_)) {
    SCOPED_TRACE(b->name);
    Placed one(alone, 0), many(beside, 0);
    ASSERT_EQ(one.plan_for(*b, gpu_).message, "");
    ASSERT_EQ(many.plan_for(*b, gpu_).message, "");
    // Copies the inputs of `one` to the first sequence of `many`.
    for (const Role r : {Role::q, Role::k, Role::v}) {
      const Tensor &from = one.args()[r], &to = many.args()[r];
      ASSERT_EQ(from.stride.head, to.stride.head);
      const size_t bytes = size_t(from.extent.seq) * size_t(from.extent.head) * size_t(from.stride.head) * 2;
      ASSERT_EQ(cudaMemcpy(to.data, from.data, bytes, cudaMemcpyDeviceToDevice), cudaSuccess);
    }
    ASSERT_EQ(one.run(stream_.get()).message, "");
    ASSERT_EQ(many.run(stream_.get()).message, "");
    ASSERT_EQ(cuda::wait_all(0).message, "");
    std::vector<uint16_t> a(8 * 128), c(8 * 128);
    for (int h = 0; h < 8; ++h)
      for (auto [on, rows] : {std::pair{&one, &a}, {&many, &c}}) {
        const Tensor& out = on->args()[Role::out];
        const char* from = row_address(out, 0, 0, h);
        ASSERT_EQ(cudaMemcpy(rows->data() + h * 128, from, 256, cudaMemcpyDeviceToHost), cudaSuccess);
      }
    EXPECT_EQ(a, c);
  }
}

TEST_F(Streams, many_threads_and_streams_get_what_one_gets) {
  struct Job {
    std::unique_ptr<Placed> on;
    Written alone;
  };
  constexpr int kThreads = 8, kRounds = 12;
  std::vector<std::vector<Job>> jobs(kThreads);  // memory per thread; kernels and plans are shared
  for (auto& mine : jobs)
    for (const char* line : kLines)
      for (const Backend* b : takers(case_of(line).problem, gpu_)) {
        auto on = std::make_unique<Placed>(line, 0);
        ASSERT_EQ(on->plan_for(*b, gpu_).message, "");
        if (!on->fits()) continue;
        Written alone = on->fresh(stream_.get());
        mine.push_back({std::move(on), std::move(alone)});
      }
  std::atomic<int> wrong{0}, refused{0}, ready{0};
  const auto work = [&](std::vector<Job>& mine) {
    cuda::OwnStream streams[2];
    for (cuda::OwnStream& s : streams)
      if (!s.open(0).ok()) ++refused;
    ++ready;
    while (ready < kThreads) std::this_thread::yield();
    for (int round = 0; round < kRounds; ++round) {
      for (size_t n = 0; n < mine.size(); ++n) mine[n].on->reset(streams[n % 2].get());
      for (size_t n = 0; n < mine.size(); ++n)
        if (!mine[n].on->run(streams[n % 2].get()).ok()) ++refused;
      for (size_t n = 0; n < mine.size(); ++n)
        if (mine[n].on->results(streams[n % 2].get()) != mine[n].alone) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (auto& mine : jobs) threads.emplace_back(work, std::ref(mine));
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(wrong, 0);
}

TEST_F(Streams, every_gpu_gets_the_same_and_the_current_one_stays) {
  int gpus = 0;
  ASSERT_EQ(cuda::count(gpus).message, "");
  if (gpus < 2) GTEST_SKIP() << "there is one GPU here";
  for (const char* line : kLines) {
    const Backend* b = find_backend(case_of(line).problem.pass == Pass::forward ? "sm80_forward" : "sm80_backward");
    if (!b->supports(case_of(line).problem, gpu_).ok()) continue;
    Placed here(line, 0);
    ASSERT_EQ(here.plan_for(*b, gpu_).message, "");
    const Written wanted = here.fresh(stream_.get());
    for (int n = 1; n < gpus; ++n) {
      Device other;
      ASSERT_EQ(cuda::device(n, other).message, "");
      if (other.name != gpu_.name) continue;  // different tiles, different bits
      cuda::OwnStream stream;
      ASSERT_EQ(stream.open(n).message, "");
      Placed there(line, n);
      ASSERT_EQ(there.plan_for(*b, other).message, "");
      EXPECT_EQ(there.fresh(stream.get()), wanted) << "cuda:" << n << ": " << line;
      int current = -1;
      ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
      EXPECT_EQ(current, 0);
    }
  }
}

}  // namespace
}  // namespace attune
