// SPDX-License-Identifier: Apache-2.0
// How busy a machine was: readings of quiet and loaded ones, systems that hide them, and processes that load this one.
#include "tool/timing/load.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tool/burners.h"
#include "tests/tool/spawn.h"
#include "tool/timing/engine.h"
#include "tool/timing/gpu_use.h"

namespace attune {
namespace {

constexpr double kTick = 1e7;  // ns

// One second of two CPUs, as shares of it.
struct Second {
  double own = 0.98, others = 0.01, steal = 0, waited = 0.002;
  double seconds = 1;
};
Load load_of(const Second& s) {
  const double ns = 1e9 * s.seconds, all = 2 * ns, ran = s.own * all;
  LoadCounters a{.at_ns = 5e9, .own_ns = 3e9, .threads = {{7, {2e9, 1e6}}}, .cpus = 2, .busy_ns = 50e9,
                 .stolen_ns = 1e9, .all_ns = 90e9};
  LoadCounters b = a;
  b.at_ns += ns, b.own_ns += ran, b.busy_ns += ran + s.others * all, b.stolen_ns += s.steal * all, b.all_ns += all;
  const double waited = ran * s.waited / (1 - s.waited);
  b.threads[7].ran_ns += ran / 2, b.threads[7].waited_ns += waited / 2;
  b.threads[8] = {ran / 2, waited / 2};  // began meanwhile
  return load_between(a, b);
}

TEST(Load, is_shares_of_the_time_of_the_cpus) {
  const Load l = load_of({.own = 0.5, .others = 0.25, .steal = 0.05, .waited = 0.4});
  EXPECT_EQ(l.seconds, 1);
  EXPECT_EQ(l.cpus, 2);
  EXPECT_EQ(l.used, 0.5);
  EXPECT_EQ(l.others, 0.25);
  EXPECT_EQ(l.steal, 0.05);
  EXPECT_EQ(l.waited, 0.4);
}

TEST(Load, a_quiet_machine_is_not_remarked_and_a_busy_one_says_why) {
  bool certain = false;
  EXPECT_EQ(busy_text(load_of({}), false, &certain), "");
  EXPECT_EQ(busy_text(load_of({.own = 0.3}), false, &certain), "");  // short of work, not of CPUs
  EXPECT_FALSE(certain);
  EXPECT_EQ(busy_text(load_of({.own = 0.5, .others = 0.48, .waited = 0.01}), false, &certain),
            "other processes took 48 % of 2 CPUs");
  EXPECT_FALSE(certain);  // on a CPU that was not needed, perhaps
  EXPECT_EQ(busy_text(load_of({.own = 0.5, .others = 0.48, .waited = 0.45}), false, &certain),
            "other processes took 48 % of 2 CPUs, threads waited for a CPU 45 % of the time");
  EXPECT_TRUE(certain);
  EXPECT_EQ(busy_text(load_of({.own = 0.9, .steal = 0.07}), false), "the host took 7 % for other machines");
  EXPECT_EQ(busy_text(load_of({.waited = 0.5}), false), "threads waited for a CPU 50 % of the time");
  EXPECT_EQ(busy_text(load_of({.own = 0.5, .others = 0.48, .waited = 0.45}), true), "");  // a GPU does the work
}

TEST(Load, waking_up_on_an_idle_cpu_is_not_waiting_for_another_thread) {
  EXPECT_EQ(busy_text(load_of({.own = 0.6, .waited = 0.15}), false), "");
  EXPECT_EQ(busy_text(load_of({.own = 0.94, .waited = 0.07}), false), "");
  EXPECT_NE(busy_text(load_of({.own = 0.99, .waited = 0.07}), false), "");  // no CPU was idle
  EXPECT_NE(busy_text(load_of({.own = 0.3, .waited = 0.5}), false), "");    // a quota
  EXPECT_NE(busy_text(load_of({.own = 0.6, .others = 0.2, .waited = 0.07}), false),
            busy_text(load_of({.own = 0.6, .others = 0.2, .waited = 0}), false));
  Load unknown{.seconds = 1, .waited = 0.1};
  EXPECT_EQ(busy_text(unknown, false), "");
  unknown.waited = 0.4;
  EXPECT_NE(busy_text(unknown, false), "");
}

TEST(Load, a_few_ticks_are_chance) {
  EXPECT_EQ(busy_text(load_of({.own = 0.6, .others = 0.4, .waited = 0.2, .seconds = 0.03}), false), "");
  EXPECT_NE(busy_text(load_of({.own = 0.6, .others = 0.4, .waited = 0.2, .seconds = 0.11}), false), "");
}

TEST(Load, of_what_the_system_hides_is_unknown) {
  const Load nothing = load_between({}, {});
  for (const double value : {nothing.seconds, double(nothing.cpus), nothing.waited, nothing.used, nothing.others,
                             nothing.steal, nothing.average, double(nothing.runnable), nothing.cpu_mhz,
                             double(nothing.gpu_processes), nothing.gpu_others})
    EXPECT_LT(value, 0);
  EXPECT_EQ(busy_text(nothing, false), "");
  EXPECT_EQ(busy_text(nothing, true), "");
  const std::string empty = temporary("no_proc");
  std::filesystem::create_directories(empty);
  LoadCounters a = read_load(empty, empty), b = read_load(empty, empty);
  EXPECT_TRUE(b.threads.empty());
  EXPECT_LT(b.busy_ns, 0);
  b.at_ns = a.at_ns + 1e9, b.own_ns = a.own_ns + 1e9;
  const Load hidden = load_between(a, b);
  for (const double value : {hidden.waited, hidden.used, hidden.others, hidden.steal, hidden.average,
                             double(hidden.runnable), hidden.cpu_mhz, double(hidden.cpus)})
    EXPECT_LT(value, 0);
  // A sandbox that shows the files and counts nothing.
  LoadCounters still{.at_ns = 1e9, .own_ns = 0, .threads = {{1, {}}}, .cpus = 2, .busy_ns = 0, .stolen_ns = 0,
                     .all_ns = 0};
  LoadCounters later = still;
  later.at_ns = 2e9, later.own_ns = 1e9;
  const Load frozen = load_between(still, later);
  EXPECT_LT(frozen.others, 0);
  EXPECT_LT(frozen.waited, 0);
}

TEST(Load, counts_only_the_cpus_that_may_be_used) {
  const std::string text = "cpu  600 0 0 0 0 0 0 0 0 0\n"
                           "cpu0 100 10 20 300 5 1 2 7 50 0\n"
                           "cpu1 500 0 0 0 0 0 0 0 0 0\n"
                           "cpu2 1 2 3 4 5 6 7 8 0 0\n"
                           "intr 12 34\n";
  LoadCounters c;
  parse_stat(text, {true, false, true}, kTick, c);
  EXPECT_EQ(c.cpus, 2);
  EXPECT_EQ(c.busy_ns, (133 + 19) * kTick);  // guests are in the user time already
  EXPECT_EQ(c.stolen_ns, 15 * kTick);
  EXPECT_EQ(c.all_ns, (445 + 36) * kTick);
  for (const char* const wrong : {"", "cpu 1 2", "cpu0 1 2 3", "cpu0 a b c d e f g h", "cpu7 1 1 1 1 1 1 1 1"}) {
    LoadCounters none;
    parse_stat(wrong, {true, false, true}, kTick, none);
    EXPECT_EQ(none.cpus, -1) << wrong;
    EXPECT_LT(none.all_ns, 0) << wrong;
  }
}

TEST(Load, reads_the_average_and_the_clock) {
  LoadCounters c;
  parse_loadavg("3.14 2.40 1.28 4/107 19186\n", c);
  EXPECT_EQ(c.average, 3.14);
  EXPECT_EQ(c.runnable, 4);
  LoadCounters none;
  parse_loadavg("high", none);
  EXPECT_LT(none.average, 0);
  const std::string cpuinfo = "processor\t: 0\ncpu MHz\t\t: 2500.008\n\nprocessor\t: 1\ncpu MHz\t\t: 3100.5\n";
  EXPECT_EQ(mhz_in(cpuinfo, 0), 2500.008);
  EXPECT_EQ(mhz_in(cpuinfo, 1), 3100.5);
  EXPECT_LT(mhz_in(cpuinfo, 2), 0);
  EXPECT_LT(mhz_in("processor : 0\nBogoMIPS : 50\n", 0), 0);
}

TEST(Load, reads_this_machine) {
  if (!Burners::can_be_seen()) GTEST_SKIP() << "this system hides its counters";
  const LoadCounters a = read_load();
  volatile double x = 1;
  for (double until = a.at_ns + 2e8; read_load().at_ns < until;)
    for (int n = 0; n < 1000000; ++n) x = x * 1.0000001;
  const Load l = load_between(a, read_load());
  EXPECT_GT(l.used, 0);
  EXPECT_LE(l.used, 1);
  EXPECT_GE(l.others, 0);
  EXPECT_GE(l.waited, 0);
  EXPECT_LT(l.waited, 1);
  EXPECT_GE(l.runnable, 1);
}

TEST(Load, a_machine_that_others_load_is_remarked_in_20_of_20_runs) {
  if (!Burners::can_be_seen()) GTEST_SKIP() << "this system hides its counters";
  const Burners burners;
  const Subject work{.name = "work", .run = [](void*) {
                       volatile double x = 1;
                       for (int n = 0; n < 300000; ++n) x = x * 1.0000001;
                       return true;
                     }};
  TimingSettings set;
  set.max_seconds = 0.4;
  set.load = [](void*) { return read_load(); };
  for (int run = 0; run < 20; ++run) {
    const Load l = measure({&work, 1}, set, host_clock())[0].load;
    bool certain = false;
    const std::string text = busy_text(l, false, &certain);
    EXPECT_TRUE(certain && has(text, "threads waited for a CPU ")) << run << ": " << l.waited << " of " << l.seconds;
    const bool named = has(text, "other processes took ");
    EXPECT_TRUE(named || !Burners::can_fill_the_cpus()) << run << ": " << l.others << " of " << l.seconds;
  }
}

// A stand-in for NVML: what it lists, and samples of use.
struct Card {
  std::vector<GpuUse::Process> processes{};
  std::vector<GpuUse::Sample> samples{};
  int refuses = 0;

