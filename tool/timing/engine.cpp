// Rounds: in each, every subject takes a block of samples, the order of subjects drawn at random and mirrored in the
// next round (ABBA), so that a linear drift cancels. In warm mode a block begins with a call that is not timed: warm
// means that this subject ran just before, not that another one left its data and its spinning threads behind.
// With a stopwatch a block is one batch on the device, and the stopwatch does the same there. Rest, or the work that
// heats the machine up, comes before each block, and counts as time of its subject.
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
constexpr double kShortest = 20e3;       // ns: a shorter call is timed several at once
constexpr double kBlock = 20e6;          // ns a block takes, or one sample where that is longer
constexpr double kShortBlock = 10e6;     // and behind a rest of at most 20 ms
constexpr double kRewarm = 200e6;        // ns: a longer call does not notice what ran before it
constexpr int kMostCalls = 100000;
constexpr int kMostEnqueued = 16;        // calls of a sample on a device
constexpr int kMostInQueue = 64;         // and of a batch: a device's queue has room for a thousand launches
constexpr int kBurst = 10;               // samples behind a rest: what follows is no burst any more
constexpr int kBatch = 16;               // samples of a block on a device

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

  // `count` samples into `to`, as the mean nanoseconds of a call; on a host's clock one.
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

  // Mean nanoseconds of a call; below 0: the subject failed. Only what is between the two readings is timed.
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

  // By time and until stable, never by a count: the first calls meet cold caches, clocks and thread pools.
  void warm_up(State& s) {
    const int64_t start = clock.now();
    const double limit = std::min(std::max(1.0, 10 * set.warm_up_seconds), 0.25 * set.max_seconds) * kSecond;
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
      if (called && passed >= set.warm_up_seconds * kSecond && (settled(seen) || passed + seen.back() > limit)) break;
      if (passed >= limit || stopped() || seen.size() > 1000000) break;
    }
    s.spent = double(clock.now() - start);
    s.timing.warm_up_s = s.spent / kSecond;
    s.estimate = median(std::span(seen).last(std::min<size_t>(seen.size(), 10)));
    if (!set.cold && !(set.stopwatch && set.stopwatch->calls))
      s.timing.calls = int(std::clamp(std::ceil(std::max(kShortest, 100 * grain) / std::max(s.estimate, 1.0)), 1.0,
                                      double(set.stopwatch ? kMostEnqueued : kMostCalls)));
  }

  // The subject's own work, untimed and unflushed; on a device the timed batch is enqueued behind it without a wait.
  bool heat(State& s) {
    if (set.heat_seconds <= 0) return true;
    const double calls = std::ceil(set.heat_seconds * kSecond / std::max(s.estimate, 1.0));
    for (int n = int(std::min(calls, double(kMostCalls))); n > 0 && !stopped(); --n)
      if (!call(s)) return false;
    return true;
  }

  // A block that is long beside its rest ends in another state than it began in, and whether a median falls on its
  // first samples or on its last ones is chance: on an H200, kernels of 6 ms came out 3 % apart with 20 ms of rest and
  // blocks of three, and 0.5 % apart with one each.
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
    const int want = int(std::clamp(block_ns() / std::max(one, 1.0), 1.0, double(most)));
    if (set.stopwatch) {
      samples(s, want, s.timing.samples);
    } else {
      if (!set.cold && one < kRewarm && !call(s)) return;
      if (s.subject.drain) s.subject.drain(s.subject.context);
      for (int n = 0; n < want && !stopped() && !s.done; ++n) {
        samples(s, 1, s.timing.samples);
        if (double(clock.now() - start) > 4 * kBlock) break;  // a cold flush is longer than the samples
      }
    }
    s.spent += double(clock.now() - start);
  }

  // Where a subject stands, from 0 to 1; at 1 it is done.
  double judge(State& s) {
    Timing& t = s.timing;
    const int n = int(t.samples.size());
    const double width = n >= set.min_early ? half_width(median_interval(t.samples), median(t.samples)) : INFINITY;
    const auto end = [&](const char* why) { return t.ended_by = why, s.done = true, 1.0; };
    if (n >= set.min_samples && width <= set.precision) return end("precision");
    if (n >= set.max_samples) return end("samples");
    const double share = s.spent / (set.max_seconds * kSecond);
    if (n >= set.min_early && share + s.estimate * t.calls / (set.max_seconds * kSecond) > 1) return end("time");
    // Width falls with the root of the samples, so its square is the share of the way.
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
  for (State& s : states)
    if (!engine.stopped()) engine.warm_up(s);

  std::mt19937_64 random(set.seed);
  std::vector<size_t> order(subjects.size());
  std::iota(order.begin(), order.end(), size_t(0));
  const auto open = [](const State& s) { return !s.done; };
  for (int round = 0; !engine.stopped() && std::any_of(states.begin(), states.end(), open); ++round) {
    if (round % 2) std::reverse(order.begin(), order.end());
    else std::shuffle(order.begin(), order.end(), random);
    // A subject that is precise enough goes on while another is not: samples taken side by side are comparable. One
    // that failed or has used up its time does not.
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
  for (Timing& t : timings)
    if (engine.stopped() && t.ended_by.empty()) t.ended_by = "interrupt";
  return timings;
}

double floor_ns(const TimingSettings& given, const Clock& clock, const Subject* empty) {
  const Subject nothing{.name = "nothing", .run = [](void*) { return true; }};
  TimingSettings set = given;
  if (!set.stopwatch) set.cold = false;  // a device's empty kernel waits for the flush before it, as all others do
  set.max_seconds = 0.3, set.warm_up_seconds = 0.01, set.progress = nullptr;
  set.rest_seconds = set.heat_seconds = 0;
  return median(measure(std::span(empty ? empty : &nothing, 1), set, clock)[0].samples);
}

Ratio against_itself(const Subject& subject, TimingSettings set, const Clock& clock) {
  set.progress = nullptr;
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
    if (now == start) break;  // a clock that stands still between two calls
    least = std::min(least, now - start);
  }
  return least == INT64_MAX ? 1.0 : double(least);
}

}  // namespace attune
