// SPDX-License-Identifier: Apache-2.0
// Threads. Where ggml's CPU backend uses OpenMP, its team waits in OpenMP's pool between two graphs and would compete
// with threads of our own; the same pool serves both.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#else
#include "machine/cpu/threads.h"
#endif

namespace attune::ggml {

// Results that are too small for a normal number become 0 while this lives. ALiBi makes many weights that small, and
// x86 takes a hundred cycles for a product with one. Numbers that are read keep their value.
class FlushesToZero {
#if defined(__x86_64__)
 public:
  FlushesToZero() { __builtin_ia32_ldmxcsr(before_ | kFlush); }
  ~FlushesToZero() { __builtin_ia32_ldmxcsr(before_); }

 private:
  static constexpr unsigned kFlush = 1u << 15;
  const unsigned before_ = __builtin_ia32_stmxcsr();
#else
 public:
  FlushesToZero() {}
  ~FlushesToZero() {}
#endif
};

// f(worker, n) for n in [0, tasks), each once, in about this order.
template <class F>
void each_task(int threads, int64_t tasks, F f) {
  std::atomic<int64_t> next{0};
  auto work = [&](int worker) {
    const FlushesToZero flushes;
    for (int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) f(worker, n);
  };
  const int workers = int(std::min<int64_t>(threads, tasks));
  if (workers <= 1) return work(0);
#ifdef _OPENMP
#pragma omp parallel num_threads(workers)
  work(omp_get_thread_num());
#else
  parallel(workers, work);
#endif
}

}  // namespace attune::ggml
