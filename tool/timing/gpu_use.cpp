// SPDX-License-Identifier: Apache-2.0
#include "tool/timing/gpu_use.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

#include "machine/library.h"

namespace attune {
namespace {

constexpr int kGood = 0, kNotFound = 6, kTooSmall = 7;  // nvmlReturn_t

unsigned long long now_us() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<unsigned long long>(std::chrono::duration_cast<std::chrono::microseconds>(since).count());
}

// Calls get(list, count) first to count, then to fill. False if it refuses. An empty list is a result.
template <class T, class Get>
bool fill(std::vector<T>& out, const Get& get) {
  unsigned count = 0;
  const int counted = get(nullptr, &count);
  out.clear();
  if (counted == kNotFound || (counted == kGood && count == 0)) return true;
  if (counted != kTooSmall && counted != kGood) return false;
  constexpr unsigned kMore = 16;  // processes that start in between
  count = std::min(count, 100'000u) + kMore;
  out.resize(count);
  const int filled = get(out.data(), &count);
  out.resize(filled == kGood ? std::min<size_t>(count, out.size()) : 0);
  return filled == kGood || filled == kNotFound;
}

}  // namespace

void GpuUse::open(const std::string& pci) {
  const Library nvml({"libnvidia-ml.so.1"}, {"nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2",
                                             "nvmlDeviceGetComputeRunningProcesses_v3"});
  seen_us_ = now_us();
  if (!nvml.ok() || nvml.function<int()>("nvmlInit_v2")()) return;
  if (nvml.function<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2")(pci.c_str(), &device_))
    return void(device_ = nullptr);
  functions_.processes =
      nvml.function<int(void*, unsigned*, Process*)>("nvmlDeviceGetComputeRunningProcesses_v3");
  functions_.samples =
      nvml.function<int(void*, Sample*, unsigned*, unsigned long long)>("nvmlDeviceGetProcessUtilization");
}

void GpuUse::read(LoadCounters& out) {
  const unsigned long long since = seen_us_;
  seen_us_ = now_us();
  if (!device_ || !functions_.processes) return;
  const auto self = unsigned(getpid());
  std::vector<Process> processes;
  const bool listed = fill(processes, [&](Process* list, unsigned* count) {
    return functions_.processes(device_, count, list);
  });
  const auto is_self = [&](const auto& p) { return p.id == self; };
  if (!listed || std::none_of(processes.begin(), processes.end(), is_self)) return;
  out.gpu_processes = int(processes.size()) - int(std::count_if(processes.begin(), processes.end(), is_self));
  std::vector<Sample> samples;
  if (!functions_.samples || !fill(samples, [&](Sample* list, unsigned* count) {
        return functions_.samples(device_, list, count, since);
      }))
    return;
  std::map<unsigned long long, double> by_time;  // samples of one moment belong to different processes
  for (const Sample& s : samples) by_time[s.time_us] += is_self(s) ? 0 : 1e-2 * s.sm;
  double most = samples.empty() ? -1 : 0;
  for (const auto& [time, use] : by_time) most = std::max(most, std::min(use, 1.0));
  out.gpu_others = most;
}

}  // namespace attune
