// SPDX-License-Identifier: Apache-2.0
// A loop over independent tasks, on all threads of this process.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "machine/cpu/threads.h"
#include "machine/host.h"

namespace attune {

// Calls f(n, worker) for 0 <= n < count, `chunk` of them at a time. `workers` bounds the concurrency.
template <class F>
void each_task(int64_t count, int64_t chunk, int workers, const F& f) {
  std::atomic<int64_t> next{0};
  auto work = [&](int worker) {
    for (int64_t first; (first = next.fetch_add(chunk)) < count;)
      for (int64_t n = first; n < std::min(count, first + chunk); ++n) f(n, worker);
  };
  const int64_t chunks = (count + chunk - 1) / chunk;
  parallel(int(std::clamp<int64_t>(chunks, 1, std::max(workers, 1))), work);
}
template <class F>
void each_task(int64_t count, int64_t chunk, const F& f) {
  each_task(count, chunk, default_threads(), [&](int64_t n, int) { f(n); });
}

}  // namespace attune
