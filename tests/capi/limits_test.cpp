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
#endif

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
