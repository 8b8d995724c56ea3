// SPDX-License-Identifier: Apache-2.0
// A loop over independent tasks, on all threads of this process.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "machine/cpu/threads.h"
#include "machine/host.h"

namespace attune {

// Calls f(n, worker) for 0 <= n < count, `piece` of them at a time. `workers` bounds the concurrency.
template <class F>
void each_task(int64_t count, int64_t piece, int workers, const F& f) {
  std::atomic<int64_t> next{0};
  auto work = [&](int worker) {
    for (int64_t first; (first = next.fetch_add(piece)) < count;)
      for (int64_t n = first; n < std::min(count, first + piece); ++n) f(n, worker);
  };
  const int64_t pieces = (count + piece - 1) / piece;
  parallel(int(std::clamp<int64_t>(pieces, 1, std::max(workers, 1))), work);
}
template <class F>
void each_task(int64_t count, int64_t piece, const F& f) {
  each_task(count, piece, default_threads(), [&](int64_t n, int) { f(n); });
}

}  // namespace attune
