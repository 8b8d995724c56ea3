// The one timer. Everything that is compared, ours and others', is a Subject of one call of `measure`, sample by sample
// in a random order, so that a drift of the machine meets them all alike.
#pragma once
#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "tool/timing/clock.h"
#include "tool/timing/statistics.h"

namespace attune {

// One thing to time. On the CPU `run` returns when the work is done; of a device it enqueues, and a Stopwatch takes the
// time. Without one, `drain` waits and is then part of the time.
struct Subject {
  std::string name{};
  void* context = nullptr;
  bool (*run)(void* context) = nullptr;      // false: it failed, and `why` says how
  void (*prepare)(void* context) = nullptr;  // before every sample, outside of the timed window; optional
  void (*drain)(void* context) = nullptr;    // returns when the enqueued work is done; optional
  std::string (*why)(void* context) = nullptr;
};

// Samples taken in one go, with nobody waiting in between.
struct Batch {
  std::span<double> ns{};  // of each sample, whole
  double mhz = 0;          // the clock that the device had meanwhile; 0: not known
  bool late = false;       // the host was too slow: its launches may be in the times
};

// A device's own clock. It enqueues a whole batch, flushes included, and waits once.
struct Stopwatch {
  void* context = nullptr;
  int calls = 0;           // of every sample; 0: as many as the engine wants
  Status (*take)(void* context, const Subject&, int calls, Batch&) = nullptr;
};

struct TimingSettings {
  double precision = 0.01;     // stop where half the interval of the median is within this share of it
  double max_seconds = 10;     // for each subject, warm-up included; then at least `few` samples are there, and no more
  int min_samples = 30, max_samples = 10000, min_early = 3;
  double warm_up_seconds = 0.1;  // at least, and until the samples settle
  int warm_up_calls = 0;         // at least
  // How fast a machine at its power limit is depends on what it did just before, so every block of samples begins in
  // the same state: after so much rest, or after so much of its own work, untimed. 0: right behind the block before it.
  double rest_seconds = 0, heat_seconds = 0;
  bool cold = false;           // flush before every sample, one call each
  void (*flush)(void* context) = nullptr;
  void* flush_context = nullptr;
  const Stopwatch* stopwatch = nullptr;  // of a device; null: the host's clock
  uint64_t seed = 1;           // of the order
  const std::atomic<bool>* stop = nullptr;  // set: end with what is there
  void (*progress)(void* context, double share) = nullptr;  // of the time or of the precision, whichever is nearer
  void* progress_context = nullptr;
};

struct Timing {
  Status status{};               // of the subject: a failure ends only this one
  std::vector<double> samples{}; // nanoseconds of one call, in the order taken; each the mean of `calls` calls
  std::vector<double> mhz{};     // the device's clock at each of them; empty without a stopwatch
  int late_batches = 0;
  int calls = 1;
  std::string ended_by{};        // precision | time | samples | interrupt | failure
  double warm_up_s = 0;
  int warm_up_calls = 0;
  bool asynchronous = false;     // `run` returned before the work was done; the wait is in the time
};

std::vector<Timing> measure(std::span<const Subject>, const TimingSettings&, const Clock&);

// An empty call through the same path: what the timer itself costs.
double floor_ns(const TimingSettings&, const Clock&, const Subject* empty = nullptr);

// Times a subject against itself, as two: the spread is the smallest difference that may be claimed.
Ratio against_itself(const Subject&, TimingSettings, const Clock&);

// Writes `bytes` of memory of its own: whatever was cached is gone afterwards. Twice the last-level cache is enough.
class CacheFlush {
 public:
  explicit CacheFlush(size_t bytes) : memory_(bytes) {}
  void operator()();

 private:
  std::vector<char> memory_;
  char value_ = 0;
};
size_t last_level_cache_bytes();  // of this machine; 32 MiB where it does not say

}  // namespace attune
