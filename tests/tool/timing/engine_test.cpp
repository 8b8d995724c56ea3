// SPDX-License-Identifier: Apache-2.0
// The engine on a clock that advances only with work: every property of a measurement, without wall time.
#include "tool/timing/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace attune {
namespace {

struct World {
  int64_t now = 0;
  std::vector<char> log{};  // subjects in call order
  std::mt19937 random{7};
  std::vector<int64_t> rests{};  // start of each rest
  Clock clock() {
    return {.read = [](void* w) { return static_cast<World*>(w)->now; }, .context = this,
            .sleep = [](void* c, int64_t ns) {
              auto* w = static_cast<World*>(c);
              w->rests.push_back(w->now), w->log.push_back('.');
              w->now += ns;
            }};
  }
};

struct Work {
  World& world;
  char letter = 'a';
  double ns = 1e6, noise = 0.01;
  double slow_start = 1;      // factor of the first call, fading over `slow_calls`
  int slow_calls = 0, fails_at = -1, calls = 0, prepared = 0;
  double pending = 0;         // enqueued, not yet waited for
  bool enqueues = false;
  double drift = 0;           // fractional slowdown per second on the clock

  bool run() {
    world.log.push_back(letter);
    if (calls++ == fails_at) return false;
    std::normal_distribution<double> normal(0, noise);
    double cost = ns * std::exp(normal(world.random));
    if (calls < slow_calls) cost *= 1 + (slow_start - 1) * (slow_calls - calls) / slow_calls;
    cost *= 1 + drift * double(world.now) / 1e9;
    if (enqueues) pending += cost, cost = 1000;
    world.now += int64_t(cost);
    return true;
  }
  Subject subject(const char* name = "work") {
    return {.name = name, .context = this, .run = [](void* w) { return static_cast<Work*>(w)->run(); }};
  }
};

TimingSettings quick() {
  TimingSettings s;
  s.max_seconds = 2;
  s.warm_up_seconds = 0.02;
  return s;
}

Timing one(const Subject& s, const TimingSettings& set, World& w) {
  return measure(std::span(&s, 1), set, w.clock())[0];
}

TEST(Measure, stops_where_the_median_is_precise) {
  World w;
  Work work{w};
  const Timing t = one(work.subject(), quick(), w);
  EXPECT_EQ(t.ended_by, "precision");
  EXPECT_GE(t.samples.size(), 30u);
  EXPECT_LE(half_width(median_interval(t.samples), median(t.samples)), 0.01);
  EXPECT_NEAR(median(t.samples), 1e6, 1e4);
}

TEST(Measure, takes_more_samples_of_what_is_noisier) {
  World w;
  Work calm{w}, wild{w};
  wild.noise = 0.05;
  EXPECT_GT(one(wild.subject(), quick(), w).samples.size(), 2 * one(calm.subject(), quick(), w).samples.size());
}

TEST(Measure, stops_by_time_and_says_so) {
  World w;
  Work work{w};
  work.noise = 1;
  const Timing t = one(work.subject(), quick(), w);
  EXPECT_EQ(t.ended_by, "time");
  EXPECT_LT(double(w.now), 2.5e9);
  EXPECT_GT(double(w.now), 1.5e9);
}

TEST(Measure, takes_a_few_samples_of_what_is_longer_than_its_time) {
  World w;
  Work work{w};
  work.ns = 5e9;
  const Timing t = one(work.subject(), quick(), w);
  EXPECT_EQ(t.samples.size(), size_t(kFewestSamples));
  EXPECT_EQ(t.ended_by, "time");
}

TEST(Measure, stops_at_the_most_samples) {
  World w;
  Work work{w};
  work.noise = 1;
  TimingSettings set = quick();
  set.max_samples = 40;
  EXPECT_EQ(one(work.subject(), set, w).ended_by, "samples");
}

TEST(Measure, warms_up_until_stable) {
  World w;
  Work work{w};
  work.slow_start = 3;
  work.slow_calls = 100;  // far longer than the shortest warm-up
  const Timing t = one(work.subject(), quick(), w);
  EXPECT_LT(*std::max_element(t.samples.begin(), t.samples.end()), 1.2e6);
  EXPECT_GE(t.warm_up_calls, 95);
  EXPECT_GT(t.warm_up_s, 0.1);
}

TEST(Measure, a_failing_subject_leaves_the_others_alone) {
  World w;
  Work good{w}, bad{w, 'b'};
  bad.fails_at = 40;
  Subject broken = bad.subject("broken");
  broken.why = [](void*) { return std::string("out of luck"); };
  const Subject both[] = {good.subject("good"), broken};
  const auto t = measure(both, quick(), w.clock());
  EXPECT_TRUE(t[0].status.ok());
  EXPECT_EQ(t[0].ended_by, "precision");
  EXPECT_EQ(t[1].status.message, "broken: out of luck");
  EXPECT_EQ(t[1].ended_by, "failure");
  EXPECT_EQ(bad.calls, 41);
}

TEST(Measure, cold_flushes_before_every_sample_and_never_inside) {
  struct Flush { World& world; int times = 0; };
  World w;
  Work work{w};
  Flush flush{w};
  TimingSettings set = quick();
  set.flush = [](void* f) { static_cast<Flush*>(f)->world.now += 30000000, ++static_cast<Flush*>(f)->times; };
  set.flush_context = &flush;
  set.max_seconds = 20;
  one(work.subject(), set, w);
  EXPECT_EQ(flush.times, 0);
  set.cold = true;
  work.calls = 0;
  const Timing t = one(work.subject(), set, w);
  EXPECT_EQ(flush.times, work.calls);  // including warm-up: every call is flushed
  EXPECT_LT(*std::max_element(t.samples.begin(), t.samples.end()), 1.2e6);
}

TEST(Measure, prepares_outside_of_the_window) {
  World w;
  Work work{w};
  Subject s = work.subject();
  s.prepare = [](void* c) { static_cast<Work*>(c)->world.now += 500000, ++static_cast<Work*>(c)->prepared; };
  const Timing t = one(s, quick(), w);
  EXPECT_NEAR(median(t.samples), 1e6, 1e4);
  EXPECT_GE(work.prepared, int(t.samples.size()));
}

TEST(Measure, times_short_calls_several_at_once_and_tells_one) {
  World w;
  Work work{w};
  work.ns = 200;
  const Timing t = one(work.subject(), quick(), w);
  EXPECT_GE(t.calls, 90);
  EXPECT_NEAR(median(t.samples), 200, 4);
  TimingSettings cold = quick();
  cold.cold = true;
  EXPECT_EQ(one(work.subject(), cold, w).calls, 1);  // a second call would find a warm cache
}

TEST(Measure, a_call_that_only_enqueues_is_seen_and_waited_for) {
  World w;
  Work work{w};
  work.enqueues = true;
  Subject s = work.subject();
  EXPECT_NEAR(median(one(s, quick(), w).samples), 1000, 10);  // the result of a naive timer
  work.pending = 0;
  s.drain = [](void* c) {
    auto* work = static_cast<Work*>(c);
    work->world.now += int64_t(work->pending);
    work->pending = 0;
  };
  const Timing t = one(s, quick(), w);
  EXPECT_TRUE(t.asynchronous);
  EXPECT_NEAR(median(t.samples), 1.001e6, 1e4);
}

TEST(Measure, reads_the_load_before_and_after_everything_else) {
  struct Machine { World& world; int readings = 0; };
  World w;
  Work work{w};
  Machine machine{w};
  TimingSettings set = quick();
  set.load_context = &machine;
  set.load = [](void* m) {
    auto& [world, readings] = *static_cast<Machine*>(m);
    ++readings;
    const double now = double(world.now);
    return LoadCounters{
        .at_ns = now, .own_ns = now, .cpus = 2, .busy_ns = 1.5 * now, .stolen_ns = 0, .all_ns = 2 * now};
  };
  const Subject both[] = {work.subject("one"), work.subject("other")};
  const auto t = measure(both, set, w.clock());
  EXPECT_EQ(machine.readings, 2);
  for (const Timing& one : t) {
    EXPECT_NEAR(one.load.seconds, 1e-9 * double(w.now), 1e-3);
    EXPECT_EQ(one.load.used, 0.5);
    EXPECT_EQ(one.load.others, 0.25);
  }
  floor_ns(set, w.clock()), against_itself(both[0], set, w.clock());
  EXPECT_EQ(machine.readings, 2) << "neither is a row";
  EXPECT_LT(one(both[0], quick(), w).load.others, 0) << "not asked for";
}

// A fake device: it enqueues its work and records exactly how long each call took.
struct Device {
  World& world;
  double ns = 123456;
  int batches = 0, fails_at = -1, longest = 0;
  std::vector<size_t> sizes{};
  std::vector<int> calls{};
  Stopwatch stopwatch(int fixed_calls = 0) {
    return {.context = this, .calls = fixed_calls, .take = [](void* d, const Subject& s, int calls, Batch& batch) {
              return static_cast<Device*>(d)->take(s, calls, batch);
            }};
  }
  Status take(const Subject& s, int n, Batch& batch) {
    if (batches++ == fails_at) return Status::no("lost");
    sizes.push_back(batch.ns.size()), calls.push_back(n);
    longest = std::max(longest, int(batch.ns.size()) * n);
    for (double& sample : batch.ns) {
      for (int c = 0; c < n; ++c) s.run(s.context);
      sample = n * ns;
    }
    world.now += int64_t(double(batch.ns.size()) * n * ns);
    batch.mhz = 1500 + batches;
    batch.late = batches <= 2 || batches == 9;  // while modules load, and once more
    return Status::good();
  }
};

// Time on the device only, invisible to the host's clock.
struct Enqueued {
  int calls = 0;
  Subject subject() {
    return {.name = "kernel", .context = this, .run = [](void* c) { return ++static_cast<Enqueued*>(c)->calls > 0; }};
  }
};

struct MeasureOnDevice : testing::Test {
  World w{};
  Device device{w};
  Enqueued work{};
  Stopwatch watch = device.stopwatch();
  TimingSettings set = timed();

