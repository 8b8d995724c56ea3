// SPDX-License-Identifier: Apache-2.0
#include "machine/cpu/threads.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#define ATTUNE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ATTUNE_TSAN 1
#endif
#endif

namespace attune {
namespace {

// Runs every worker once. Plain integers, so that the thread sanitizer detects a race.
bool each_once(int workers) {
  std::vector<int> runs(workers);
  auto work = [&](int worker) { ++runs[worker]; };
  parallel(workers, work);
  for (int n : runs)
    if (n != 1) return false;
  return true;
}

TEST(Threads, every_worker_runs_once) {
  for (int workers : {1, 2, 3, 8, 2, 33, 1}) EXPECT_TRUE(each_once(workers)) << workers;
  int runs = 0;
  auto work = [&](int) { ++runs; };
  parallel(0, work);
  EXPECT_EQ(runs, 0);
}

TEST(Threads, workers_are_threads_and_the_caller_is_worker_0) {
  // Two workers that wait for each other finish only if they run concurrently.
  std::atomic<int> here{0};
  std::thread::id first{};
  auto meet = [&](int worker) {
    if (worker == 0) first = std::this_thread::get_id();
    ++here;
    while (here < 2) std::this_thread::yield();
  };
  parallel(2, meet);
  EXPECT_EQ(here, 2);
  EXPECT_EQ(first, std::this_thread::get_id());
}

TEST(Threads, many_short_jobs_one_after_the_other) {
  long total = 0;
  for (int n = 0; n < 2000; ++n) {
    long part[4] = {};
    auto work = [&](int worker) { part[worker] = worker + n; };
    parallel(4, work);
    for (long p : part) total += p;
  }
  EXPECT_EQ(total, 2000 * 6 + 4 * (1999L * 2000 / 2));
}

TEST(Threads, jobs_after_the_helpers_fell_asleep) {
  for (int n = 0; n < 20; ++n) {
    EXPECT_TRUE(each_once(3));
    usleep(300);
  }
}

TEST(Threads, many_callers_at_once_all_make_progress) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 6; ++c)
    callers.emplace_back([&] {
      for (int n = 0; n < 200; ++n) wrong += !each_once(1 + n % 5);
    });
  for (auto& c : callers) c.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, a_busy_pool_runs_workers_on_the_caller) {
  bool same = true;
  auto outer = [&](int worker) {
    if (worker) return;
    const auto me = std::this_thread::get_id();
    auto inner = [&](int) { same &= std::this_thread::get_id() == me; };
    parallel(4, inner);
  };
  parallel(2, outer);
  EXPECT_TRUE(same);
}

TEST(Threads, nested_calls_finish) {
  std::atomic<int> leaves{0};
  auto outer = [&](int) {
    auto middle = [&](int) {
      auto inner = [&](int) { ++leaves; };
      parallel(3, inner);
    };
    parallel(2, middle);
  };
  parallel(4, outer);
  EXPECT_EQ(leaves, 24);
}

#ifndef ATTUNE_TSAN  // TSan forbids threads in the child of a multithreaded process
// The exit status of a child process; 99 if it does not end within 20 seconds.
template <class F>
int in_child(F f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(f() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

TEST(Threads, a_child_makes_its_own_pool) {
  ASSERT_TRUE(each_once(4));
  EXPECT_EQ(in_child([] {
    std::atomic<int> here{0};
    auto meet = [&](int) {
      ++here;
      while (here < 2) std::this_thread::yield();
    };
    parallel(2, meet);
    return each_once(4) && each_once(6);
  }), 0);
  EXPECT_TRUE(each_once(4));
}

TEST(Threads, a_child_with_the_number_of_its_parent_makes_its_own_pool) {
  // In two new PID namespaces, one inside the other, parent and child are both process 1.
  const auto nested = [] {
    if (unshare(CLONE_NEWPID)) return 2;
    return in_child([] {
      return getpid() == 1 && each_once(4) && !unshare(CLONE_NEWPID) &&
             in_child([] { return getpid() == 1 && each_once(4); }) == 0;
    });
  };
  const pid_t child = fork();
  if (child == 0) _exit(nested());
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "PID namespaces cannot be created here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Threads, a_child_made_inside_a_job_does_not_hang) {
  int status[2] = {-1, -1};
  auto work = [&](int worker) { status[worker] = in_child([] { return each_once(3); }); };
  parallel(2, work);
  EXPECT_EQ(status[0], 0);
  EXPECT_EQ(status[1], 0);
}

TEST(Threads, a_grandchild_too) {
  EXPECT_EQ(in_child([] { return each_once(3) && in_child([] { return each_once(3); }) == 0 && each_once(3); }), 0);
}

// The helper threads sleep while static objects are destroyed.
TEST(Threads, a_process_with_a_pool_exits_cleanly) {
  EXPECT_EQ(in_child([]() -> bool {
    each_once(8);
    std::exit(0);
  }), 0);
}
#endif

}  // namespace
}  // namespace attune
