// SPDX-License-Identifier: Apache-2.0
// How busy the machine was while a row was timed. A busy machine makes every time too long, and no statistic of the
// samples can tell. The counters are the system's (/proc); a container may hide any of them, which is then unknown.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace attune {

// Shares are from 0 to 1. Below 0: unknown.
struct Load {
  double seconds = -1;      // wall time of warm-up and samples, over which the shares are taken
  int cpus = -1;            // CPUs that this process may use
  double waited = -1;       // of the time in which threads of this process could run, the share they waited for a CPU
  double used = -1;         // of the time of these CPUs: used by this process,
  double others = -1;       // by other processes and by the kernel,
  double steal = -1;        // and by other machines of the same host
  double average = -1;      // load average over the last minute
  int runnable = -1;        // threads of the whole machine that ran or waited for a CPU at the end
  double cpu_mhz = -1;      // clock of the CPU that took the samples, at their beginning or end, the higher one
  int gpu_processes = -1;   // other processes with work on the GPU
  double gpu_others = -1;   // largest share of the GPU's time that they used
};

// The system's counters at one moment; below 0: unknown.
struct LoadCounters {
  struct Thread { double ran_ns = 0, waited_ns = 0; };
  double at_ns = 0;                     // of any clock that runs evenly
  double own_ns = -1;                   // CPU time of this process
  std::map<long, Thread> threads{};     // of this process, by id; empty: unknown
  int cpus = -1;                        // CPUs that this process may use; the sums below are over these
  double busy_ns = -1, stolen_ns = -1, all_ns = -1;
  double average = -1, mhz = -1;
  int runnable = -1;
  int gpu_processes = -1;               // set by GpuUse
  double gpu_others = -1;
};

// `proc` and `cpu` (the folder of cpu0, cpu1, ...) are arguments for the sake of tests.
LoadCounters read_load(const std::string& proc = "/proc", const std::string& cpu = "/sys/devices/system/cpu");
Load load_between(const LoadCounters& before, const LoadCounters& after);

// Parsers of kernel files. A text that they do not understand leaves `out` as it is.
void parse_stat(std::string_view text, const std::vector<bool>& cpus, double tick_ns, LoadCounters& out);
void parse_loadavg(std::string_view text, LoadCounters& out);
double mhz_in(std::string_view cpuinfo, int cpu);  // "cpu MHz" of this processor; below 0: not there

// Why the times of these samples are too long, or may be: "other processes took 48 % of 2 CPUs"; "" if nothing tells.
// Every phrase is a fact; `certain` is set where it means that the timed work itself had to wait.
std::string busy_text(const Load&, bool on_gpu, bool* certain = nullptr);
// The same where the timed work had to wait, or where nothing tells that it did not; else "".
std::string held_up_text(const Load&, bool on_gpu);

}  // namespace attune
