// SPDX-License-Identifier: Apache-2.0
// The timer. Everything that is compared, our backends and peers, is a Subject of one call of `measure`. Samples are
// interleaved in a random order, so that drift of the machine affects all subjects alike.
#pragma once
#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "tool/timing/clock.h"
#include "tool/timing/load.h"
#include "tool/timing/statistics.h"

namespace attune {

// Something to time. On the CPU `run` returns when the work is done. On a device it enqueues, and a Stopwatch takes the
// time; without a Stopwatch, `drain` waits and is part of the time.
struct Subject {
  std::string name{};
  void* context = nullptr;
  bool (*run)(void* context) = nullptr;      // false on failure; `why` returns the reason
  void (*prepare)(void* context) = nullptr;  // called before every sample, outside the timed window; optional
  void (*drain)(void* context) = nullptr;    // returns when the enqueued work is done; optional
  std::string (*why)(void* context) = nullptr;
};

// Samples taken in one go, without waits in between.
struct Batch {
  std::span<double> ns{};  // total time of each sample
  double mhz = 0;          // clock of the device meanwhile; 0: unknown
  bool late = false;       // the host was too slow, so the times may include its launches
};

// The clock of a device. It enqueues a whole batch, flushes included, and waits once.
struct Stopwatch {
  void* context = nullptr;
  int calls = 0;           // calls per sample; 0: the engine decides
  Status (*take)(void* context, const Subject&, int calls, Batch&) = nullptr;
};

struct TimingSettings {
  double precision = 0.01;     // stop when half the interval of the median is within this share of the median
  double max_seconds = 10;     // per subject, warm-up included; ends the timing once `min_early` samples exist
  int min_samples = 30, max_samples = 10000, min_early = kFewestSamples;
  double warm_up_seconds = 0.1;  // minimum; the warm-up also lasts until the samples settle
  int warm_up_calls = 0;         // minimum, as far as the limit of the warm-up allows
  bool warm_up_all = false;      // the minimum was asked for, so its limit is max_seconds
  // The speed of a machine at its power limit depends on what it did just before. So every block of samples begins in
  // the same state: after this much rest, or after this much untimed work of the subject. 0: right after the previous
  // block.
  double rest_seconds = 0, heat_seconds = 0;
  bool cold = false;           // flush before every sample, one call each
  void (*flush)(void* context) = nullptr;
  void* flush_context = nullptr;
  const Stopwatch* stopwatch = nullptr;  // clock of a device; null: the host's clock
  LoadCounters (*load)(void* context) = nullptr;  // reads how busy the machine is, before and after everything else
  void* load_context = nullptr;
  uint64_t seed = 1;           // seed of the order
  const std::atomic<bool>* stop = nullptr;  // when set, end with the samples so far
  void (*progress)(void* context, double share) = nullptr;  // share of the time or of the precision, the larger one
  void* progress_context = nullptr;
};

struct Timing {
  Status status{};               // a failure ends only this subject
  std::vector<double> samples{}; // nanoseconds per call, in the order taken; each the mean of `calls` calls
  std::vector<double> mhz{};     // clock of the device at each sample; empty without a stopwatch
  int late_batches = 0;
  int calls = 1;
  std::string ended_by{};        // precision | time | samples | interrupt | failure
  double warm_up_s = 0;
  int warm_up_calls = 0;
  bool asynchronous = false;     // `run` returned before the work was done; the time includes the wait
  Load load{};                   // of the machine meanwhile; subjects take turns, so all have the same
};

std::vector<Timing> measure(std::span<const Subject>, const TimingSettings&, const Clock&);

// The time of an empty call through the same path, which is the cost of the timer.
double floor_ns(const TimingSettings&, const Clock&, const Subject* empty = nullptr);

// Times a subject against itself, with at least kFewestSamples of each. The spread is the smallest difference that may
// be claimed.
Ratio against_itself(const Subject&, TimingSettings, const Clock&);

// Writes `bytes` of its own memory to evict everything from the caches. Twice the last-level cache is enough.
class CacheFlush {
 public:
  explicit CacheFlush(size_t bytes) : memory_(bytes) {}
  void operator()();

 private:
  std::vector<char> memory_;
  char value_ = 0;
};
size_t last_level_cache_bytes();  // of this machine; 32 MiB if unknown

}  // namespace attune
