// SPDX-License-Identifier: Apache-2.0
// The load of the machine while a row was measured: each figure within its range, and none against another.
#include "tool/check/parts.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr double kRoom = 0.05;     // of a share: counters of the system are read one after the other
constexpr double kTick = 0.02;     // s; the system counts in ticks of 10 ms, at both ends
constexpr double kMostMhz = 20000;
// Share of the samples' time that shows as CPU time of the process, unless it waited.
constexpr double kLeastOwn = 0.1;

struct Loaded : Reporter {
  const Load& l = r.load;

  // -1 is "unknown"; a record that a reader wrote has nothing else below 0.
  void range(const char* what, double is, double least, double most) const {
    if (is == -1) return;
    if (!(is >= least && is <= most))
      wrong("impossible-load", what, " is recorded as ", is, ", not from ", least, " to ", most);
  }
  void ranges() const {
    constexpr double kMuch = 1e9;
    range("load.seconds", l.seconds, 0, kMuch), range("load.cpus", l.cpus, 1, 1e6);
    range("load.waited", l.waited, 0, 1), range("load.used", l.used, 0, 1), range("load.others", l.others, 0, 1);
    range("load.steal", l.steal, 0, 1), range("load.gpu_others", l.gpu_others, 0, 1);
    range("load.average", l.average, 0, 1e6), range("load.runnable", l.runnable, 0, kMuch);
    range("load.cpu_mhz", l.cpu_mhz, 1, kMostMhz), range("load.gpu_processes", l.gpu_processes, 0, 1e6);
  }
  void shares() const {
    const bool has_shares = l.used >= 0 || l.others >= 0 || l.steal >= 0;
    if (has_shares && (l.seconds < 0 || l.cpus < 0))
      wrong("impossible-load", "shares of CPU time are recorded, but not over how many seconds and CPUs");
    const double sum = std::max(l.used, 0.) + std::max(l.others, 0.) + std::max(l.steal, 0.);
    if (l.seconds > 0 && sum > 1 + kRoom + kTick / l.seconds)
      wrong("impossible-load", "this process, others and the host took ", sum, " of the CPUs' time together");
    if (l.cpus > 0 && r.threads > l.cpus)
      wrong("impossible-load", counted(r.threads, "thread"), " ran on ", counted(l.cpus, "CPU"));
    if (!is_gpu(r) && (l.gpu_processes >= 0 || l.gpu_others >= 0))
      wrong("impossible-load", "a load of a GPU is recorded, but the device is ", r.device);
  }
  // The samples of this subject are part of the time over which the load was taken.
  void times() const {
    if (l.seconds < 0) return;
    double samples = r.warm_up_s;
    for (const double ns : r.samples_ns) samples += 1e-9 * ns * r.calls;
    if (samples > 1.01 * l.seconds + kTick)
      return wrong("impossible-load", "the load was taken over ", l.seconds, " s, but warm-up and samples took ",
                   samples, " s");
    if (is_gpu(r) || l.cpus < 0 || l.used < 0) return;
    const double cpu_s = l.used * l.seconds * l.cpus;
    const double ran = samples * (1 - std::clamp(l.waited, 0., 1.)) * (1 - std::clamp(l.steal, 0., 1.));
    if (cpu_s + kTick < kLeastOwn * ran)
      wrong("impossible-load", "this process used ", cpu_s, " s of CPU time, but its samples took ", samples, " s");
  }
};

}  // namespace

void audit_load(const Reporter& reporter) {
  const Loaded load{reporter};
  load.ranges(), load.shares();
  if (was_timed(reporter.r) && !reporter.line.extract) load.times();
}

}  // namespace attune
