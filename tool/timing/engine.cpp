// SPDX-License-Identifier: Apache-2.0
// The timer works in rounds. In each round every subject takes a block of samples. The order of subjects is random and
// is mirrored in the next round (ABBA), so a linear drift cancels. In warm mode a block begins with an untimed call:
// warm means that this subject ran just before, not that another one left its data and spinning threads behind. With a
// stopwatch a block is one batch on the device, and the stopwatch does the same there. Rest or heating comes before
// each block and counts as time of its subject.
#include "tool/timing/engine.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <numeric>
#include <random>

namespace attune {
namespace {

constexpr double kSecond = 1e9;
constexpr double kShortest = 20e3;       // ns; shorter calls are timed several at once
constexpr double kBlock = 20e6;          // ns per block, or one sample if that is longer
constexpr double kShortBlock = 10e6;     // ns per block after a rest of at most 20 ms
constexpr double kRewarm = 200e6;        // ns; a longer call is not affected by what ran before it
constexpr int kMostCalls = 100000;
constexpr int kMostEnqueued = 16;        // calls per sample on a device
constexpr int kMostInQueue = 64;         // calls per batch; a device's queue holds about a thousand launches
constexpr int kBurst = 10;               // most samples after a rest; later ones are not a burst
constexpr int kBatch = 16;               // samples per block on a device

struct State {
  const Subject& subject;
  Timing& timing;
  double estimate = 0;  // ns of one call
  double spent = 0;     // ns, flushes and untimed calls included
  bool done = false;
};

struct Engine {
  const TimingSettings& set;
  const Clock& clock;
  double grain;

  bool stopped() const { return set.stop && set.stop->load(std::memory_order_relaxed); }

  bool fail(State& s, const std::string& why) {
    s.timing.status = Status::no(s.subject.name, ": ", why);
    s.timing.ended_by = "failure";
    s.done = true;
    return false;
  }
  bool call(State& s) {
    if (s.subject.run(s.subject.context)) return true;
    return fail(s, s.subject.why ? s.subject.why(s.subject.context) : "it failed");
  }

  // Appends `count` samples to `to`, each the mean nanoseconds per call; with the host's clock only one.
  void samples(State& s, int count, std::vector<double>& to, bool warming_up = false) {
    if (!set.stopwatch) {
      const double ns = sample(s);
      if (!s.done) to.push_back(ns);
      return;
    }
    std::vector<double> taken(static_cast<size_t>(count));
    Batch batch{.ns = taken};
    const Status status = set.stopwatch->take(set.stopwatch->context, s.subject, s.timing.calls, batch);
    if (!status.ok()) return void(fail(s, status.message));
    for (const double ns : taken) to.push_back(ns / s.timing.calls);
    if (warming_up) return;
    s.timing.mhz.insert(s.timing.mhz.end(), taken.size(), batch.mhz);
    s.timing.late_batches += batch.late;
  }

  // Mean nanoseconds per call; below 0 if the subject failed. Only the calls between the two readings are timed.
  double sample(State& s) {
    const Subject& subject = s.subject;
    if (subject.prepare) subject.prepare(subject.context);
    if (set.cold && set.flush) set.flush(set.flush_context);
    const int64_t start = clock.now();
    for (int n = 0; n < s.timing.calls; ++n)
      if (!call(s)) return -1;
    const int64_t returned = clock.now();
    if (!subject.drain) return double(returned - start) / s.timing.calls;
    subject.drain(subject.context);
    const int64_t drained = clock.now();
    if (enqueue_only(double(returned - start), double(drained - returned))) s.timing.asynchronous = true;
    return double(drained - start) / s.timing.calls;
  }

