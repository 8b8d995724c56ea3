// SPDX-License-Identifier: Apache-2.0
// Threads that persist between calls, so that starting them is not timed. run() calls work(n) in each and waits for
// all.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/status.h"

namespace attune {

class Team {
 public:
  Team(size_t count, std::function<Status(size_t)> work) : work_(std::move(work)), results_(count) {
    try {
      for (size_t n = 0; n < count; ++n) threads_.emplace_back([this, n] { serve(n); });
    } catch (...) {
      stop();
      throw;  // std::system_error: not so many threads can be started
    }
  }
  ~Team() { stop(); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  Status run() {  // the first failure, if any
    std::unique_lock lock(mutex_);
    ++round_, busy_ = threads_.size();
    begin_.notify_all();
    end_.wait(lock, [this] { return busy_ == 0; });
    for (const Status& s : results_)
      if (!s.ok()) return s;
    return Status::good();
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    begin_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  void serve(size_t n) {
    uint64_t done = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      begin_.wait(lock, [&] { return stop_ || round_ != done; });
      if (stop_) return;
      done = round_;
      lock.unlock();
      Status s = work_(n);
      lock.lock();
      results_[n] = std::move(s);
      if (--busy_ == 0) end_.notify_one();
    }
  }

  std::function<Status(size_t)> work_;
  std::vector<Status> results_;
  std::vector<std::thread> threads_{};
  std::mutex mutex_{};
  std::condition_variable begin_{}, end_{};
  uint64_t round_ = 0;
  size_t busy_ = 0;
  bool stop_ = false;
};

}  // namespace attune
