// SPDX-License-Identifier: Apache-2.0
// One plan cache, many threads: eight threads call the same problems, half of them not planned before, while the number
// of threads per run changes. Every result equals that of a single thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "attune/attune.h"

namespace {

constexpr int kThreads = 8, kProblems = 24, kRounds = 12, kDim = 8;

struct Call {
  std::vector<float> q, k, v, out;
  int64_t queries[4], keys[4];
  attune_tensor tensor[4]{};
  attune_problem problem{};
  attune_args args{};

  explicit Call(int n) {
    const int len = 3 + n, heads = 1 + n % 3;
    const std::string line = "forward f32 b1 h" + std::to_string(heads) + " q" + std::to_string(len) + " k" +
                             std::to_string(len + 5) + " d8 " + (n % 2 ? "causal" : "full");
    problem.size = sizeof problem;
    args.size = sizeof args;
    EXPECT_EQ(attune_problem_parse(line.c_str(), &problem), 0) << attune_last_error();
    const int64_t shape_q[] = {1, len, heads, kDim}, shape_k[] = {1, len + 5, heads, kDim};
    std::copy_n(shape_q, 4, queries), std::copy_n(shape_k, 4, keys);
    q.resize(size_t(len * heads * kDim)), out.resize(q.size());
    k.resize(size_t((len + 5) * heads * kDim)), v.resize(k.size());
    for (size_t i = 0; i < q.size(); ++i) q[i] = std::sin(float(i + size_t(n)));
    for (size_t i = 0; i < k.size(); ++i) k[i] = std::cos(float(i * 3)), v[i] = std::sin(float(i * 7));
    float* data[] = {q.data(), k.data(), v.data(), out.data()};
    for (int r = ATTUNE_Q; r <= ATTUNE_OUT; ++r) {
      attune_tensor& t = tensor[r];
      t.data = data[r], t.device.type = 1, t.ndim = 4, t.axes = "bshd";
      t.dtype.code = 2, t.dtype.bits = 32, t.dtype.lanes = 1;
      t.shape = r == ATTUNE_K || r == ATTUNE_V ? keys : queries;
      args.role[r] = &t;
    }
  }
  Call(const Call&) = delete;
  bool run() { return attune_call(&problem, &args, nullptr) == 0; }
};

TEST(Threads, share_one_cache) {
  std::vector<std::vector<float>> expected;
  for (int n = 0; n < kProblems; ++n) {
    Call call(n);
    attune_plan* plan = nullptr;
    ASSERT_EQ(attune_plan_create(&call.problem, "cpu", "reference", &plan), 0) << attune_last_error();
    ASSERT_EQ(attune_plan_run(plan, &call.args, nullptr), 0) << attune_last_error();
    attune_plan_destroy(plan);
    expected.push_back(call.out);
  }
  std::atomic<int> wrong{0}, mixed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round)
        for (int n = 0; n < kProblems; ++n) {
          const int which = (n * (2 * t + 1) + round) % kProblems;
          Call call(which);
          if (!call.run()) ++wrong;
          for (size_t i = 0; i < call.out.size(); ++i)
            if (!(std::fabs(call.out[i] - expected[size_t(which)][i]) < 1e-5f)) ++wrong;
          // Error messages are per thread.
          call.args.role[t % 2 ? ATTUNE_K : ATTUNE_V] = nullptr;
          const std::string mine = t % 2 ? "k: not given" : "v: not given";
          if (call.run() || !std::string(attune_last_error()).starts_with(mine)) ++mixed;
          if (t == 0 && n == 0) attune_set_threads(round % 3);
        }
    });
  for (std::thread& t : threads) t.join();
  attune_set_threads(0);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(mixed, 0);
}

TEST(Threads, share_one_plan) {
  Call first(7);
  attune_plan* plan = nullptr;
  ASSERT_EQ(attune_plan_create(&first.problem, nullptr, nullptr, &plan), 0) << attune_last_error();
  ASSERT_EQ(attune_plan_run(plan, &first.args, nullptr), 0) << attune_last_error();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        Call call(7);
        if (attune_plan_run(plan, &call.args, nullptr) || call.out != first.out) ++wrong;
      }
    });
  for (std::thread& t : threads) t.join();
  attune_plan_destroy(plan);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