  // Warms up for a time and until stable, not for a count: the first calls meet cold caches, clocks and thread pools.
  void warm_up(State& s) {
    const int64_t start = clock.now();
    const double usual = std::min(std::max(1.0, 10 * set.warm_up_seconds), 0.25 * set.max_seconds) * kSecond;
    const double limit = set.warm_up_all ? set.max_seconds * kSecond : usual;
    std::vector<double> seen;
    if (set.stopwatch && set.stopwatch->calls) s.timing.calls = set.stopwatch->calls;
    for (int count = 1;;) {
      samples(s, count, seen, true);
      if (s.done) return;
      const double fit = kBlock / std::max(seen.back() * s.timing.calls, 1.0);
      count = int(std::clamp(fit, 1.0, double(std::min(2 * count, kBatch))));
      s.timing.warm_up_calls = int(seen.size());
      const double passed = double(clock.now() - start);
      const bool called = int(seen.size()) * s.timing.calls >= set.warm_up_calls;
      if (called && passed >= set.warm_up_seconds * kSecond && (settled(seen) || passed + seen.back() > usual)) break;
      if (passed >= limit || stopped() || seen.size() > 1000000) break;
    }
    s.spent = double(clock.now() - start);
    s.timing.warm_up_s = s.spent / kSecond;
    s.estimate = median(std::span(seen).last(std::min<size_t>(seen.size(), 10)));
    if (!set.cold && !(set.stopwatch && set.stopwatch->calls))
      s.timing.calls = int(std::clamp(std::ceil(std::max(kShortest, 100 * grain) / std::max(s.estimate, 1.0)), 1.0,
                                      double(set.stopwatch ? kMostEnqueued : kMostCalls)));
  }

  // Runs the subject untimed and without flushes. On a device the timed batch is enqueued after it without a wait.
  bool heat(State& s) {
    if (set.heat_seconds <= 0) return true;
    const double calls = std::ceil(set.heat_seconds * kSecond / std::max(s.estimate, 1.0));
    for (int n = int(std::min(calls, double(kMostCalls))); n > 0 && !stopped(); --n)
      if (!call(s)) return false;
    return true;
  }

  // A block that is long compared with its rest ends in another state than it began in, and whether the median falls on
  // its first or its last samples is chance. On an H200, kernels of 6 ms differed by 3 % with 20 ms of rest and blocks
  // of three, and by 0.5 % with blocks of one.
  double block_ns() const {
    if (set.rest_seconds <= 0) return kBlock;
    return std::clamp(0.5 * set.rest_seconds * kSecond, kShortBlock, kBlock);
  }

  void block(State& s) {
    const double one = s.estimate * s.timing.calls;
    const int64_t start = clock.now();
    clock.rest(set.rest_seconds * kSecond);
    if (!heat(s)) return;
    const bool replayed = set.stopwatch && set.stopwatch->calls;
    int most = !set.stopwatch ? 8 : replayed ? kBatch : std::clamp(kMostInQueue / s.timing.calls, 1, kBatch);
    if (set.rest_seconds > 0) most = std::min(most, kBurst);
    most = std::min(most, set.max_samples - int(s.timing.samples.size()));
    if (most <= 0) return;
    const int want = int(std::clamp(block_ns() / std::max(one, 1.0), 1.0, double(most)));
    if (set.stopwatch) {
      samples(s, want, s.timing.samples);
    } else {
      if (!set.cold && one < kRewarm && !call(s)) return;
      if (s.subject.drain) s.subject.drain(s.subject.context);
      for (int n = 0; n < want && !stopped() && !s.done; ++n) {
        samples(s, 1, s.timing.samples);
        if (double(clock.now() - start) > 4 * kBlock) break;  // flushes take longer than the samples
      }
    }
    s.spent += double(clock.now() - start);
  }