  TimingSettings timed() const {
    TimingSettings s = quick();
    s.stopwatch = &watch;
    return s;
  }
};

TEST_F(MeasureOnDevice, takes_the_devices_own_time_in_batches) {
  set.cold = true;
  const Timing t = one(work.subject(), set, w);
  EXPECT_EQ(median(t.samples), 123456.0);
  EXPECT_EQ(t.calls, 1);
  EXPECT_EQ(t.mhz.size(), t.samples.size());
  EXPECT_GT(t.mhz.front(), 1500);
  EXPECT_LT(device.batches, int(t.samples.size()));           // does not wait for each sample
  EXPECT_EQ(work.calls, t.warm_up_calls + int(t.samples.size()));
  EXPECT_LE(*std::max_element(device.sizes.begin(), device.sizes.end()), 16u);
}

TEST_F(MeasureOnDevice, batches_that_came_too_late_are_counted_but_for_the_warm_up) {
  device.ns = 5e6;
  set.cold = true, set.warm_up_seconds = 0, set.precision = 0;
  const Timing t = one(work.subject(), set, w);
  ASSERT_GT(device.batches, 9);
  ASSERT_LT(t.warm_up_calls, 30);  // seven batches
  EXPECT_EQ(t.late_batches, 1);
}

TEST_F(MeasureOnDevice, short_kernels_are_timed_several_at_once_unless_cold) {
  device.ns = 2500;
  const Timing warm = one(work.subject(), set, w);
  EXPECT_EQ(warm.calls, 8);  // 20 us
  EXPECT_EQ(median(warm.samples), 2500);
  EXPECT_LE(device.longest, 64);  // fits the launch queue
  set.cold = true;
  EXPECT_EQ(one(work.subject(), set, w).calls, 1);
}

TEST_F(MeasureOnDevice, a_graph_has_its_own_number_of_calls) {
  watch = device.stopwatch(24);
  const Timing t = one(work.subject(), set, w);
  EXPECT_EQ(t.calls, 24);
  EXPECT_EQ(std::count(device.calls.begin(), device.calls.end(), 24), std::ptrdiff_t(device.calls.size()));
  EXPECT_EQ(median(t.samples), 123456.0);
}

TEST_F(MeasureOnDevice, a_device_that_is_lost_ends_its_subject_with_a_sentence) {
  device.fails_at = 6;
  const Timing t = one(work.subject(), set, w);
  EXPECT_EQ(t.status.message, "kernel: lost");
  EXPECT_EQ(t.ended_by, "failure");
}

TEST_F(MeasureOnDevice, the_floor_of_a_device_is_measured_as_everything_else) {
  device.ns = 2000;
  set.cold = true;
  const Subject s = work.subject();
  EXPECT_EQ(floor_ns(set, w.clock(), &s), 2000);
  EXPECT_EQ(std::count(device.calls.begin(), device.calls.end(), 1), std::ptrdiff_t(device.calls.size()));
}

TEST_F(MeasureOnDevice, rests_as_long_before_every_batch_and_not_while_it_warms_up) {
  device.ns = 1e6;
  set.cold = true, set.rest_seconds = 0.15, set.max_seconds = 20;
  Enqueued other{};
  const Subject both[] = {work.subject(), other.subject()};
  const auto t = measure(both, set, w.clock());
  const size_t of_warm_up = device.sizes.size() - w.rests.size();
  ASSERT_GE(w.rests.size(), 4u);
  EXPECT_GE(of_warm_up, 4u);
  for (size_t n = 1; n < w.rests.size(); ++n)  // rest, batch, rest, ...
    EXPECT_EQ(w.rests[n] - w.rests[n - 1], int64_t(150e6 + 1e6 * double(device.sizes[of_warm_up + n - 1])));
  EXPECT_EQ(t[0].ended_by, "precision");
  EXPECT_EQ(median(t[0].samples), 1e6);  // rests are not part of samples
}

TEST_F(MeasureOnDevice, a_batch_is_at_most_half_as_long_as_a_short_rest) {
  device.ns = 4e6;
  for (const auto& [rest, samples] : {std::pair(0.02, 2u), {0.03, 3u}, {0.15, 5u}, {0.001, 2u}}) {
    device.sizes.clear();
    set.cold = true, set.rest_seconds = rest, set.max_seconds = 20;
    (void)one(work.subject(), set, w);
    EXPECT_EQ(device.sizes.back(), samples) << rest;
  }
}

TEST_F(MeasureOnDevice, rest_is_time_of_the_subject) {
  device.ns = 1e6;
  set.cold = true, set.precision = -1, set.rest_seconds = 0.3, set.max_seconds = 2;
  const Timing t = one(work.subject(), set, w);
  EXPECT_EQ(t.ended_by, "time");
  EXPECT_LE(w.rests.size(), 7u);
}

TEST_F(MeasureOnDevice, heats_with_its_own_work_before_every_batch_untimed) {
  device.ns = 2e6;
  set.cold = true, set.heat_seconds = 0.04;
  const Timing t = one(work.subject(), set, w);
  const int blocks = int(t.samples.size()) / 10;  // 20 ms each
  EXPECT_GE(blocks, 3);
  EXPECT_EQ(work.calls, t.warm_up_calls + int(t.samples.size()) + 20 * blocks);
  EXPECT_EQ(median(t.samples), 2e6);
}

TEST_F(MeasureOnDevice, the_floor_neither_rests_nor_heats) {
  device.ns = 2000;
  set.cold = true, set.rest_seconds = 0.1, set.heat_seconds = 0.1;
  const Subject s = work.subject();
  EXPECT_EQ(floor_ns(set, w.clock(), &s), 2000);
  EXPECT_EQ(w.rests.size(), 0u);
  EXPECT_EQ(size_t(work.calls), std::accumulate(device.sizes.begin(), device.sizes.end(), size_t(0)));
}

TEST(Measure, a_failure_while_heating_is_one_of_the_subject) {
  World w;
  Work work{w};
  work.fails_at = 60;  // 21 warm-up calls, then 100 before each block
  TimingSettings set = quick();
  set.heat_seconds = 0.1;
  const Timing t = one(work.subject(), set, w);
  EXPECT_EQ(t.ended_by, "failure");
  EXPECT_EQ(work.calls, 61);
}

TEST(Measure, an_interrupt_keeps_what_is_there) {
  World w;
  Work work{w};
  work.noise = 1;
  std::atomic<bool> stop{false};
  TimingSettings set = quick();
  set.stop = &stop;
  set.progress = [](void* s, double) { *static_cast<std::atomic<bool>*>(s) = true; };
  set.progress_context = &stop;
  const Timing t = one(work.subject(), set, w);
  EXPECT_EQ(t.ended_by, "interrupt");
  EXPECT_GE(t.samples.size(), 1u);
}

TEST(Measure, mixes_the_order_and_mirrors_it) {
  World w;
  Work a{w, 'a'}, b{w, 'b'};
  a.ns = b.ns = 300e6;  // one sample per block, without an untimed call before it
  TimingSettings set = quick();
  set.max_seconds = 30;
  const Subject both[] = {a.subject(), b.subject()};
  const auto t = measure(both, set, w.clock());
  const size_t n = t[0].samples.size();
  ASSERT_GE(n, 30u);
  const std::vector<char> order(w.log.end() - std::ptrdiff_t(2 * n), w.log.end());
  int mirrored = 0, a_first = 0;
  for (size_t i = 0; i + 3 < order.size(); i += 4) {
    EXPECT_EQ(order[i], order[i + 3]);
    EXPECT_EQ(order[i + 1], order[i + 2]);
    EXPECT_NE(order[i], order[i + 1]);
    ++mirrored;
    a_first += order[i] == 'a';
  }
  EXPECT_GT(a_first, 0);
  EXPECT_LT(a_first, mirrored);
}

TEST(Measure, a_drift_of_the_machine_is_no_difference) {
  World w;
  Work a{w, 'a'}, b{w, 'b'};
  a.drift = b.drift = 0.2;
  TimingSettings set = quick();
  set.precision = 0;
  const Subject both[] = {a.subject(), b.subject()};
  const auto t = measure(both, set, w.clock());
  EXPECT_GT(t[0].samples.back(), 1.2 * t[0].samples.front());
  EXPECT_NEAR(median_ratio(t[0].samples, t[1].samples).value, 1, 0.02);
}

TEST(Measure, finds_an_injected_slow_down_of_a_tenth) {
  World w;
  Work a{w, 'a'}, b{w, 'b'};
  a.noise = b.noise = 0.03;
  b.ns = 1.1e6;
  const Ratio self = against_itself(a.subject(), quick(), w.clock());
  EXPECT_LT(spread(self), 0.05);
  const Subject both[] = {a.subject(), b.subject()};
  const auto t = measure(both, quick(), w.clock());
  EXPECT_EQ(verdict(median_ratio(t[0].samples, t[1].samples), std::max(0.01, spread(self))), Speed::slower);
}

TEST(Measure, the_spread_has_enough_samples_however_few_suffice_otherwise) {
  World w;
  Work work{w};
  work.ns = 3e9;
  TimingSettings set = quick();
  set.min_early = 1;
  EXPECT_TRUE(against_itself(work.subject(), set, w.clock()).interval.is_sure());
}

TEST(Measure, a_slow_partner_does_not_run_beyond_its_time) {
  World w;
  Work quick_one{w, 'a'}, slow{w, 'b'};
  quick_one.noise = 1;
  slow.ns = 1e9;
  const Subject both[] = {quick_one.subject(), slow.subject()};
  const auto t = measure(both, quick(), w.clock());
  EXPECT_EQ(t[1].ended_by, "time");
  EXPECT_LE(slow.calls, kFewestSamples + 2);
  EXPECT_EQ(t[0].ended_by, "time");
}

TEST(Floor, is_the_price_of_an_empty_call) {
  World w;
  Work work{w};
  work.ns = 50;
  const Subject s = work.subject();
  EXPECT_NEAR(floor_ns(quick(), w.clock(), &s), 50, 2);
  EXPECT_GE(floor_ns(quick(), host_clock()), 0);
}

TEST(HostClock, moves_forward_and_knows_its_grain) {
  const Clock c = host_clock();
  const int64_t a = c.now();
  EXPECT_GE(c.now(), a);
  EXPECT_GE(resolution(c), 1);
  EXPECT_GE(last_level_cache_bytes(), size_t(256) << 10);
}

}  // namespace
}  // namespace attune
