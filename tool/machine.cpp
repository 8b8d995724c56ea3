// SPDX-License-Identifier: Apache-2.0
#include "tool/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "machine/host.h"
#include "machine/library.h"
#include "plan/plan.h"
#include "tool/text.h"

namespace attune {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Parses "32K", "1024K" or "32M", as the system writes sizes.
double size_in(const std::string& text) {
  double value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value).ptr;
  const char unit = end < text.data() + text.size() ? *end : ' ';
  return value * (unit == 'K' ? 1024.0 : unit == 'M' ? 1024.0 * 1024 : unit == 'G' ? 1024.0 * 1024 * 1024 : 1.0);
}

std::vector<CacheLevel> caches() {
  std::vector<CacheLevel> all;
  for (int n = 0; n < 10; ++n) {
    const std::string folder = join("/sys/devices/system/cpu/cpu0/cache/index", n, "/");
    const std::string level = first_line(folder + "level"), type = first_line(folder + "type");
    if (level.empty()) break;
    if (type == "Instruction") continue;
    all.push_back({join("L", level, type == "Data" ? "d" : ""), size_in(first_line(folder + "size"))});
  }
  if (!all.empty()) return all;
  // If the firmware does not describe the caches, ask the C library, which reads them from the processor.
  const struct { const char* name; int what; } asked[] = {
      {"L1d", _SC_LEVEL1_DCACHE_SIZE}, {"L2", _SC_LEVEL2_CACHE_SIZE}, {"L3", _SC_LEVEL3_CACHE_SIZE}};
  for (const auto& [name, what] : asked)
    if (const long bytes = sysconf(what); bytes > 0) all.push_back({name, double(bytes)});
  return all;
}

// One line of /proc/meminfo, converted to bytes.
double memory(std::string_view key) {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;)
    if (double kilobytes; word == key && file >> kilobytes) return kilobytes * 1024;
  return 0;
}

// Uses the driver API, which every machine with a working GPU has; no CUDA toolkit is needed.
void find_gpus(Machine& m) {
  const Library cuda({"libcuda.so.1"},
                     {"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName",
                      "cuDeviceGetAttribute", "cuDeviceTotalMem_v2"});
  if (!cuda.ok()) {
    m.no_gpu = join("no NVIDIA driver: ", cuda.missed());
    return;
  }
  int count = 0, version = 0;
  if (const int error = cuda.function<int(unsigned)>("cuInit")(0)) {
    m.no_gpu = join("the NVIDIA driver is installed but does not start: cuInit returned ", error);
    return;
  }
  if (!cuda.function<int(int*)>("cuDriverGetVersion")(&version))
    m.driver = join("CUDA ", version / 1000, ".", version % 1000 / 10);
  if (cuda.function<int(int*)>("cuDeviceGetCount")(&count) || count < 1) {
    m.no_gpu = "the NVIDIA driver is installed but finds no GPU";
    return;
  }
  const auto attribute = cuda.function<int(int*, int, int)>("cuDeviceGetAttribute");
  for (int n = 0; n < count; ++n) {
    constexpr int kUnits = 16, kMajor = 75, kMinor = 76;  // values of CUdevice_attribute
    char name[128] = {};
    int handle = 0, units = 0, major = 0, minor = 0;
    size_t bytes = 0;
    if (cuda.function<int(int*, int)>("cuDeviceGet")(&handle, n)) continue;
    cuda.function<int(char*, int, int)>("cuDeviceGetName")(name, sizeof name - 1, handle);
    cuda.function<int(size_t*, int)>("cuDeviceTotalMem_v2")(&bytes, handle);
    attribute(&units, kUnits, handle), attribute(&major, kMajor, handle), attribute(&minor, kMinor, handle);
    m.gpus.push_back({{.kind = DeviceKind::cuda, .index = n, .arch = major * 10 + minor, .units = units, .name = name},
                      double(bytes)});
  }
}

}  // namespace

Machine this_machine() {
  Machine m{.cpu = this_cpu(), .cpus_online = int(sysconf(_SC_NPROCESSORS_ONLN)), .caches = caches()};
  m.memory_bytes = memory("MemTotal:");
  m.memory_free_bytes = memory("MemAvailable:");
  m.governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (utsname u; !uname(&u))
    m.system = join(std::string(u.sysname), " ", std::string(u.release), " ", std::string(u.machine));
  find_gpus(m);
  return m;
}

Exit exit_of_device(std::string_view word) {
  constexpr std::string_view kGpu = "cuda:", kLevel = "cpu:";
  if (Device known; word == "cuda" || known_device(word, known).ok()) return kMachine;
  if (word.starts_with(kGpu)) {
    const std::string_view number = word.substr(kGpu.size());
    const bool digits = number.find_first_not_of("0123456789") == number.npos;
    return digits && !number.empty() && number.size() <= 9 ? kMachine : kUsage;  // device_named reads at most 9 digits
  }
  if (word.starts_with(kLevel))
    for (int n = 0; n < int(Feature::blas); ++n)
      if (word.substr(kLevel.size()) == name(Feature(n))) return kMachine;
  return kUsage;
}

Status forced_backend(const std::string& option, ForcedBackend& out) {
  const char* const variable = std::getenv("ATTUNE_BACKEND");
  out.by_environment = option.empty() && variable && *variable;
  out.name = out.by_environment ? variable : option;
  if (out.name.empty() || find_backend(out.name)) return Status::good();
  return Status::no(out.by_environment ? "ATTUNE_BACKEND: " : "backend ", not_one_of(out.name, backend_names()));
}

}  // namespace attune