  // Progress of a subject from 0 to 1; at 1 it is done.
  double judge(State& s) {
    Timing& t = s.timing;
    const int n = int(t.samples.size());
    const double width = n >= set.min_early ? half_width(median_interval(t.samples), median(t.samples)) : INFINITY;
    const auto end = [&](const char* why) { return t.ended_by = why, s.done = true, 1.0; };
    if (n >= set.max_samples) return end("samples");
    if (n >= set.min_samples && width <= set.precision) return end("precision");
    const double share = s.spent / (set.max_seconds * kSecond);
    if (n >= set.min_early && share + s.estimate * t.calls / (set.max_seconds * kSecond) > 1) return end("time");
    // The width falls with the square root of the samples, so its square measures progress.
    const double by_width = std::min(double(n) / set.min_samples, std::min(1.0, std::pow(set.precision / width, 2)));
    return std::clamp(std::max(share, by_width), 0.0, 0.99);
  }
};

}  // namespace

std::vector<Timing> measure(std::span<const Subject> subjects, const TimingSettings& set, const Clock& clock) {
  Engine engine{set, clock, resolution(clock)};
  std::vector<Timing> timings(subjects.size());
  std::vector<State> states;
  for (size_t n = 0; n < subjects.size(); ++n) states.push_back({subjects[n], timings[n]});
  const LoadCounters before = set.load ? set.load(set.load_context) : LoadCounters{};
  for (State& s : states)
    if (!engine.stopped()) engine.warm_up(s);

  std::mt19937_64 random(set.seed);
  std::vector<size_t> order(subjects.size());
  std::iota(order.begin(), order.end(), size_t(0));
  const auto open = [](const State& s) { return !s.done; };
  for (int round = 0; !engine.stopped() && std::any_of(states.begin(), states.end(), open); ++round) {
    if (round % 2) std::reverse(order.begin(), order.end());
    else std::shuffle(order.begin(), order.end(), random);
    // A subject that is precise enough continues while another is not, because interleaved samples are comparable. A
    // subject that failed or has used up its time does not continue.
    const auto goes_on = [](const State& s) { return !s.done || s.timing.ended_by == "precision"; };
    for (const size_t n : order)
      if (goes_on(states[n]) && !engine.stopped()) engine.block(states[n]);
    double least = 1;
    for (State& s : states) {
      if (!goes_on(s) || s.timing.ended_by == "failure") continue;
      s.done = false;
      least = std::min(least, engine.judge(s));
    }
    if (set.progress) set.progress(set.progress_context, least);
  }
  const Load load = set.load ? load_between(before, set.load(set.load_context)) : Load{};
  for (Timing& t : timings) {
    if (engine.stopped() && t.ended_by.empty()) t.ended_by = "interrupt";
    t.load = load;
  }
  return timings;
}

double floor_ns(const TimingSettings& given, const Clock& clock, const Subject* empty) {
  const Subject nothing{.name = "nothing", .run = [](void*) { return true; }};
  TimingSettings set = given;
  if (!set.stopwatch) set.cold = false;  // on a device the empty kernel waits for the flush, like all others
  set.max_seconds = 0.3, set.warm_up_seconds = 0.01, set.progress = nullptr, set.load = nullptr;
  set.rest_seconds = set.heat_seconds = 0;
  return median(measure(std::span(empty ? empty : &nothing, 1), set, clock)[0].samples);
}

Ratio against_itself(const Subject& subject, TimingSettings set, const Clock& clock) {
  set.progress = nullptr, set.load = nullptr;
  set.min_early = std::max(set.min_early, kFewestSamples);
  const Subject both[] = {subject, subject};
  const std::vector<Timing> t = measure(both, set, clock);
  return median_ratio(t[0].samples, t[1].samples);
}

void CacheFlush::operator()() {
  ++value_;
  for (size_t at = 0; at < memory_.size(); at += 64) memory_[at] = value_;
}

size_t last_level_cache_bytes() {
  size_t most = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(join("/sys/devices/system/cpu/cpu0/cache/index", index, "/size"));
    size_t size = 0;
    char unit = 'K';
    if (file >> size >> unit) most = std::max(most, unit == 'M' ? size << 20 : size << 10);
  }
  return most ? most : size_t(32) << 20;
}

Clock host_clock() {
  const auto sleep = [](void*, int64_t ns) {
    const timespec t{.tv_sec = time_t(ns / 1000000000), .tv_nsec = long(ns % 1000000000)};
    nanosleep(&t, nullptr);  // a signal ends it early
  };
  const auto read = [](void*) {
    timespec t{};
#ifdef CLOCK_MONOTONIC_RAW
    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
#endif
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
  };
  return {.read = read, .context = nullptr, .sleep = sleep};
}

double resolution(const Clock& clock) {
  int64_t least = INT64_MAX;
  for (int n = 0; n < 100; ++n) {
    const int64_t start = clock.now();
    int64_t now = start;
    for (int tries = 0; now == start && tries < 100000; ++tries) now = clock.now();
    if (now == start) break;  // a clock that does not advance
    least = std::min(least, now - start);
  }
  return least == INT64_MAX ? 1.0 : double(least);
}

}  // namespace attune
