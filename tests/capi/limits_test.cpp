// SPDX-License-Identifier: Apache-2.0
// The library under limits of the process: a call neither opens what it does not need nor ends the program.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "attune/attune.h"

namespace attune {
namespace {

int call(const char* line) {
  attune_problem problem{};
  problem.size = sizeof problem;
  if (attune_problem_parse(line, &problem)) return 1;
  static float q[32], out[32];
  const int64_t shape[] = {1, 4, 1, 8};
  attune_tensor t[4]{};
  attune_args args{};
  args.size = sizeof args;
  for (int r = ATTUNE_Q; r <= ATTUNE_OUT; ++r) {
    t[r].data = r == ATTUNE_OUT ? out : q, t[r].device.type = 1, t[r].ndim = 4, t[r].shape = shape;
    t[r].dtype.code = 2, t[r].dtype.bits = 32, t[r].dtype.lanes = 1, t[r].axes = "bshd";
    args.role[r] = &t[r];
  }
  return attune_call(&problem, &args, nullptr);
}
constexpr const char* kLine = "forward f32 b1 h1 q4 k4 d8 full";

bool has_blas_open() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    for (const char* const name : {"libopenblas", "libmkl_rt", "libblis", "libblas", "libnvpl_blas"})
      if (line.find(name) != line.npos) return true;
  return false;
}

rlim_t address_space() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  return pages * rlim_t(sysconf(_SC_PAGESIZE));
}

// How a child that ran `f` ended: its exit code, or 128 + signal. It ends by exit(), as a program does.
template <class F>
int in_child(F f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    std::exit(f());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The tests run in this order: none before the last may open a BLAS in this process.
TEST(Limits, a_call_opens_no_blas) {
  ASSERT_FALSE(has_blas_open());
  EXPECT_EQ(call(kLine), 0) << attune_last_error();
  attune_problem problem{};
  problem.size = sizeof problem;
  ASSERT_EQ(attune_problem_parse(kLine, &problem), 0);
  size_t bytes = 0;
  EXPECT_EQ(attune_workspace(&problem, nullptr, &bytes), 0) << attune_last_error();
  attune_plan* plan = nullptr;
  ASSERT_EQ(attune_plan_create(&problem, nullptr, nullptr, &plan), 0) << attune_last_error();
  attune_plan_destroy(plan);
  EXPECT_FALSE(has_blas_open());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which reserve terabytes of address space
TEST(Limits, calls_and_refusals_survive_limits_of_threads_and_memory) {
  ASSERT_FALSE(has_blas_open());
  for (const bool threads : {true, false})
    for (const bool by_name : {true, false})
      EXPECT_EQ(in_child([&] {
        // A new number of threads is a first use, which reads the environment.
        if (by_name) setenv("ATTUNE_BACKEND", "cpu_standard", 1), attune_set_threads(7);
        if (threads) {
          const rlimit one{1, 1};
          if (setuid(65534) || setrlimit(RLIMIT_NPROC, &one)) return 0;  // requires root
        } else {
          const rlim_t most = address_space() + (rlim_t(30) << 20);
          const rlimit few{most, most};
          if (setrlimit(RLIMIT_AS, &few)) return 2;
        }
        const int code = call(kLine);
        if (!by_name) return code;
        const std::string why = attune_last_error();
        return !code || why.find("cpu_standard: needs a BLAS library: ") != why.npos ? 0 : 3;
      }), 0) << "threads " << threads << ", by name " << by_name;
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * size_t(sysconf(_SC_PAGESIZE));
}

// A plan takes almost a kilobyte: without a bound of the cache, these take 17 MB. Only calls use the cache.
TEST(Limits, a_stream_of_different_problems_keeps_its_memory) {
  EXPECT_EQ(in_child([] {
    static float q[4 * 8], out[4 * 8];
    const int64_t shape[] = {1, 4, 1, 8};
    attune_tensor t[4]{};
    attune_args args{};
    args.size = sizeof args;
    for (int r = 0; r < 4; ++r) {
      t[r].data = r == ATTUNE_OUT ? out : q, t[r].device.type = 1, t[r].ndim = 4, t[r].shape = shape;
      t[r].axes = "bshd", t[r].dtype.code = 2, t[r].dtype.bits = 32, t[r].dtype.lanes = 1;
      args.role[r] = &t[r];
    }
    size_t before = 0;
    if (attune_set_threads(1)) return 3;  // a helper's turn takes long on a busy machine
    for (int n = 4; n < 20000; ++n) {
      attune_problem problem{};
      problem.size = sizeof problem;
      const std::string line = "forward f32 b1 h1 q4 k" + std::to_string(n) + " d8 full";
      if (attune_problem_parse(line.c_str(), &problem) || attune_call(&problem, &args, nullptr)) return 1;
      if (n == 6000) before = resident_bytes();  // the cache is full
    }
    return resident_bytes() < before + (size_t(4) << 20) ? 0 : 2;
  }), 0);
}
#endif

// Rows of a call, of which the lengths in its problem are bounds: a call that walked the bound would go on for minutes.
TEST(Limits, the_work_of_selected_attention_is_that_of_its_rows) {
  EXPECT_EQ(in_child([] {
    constexpr int kBatch = 256, kRows = 65, kDim = 8, kListed = 3;
    attune_problem problem{};
    problem.size = sizeof problem;
    if (attune_problem_parse("forward f32 b256 h1 q2147483647 k65 d8 causal : selected n=3 s=8", &problem)) return 1;
    static float q[kBatch * kRows * kDim], out[kBatch * kRows * kDim];
    static int32_t blocks[kBatch * kRows * kListed];
    const int64_t rows[] = {kBatch, kRows, 1, kDim}, lists[] = {kBatch, kRows, 1, kListed};
    attune_tensor t[5]{};
    attune_args args{};
    args.size = sizeof args;
    for (int r = 0; r < 5; ++r) {
      const bool is_list = r == 4;
      t[r].data = is_list ? static_cast<void*>(blocks) : r == ATTUNE_OUT ? out : q;
      t[r].device.type = 1, t[r].ndim = 4, t[r].shape = is_list ? lists : rows, t[r].axes = "bshd";
      t[r].dtype.code = is_list ? 0 : 2, t[r].dtype.bits = 32, t[r].dtype.lanes = 1;
      args.role[is_list ? ATTUNE_VARIANT : r] = &t[r];
    }
    return attune_call(&problem, &args, nullptr) ? 2 : 0;
  }), 0) << attune_last_error();
}

TEST(Limits, a_plan_by_name_opens_one) {
  attune_problem problem{};
  problem.size = sizeof problem;
  ASSERT_EQ(attune_problem_parse(kLine, &problem), 0);
  attune_plan* plan = nullptr;
  const int code = attune_plan_create(&problem, nullptr, "cpu_standard", &plan);
  EXPECT_EQ(code == 0, has_blas_open()) << attune_last_error();
  attune_plan_destroy(plan);
}

}  // namespace
}  // namespace attune
