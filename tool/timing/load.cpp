// SPDX-License-Identifier: Apache-2.0
#include "tool/timing/load.h"

#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>

#include "core/status.h"

namespace attune {
namespace {

// Shares from which a row is remarked. With one endless loop per CPU others take half of the time or more, and threads
// wait as long (tests/tool/record/busy_test.cpp has readings). Work that waited 5 % of its time is 5 % too slow, far
// beyond a margin of 1 %. What others take may have been on a CPU that the timed threads did not need, so its limit is
// higher; the system's own work is 1 or 2 %.
constexpr double kMostWaited = 0.05, kMostOthers = 0.10, kMostSteal = 0.05, kMostGpuOthers = 0.05;
// Share that is remarked even where CPUs were idle: a quota holds the threads.
constexpr double kHeld = 0.3;
// CPU seconds below which such a share is chance: /proc/stat counts in ticks of 10 ms, and a thread that is preempted
// once waits for 4 ms.
constexpr double kLeastOthers = 0.05, kLeastWaited = 0.02;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class T>
std::optional<T> number_in(std::string_view word) {
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size() ? std::optional(value) : std::nullopt;
}

double seconds_of(clockid_t clock) {
  timespec t{};
  return clock_gettime(clock, &t) == 0 ? double(t.tv_sec) + 1e-9 * double(t.tv_nsec) : -1;
}

// By number. Empty if the system does not tell.
std::vector<bool> usable_cpus() {
  constexpr size_t kMost = 8192;
  struct Free { void operator()(cpu_set_t* set) const { CPU_FREE(set); } };
  const std::unique_ptr<cpu_set_t, Free> set(CPU_ALLOC(kMost));
  const size_t bytes = CPU_ALLOC_SIZE(kMost);
  if (!set || sched_getaffinity(0, bytes, set.get()) != 0) return {};
  std::vector<bool> cpus(kMost);
  for (size_t n = 0; n < kMost; ++n) cpus[n] = CPU_ISSET_S(n, bytes, set.get());
  return cpus;
}

// Files of one line each: nanoseconds on a CPU, nanoseconds ready and waiting for one, number of turns.
void read_threads(const std::string& tasks, LoadCounters& out) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(tasks.c_str()), &closedir);
  if (!folder) return;
  while (const dirent* const entry = readdir(folder.get())) {
    const auto id = number_in<long>(entry->d_name);
    LoadCounters::Thread t;
    if (id && std::istringstream(text_of(join(tasks, "/", *id, "/schedstat"))) >> t.ran_ns >> t.waited_ns)
      out.threads.emplace(*id, t);
  }
}

double mhz_of_this_cpu(const std::string& proc, const std::string& folder) {
  const int cpu = sched_getcpu();
  if (double khz = 0; cpu >= 0 && std::istringstream(text_of(join(folder, "/cpu", cpu, "/cpufreq/scaling_cur_freq"))) >>
                                      khz && khz > 0)
    return khz * 1e-3;
  return mhz_in(text_of(proc + "/cpuinfo"), cpu);
}

// Four digits are finer than anything that is measured here.
double share(double part, double whole) { return std::round(1e4 * std::clamp(part / whole, 0.0, 1.0)) / 1e4; }

// The share of the time in which threads could run that they waited for a CPU held by another thread. A thread that is
// woken also waits until an idle CPU starts it, in a virtual machine for tens of microseconds; all such waits together
// are at most the idle time. Not taken off where others are remarked: idle CPUs are then not what was waited for.
double waited_for_others(const Load& l) {
  if (l.waited >= kHeld || l.others >= kMostOthers) return l.waited;
  if (!(l.used > 0)) return -1;
  const double idle = std::max(0.0, 1 - l.used - l.others - l.steal);
  return l.waited - idle * (1 - l.waited) / l.used;
}

std::string percent(double share) { return join(std::lround(100 * std::clamp(share, 0.0, 1.0)), " %"); }

}  // namespace

void parse_stat(std::string_view text, const std::vector<bool>& cpus, double tick_ns, LoadCounters& out) {
  std::istringstream lines{std::string(text)};
  int count = 0;
  double busy = 0, stolen = 0, all = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (!name.starts_with("cpu")) continue;
    const auto cpu = number_in<size_t>(std::string_view(name).substr(3));
    if (!cpu || (!cpus.empty() && (*cpu >= cpus.size() || !cpus[*cpu]))) continue;
    // Guests are also counted as user time, so the fields after `steal` are not read.
    double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, soft_irq = 0, steal = 0;
    if (!(words >> user >> nice >> system >> idle >> waiting >> irq >> soft_irq >> steal)) return;
    const double used = user + nice + system + irq + soft_irq;
    ++count, busy += used, stolen += steal, all += used + steal + idle + waiting;
  }
  if (!count) return;
  out.cpus = count;
  out.busy_ns = busy * tick_ns, out.stolen_ns = stolen * tick_ns, out.all_ns = all * tick_ns;
}

