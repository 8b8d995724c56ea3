// SPDX-License-Identifier: Apache-2.0
// The thread pool. A job is a function and a number of workers; helper n waits for its own ticket to change, so a small
// job wakes only the threads it needs. Every thread spins for 20 us before sleeping: a short problem takes a
// millisecond, and a sleeping thread takes 50 us to wake.
#include "machine/cpu/threads.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace attune {
namespace {

constexpr int kMaxHelpers = 1023;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` is a no-op on most cores; isb takes about as long as x86's pause
#endif
}

// Waits until `ready` holds for the value of `from`.
template <class T, class Ready>
T await(const std::atomic<T>& from, Ready ready) {
  using Clock = std::chrono::steady_clock;
  T value = from.load(std::memory_order_acquire);
  for (const auto end = Clock::now() + std::chrono::microseconds(20); !ready(value) && Clock::now() < end;
       value = from.load(std::memory_order_acquire))
    for (int n = 0; n < 16; ++n) relax();
  for (; !ready(value); value = from.load(std::memory_order_acquire)) from.wait(value, std::memory_order_acquire);
  return value;
}

struct alignas(64) Helper { std::atomic<uint32_t> ticket{0}; };

// Never destroyed: helpers may outlive every static object of the process. After fork() the child has the pool's memory
// but none of its threads, so it starts another.
struct Pool {
  Pool* older = nullptr;  // of the parent process; stays reachable
  std::atomic<bool> busy{false};
  std::atomic<int> left{0};  // helpers that have not finished the job
  void (*work)(void*, int) = nullptr;
  void* context = nullptr;
  std::vector<std::unique_ptr<Helper>> helpers{};

  void serve(Helper& me, int worker) {
    for (uint32_t seen = 0;;) {
      seen = await(me.ticket, [&](uint32_t ticket) { return ticket != seen; });
      work(context, worker);
      if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) left.notify_one();
    }
  }

  // As many as requested, or as the system allows. Helpers block all signals: handlers belong to the application, and
  // run in its threads.
  int grow(int wanted) {
    if (int(helpers.size()) >= wanted) return wanted;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      while (int(helpers.size()) < wanted) {
        helpers.reserve(helpers.size() + 1);
        auto helper = std::make_unique<Helper>();
        Helper& me = *helper;
        std::thread([this, &me, worker = int(helpers.size()) + 1] { serve(me, worker); }).detach();
        helpers.push_back(std::move(helper));
      }
    } catch (...) {  // no more threads or memory: the caller does the rest
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return int(helpers.size());
  }

  void run(int workers, void (*job)(void*, int), void* with) {
    const int helping = grow(workers - 1 < kMaxHelpers ? workers - 1 : kMaxHelpers);
    work = job, context = with;
    left.store(helping, std::memory_order_relaxed);
    for (int n = 0; n < helping; ++n) {
      helpers[n]->ticket.fetch_add(1, std::memory_order_release);
      helpers[n]->ticket.notify_one();
    }
    job(with, 0);
    for (int worker = helping + 1; worker < workers; ++worker) job(with, worker);
    await(left, [](int n) { return n == 0; });
  }
};

std::atomic<Pool*> current{nullptr}, of_parent{nullptr};

// Not by comparing getpid(): in a new PID namespace a child may have the number of its parent.
void forget_pool() {
  if (Pool* const gone = current.exchange(nullptr)) gone->older = of_parent.exchange(gone);
}
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, forget_pool);

Pool* pool() {
  Pool* at = current.load(std::memory_order_acquire);
  if (at) return at;
  Pool* made = new (std::nothrow) Pool{};
  if (!made) return nullptr;
  if (current.compare_exchange_strong(at, made, std::memory_order_acq_rel)) return made;
  delete made;  // another thread of this process created the pool first
  return at;
}

}  // namespace

void parallel(int workers, void (*work)(void* context, int worker), void* context) {
  Pool* threads = workers > 1 ? pool() : nullptr;
  if (threads && !threads->busy.exchange(true, std::memory_order_acquire)) {
    threads->run(workers, work, context);
    threads->busy.store(false, std::memory_order_release);
    return;
  }
  for (int worker = 0; worker < workers; ++worker) work(context, worker);
}

}  // namespace attune
