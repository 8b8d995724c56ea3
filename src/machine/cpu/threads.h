// SPDX-License-Identifier: Apache-2.0
// The library's threads: one pool per process, created on first use.
#pragma once

namespace attune {

// Runs work(context, worker) on `workers` threads, including the caller (worker 0), and returns when all are done.
// While another call holds the pool, the workers run one after another on the caller's thread: every call makes
// progress, and none waits for an unrelated call. Thread-safe, also after fork().
void parallel(int workers, void (*work)(void* context, int worker), void* context);

template <class F>
void parallel(int workers, F& f) {
  parallel(workers, [](void* context, int worker) { (*static_cast<F*>(context))(worker); }, &f);
}

}  // namespace attune