void parse_loadavg(std::string_view text, LoadCounters& out) {
  double one = 0, five = 0, fifteen = 0;
  int runnable = 0;
  char slash = 0;
  if (!(std::istringstream{std::string(text)} >> one >> five >> fifteen >> runnable >> slash) || slash != '/') return;
  out.average = one, out.runnable = runnable;
}

double mhz_in(std::string_view cpuinfo, int cpu) {
  std::istringstream lines{std::string(cpuinfo)};
  int at = -1;
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon == line.npos) continue;
    std::istringstream value(line.substr(colon + 1));
    if (line.starts_with("processor")) value >> at;
    if (double mhz = 0; at == cpu && line.starts_with("cpu MHz") && value >> mhz && mhz > 0) return mhz;
  }
  return -1;
}

LoadCounters read_load(const std::string& proc, const std::string& cpu) {
  LoadCounters c;
  c.at_ns = 1e9 * seconds_of(CLOCK_MONOTONIC);
  c.own_ns = 1e9 * seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  read_threads(proc + "/self/task", c);
  parse_stat(text_of(proc + "/stat"), usable_cpus(), 1e9 / double(sysconf(_SC_CLK_TCK)), c);
  parse_loadavg(text_of(proc + "/loadavg"), c);
  c.mhz = mhz_of_this_cpu(proc, cpu);
  return c;
}

Load load_between(const LoadCounters& before, const LoadCounters& after) {
  const double ns = after.at_ns - before.at_ns;
  if (!(ns > 0)) return {};
  Load l{.seconds = std::round(ns * 1e-6) / 1e3};
  if (after.average >= 0) l.average = after.average, l.runnable = after.runnable;
  l.gpu_processes = after.gpu_processes, l.gpu_others = after.gpu_others;
  l.cpu_mhz = std::max(before.mhz, after.mhz);
  double ran = 0, waited = 0;
  for (const auto& [id, now] : after.threads) {  // a thread that is new began after `before`
    const auto then = before.threads.find(id);
    const LoadCounters::Thread from = then == before.threads.end() ? LoadCounters::Thread{} : then->second;
    ran += now.ran_ns - from.ran_ns, waited += now.waited_ns - from.waited_ns;
  }
  if (!before.threads.empty() && ran + waited > 0) l.waited = share(waited, ran + waited);
  // A system that only pretends to count, as some sandboxes do, shows no time at all.
  const double all = after.all_ns - before.all_ns;
  if (before.all_ns < 0 || after.cpus != before.cpus || !(all > 0.5 * ns)) return l;
  l.cpus = after.cpus;
  l.steal = share(after.stolen_ns - before.stolen_ns, all);
  if (before.own_ns < 0 || after.own_ns < 0) return l;
  const double own = after.own_ns - before.own_ns;
  l.used = share(own, all), l.others = share(after.busy_ns - before.busy_ns - own, all);
  return l;
}

std::string busy_text(const Load& l, bool on_gpu, bool* certain) {
  std::string text;
  const auto add = [&](bool is_certain, const auto&... what) {
    text += join(text.empty() ? "" : ", ", what...);
    if (certain) *certain = *certain || is_certain;
  };
  if (on_gpu) {
    if (l.gpu_others >= kMostGpuOthers) add(true, "other processes took ", percent(l.gpu_others), " of the GPU");
    else if (l.gpu_others < 0 && l.gpu_processes >= 1)
      add(false, l.gpu_processes, " other process", l.gpu_processes > 1 ? "es were" : " was", " on the GPU");
    return text;
  }
  const double cpu_s = l.seconds > 0 && l.cpus > 0 ? l.seconds * l.cpus : 0;
  if (l.others >= kMostOthers && l.others * cpu_s >= kLeastOthers)
    add(false, "other processes took ", percent(l.others), " of ", l.cpus, l.cpus > 1 ? " CPUs" : " CPU");
  if (l.steal >= kMostSteal && l.steal * cpu_s >= kLeastOthers)
    add(true, "the host took ", percent(l.steal), " for other machines");
  if (waited_for_others(l) >= kMostWaited && l.waited * l.seconds >= kLeastWaited)
    add(true, "threads waited for a CPU ", percent(l.waited), " of the time");
  return text;
}

std::string held_up_text(const Load& l, bool on_gpu) {
  bool certain = false;
  std::string text = busy_text(l, on_gpu, &certain);
  return certain || (!on_gpu && l.waited < 0) ? text : "";
}

}  // namespace attune
