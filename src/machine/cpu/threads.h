// The library's threads: one pool a process, made on first use.
#pragma once

namespace attune {

// Runs work(context, worker) on `workers` threads, the caller among them (worker 0), and returns when all are done.
// While another call holds the pool, the workers run one after the other on the caller's thread: every call makes
// progress whatever else is going on, and none waits for a stranger. Safe from any thread, and after fork().
void parallel(int workers, void (*work)(void* context, int worker), void* context);

template <class F>
void parallel(int workers, F& f) {
  parallel(workers, [](void* context, int worker) { (*static_cast<F*>(context))(worker); }, &f);
}

}  // namespace attune