  template <class T>
  static int give(const std::vector<T>& from, T* list, unsigned* count) {
    const unsigned room = *count;
    *count = unsigned(from.size());
    if (from.empty()) return 6;
    if (!list || room < from.size()) return 7;
    std::copy(from.begin(), from.end(), list);
    return 0;
  }
  LoadCounters reading() {
    const GpuUse::Functions functions{
        .processes = [](void* c, unsigned* count, GpuUse::Process* list) {
          auto* card = static_cast<Card*>(c);
          return card->refuses ? card->refuses : give(card->processes, list, count);
        },
        .samples = [](void* c, GpuUse::Sample* list, unsigned* count, unsigned long long) {
          return give(static_cast<Card*>(c)->samples, list, count);
        }};
    LoadCounters c;
    GpuUse(functions, this).read(c);
    return c;
  }
};

TEST(GpuUse, is_what_other_processes_took) {
  const auto self = unsigned(getpid());
  Card card{.processes = {{.id = self}}, .samples = {{.id = self, .time_us = 1, .sm = 99}}};
  EXPECT_EQ(card.reading().gpu_processes, 0);
  EXPECT_EQ(card.reading().gpu_others, 0);
  card.processes.push_back({.id = self + 1}), card.processes.push_back({.id = self + 2});
  card.samples.push_back({.id = self + 1, .time_us = 1, .sm = 20});
  card.samples.push_back({.id = self + 2, .time_us = 1, .sm = 15});
  card.samples.push_back({.id = self + 2, .time_us = 2, .sm = 30});
  EXPECT_EQ(card.reading().gpu_processes, 2);
  EXPECT_DOUBLE_EQ(card.reading().gpu_others, 0.35);
  Load l{.gpu_processes = 2, .gpu_others = 0.35};
  EXPECT_EQ(busy_text(l, true), "other processes took 35 % of the GPU");
  EXPECT_EQ(busy_text(l, false), "");
  l.gpu_others = 0.01;
  EXPECT_EQ(busy_text(l, true), "");  // idle, as far as the driver saw
  l.gpu_others = -1;
  EXPECT_EQ(busy_text(l, true), "2 other processes were on the GPU");
  l.gpu_processes = 1;
  EXPECT_EQ(busy_text(l, true), "1 other process was on the GPU");
}

TEST(GpuUse, is_unknown_without_a_driver_or_this_process_in_its_list) {
  Card foreign{.processes = {{.id = 1}}, .samples = {{.id = 1, .time_us = 1, .sm = 50}}};
  Card none{}, refusing{.processes = {{.id = unsigned(getpid())}}, .refuses = 3};
  for (Card* card : {&foreign, &none, &refusing}) {
    EXPECT_LT(card->reading().gpu_processes, 0);
    EXPECT_LT(card->reading().gpu_others, 0);
  }
  GpuUse absent;
  absent.open("0000:00:00.0");
  LoadCounters c;
  absent.read(c);
  EXPECT_LT(c.gpu_processes, 0);
}

}  // namespace
}  // namespace attune
