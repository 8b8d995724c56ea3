// SPDX-License-Identifier: Apache-2.0
#include "machine/cuda/nvml.h"

#include <type_traits>

#include "machine/library.h"

namespace attune::cuda {
namespace {

constexpr int kSmClock = 1, kMemoryClock = 2, kChip = 0;  // nvmlClockType_t, nvmlTemperatureSensors_t

struct Functions {
  std::string missed{};
  int start = 0;  // result of nvmlInit
  const char* (*text)(int) = nullptr;
  int (*by_pci)(const char*, void**) = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*most_clock)(void*, int, unsigned*) = nullptr;
  int (*power)(void*, unsigned* milliwatts) = nullptr;
  int (*power_limit)(void*, unsigned* milliwatts) = nullptr;
  int (*temperature)(void*, int, unsigned*) = nullptr;
  int (*reasons)(void*, unsigned long long*) = nullptr;
  int (*energy)(void*, unsigned long long* millijoules) = nullptr;
  int (*uuid)(void*, char*, unsigned) = nullptr;
  int (*vbios)(void*, char*, unsigned) = nullptr;
  int (*ecc)(void*, unsigned* now, unsigned* after_restart) = nullptr;
  int (*mig)(void*, unsigned* now, unsigned* after_restart) = nullptr;
  int (*generation)(void*, unsigned*) = nullptr;
  int (*lanes)(void*, unsigned*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;

  Functions() {
    const Library library({"libnvidia-ml.so.1"},
                          {"nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlErrorString"});
    missed = library.missed();
    if (!library.ok()) return;
    // All but the required ones may be missing: an old driver provides less.
    const auto get = [&](auto*& f, const char* name) {
      f = library.function<std::remove_pointer_t<std::remove_reference_t<decltype(f)>>>(name);
    };
    get(text, "nvmlErrorString"), get(by_pci, "nvmlDeviceGetHandleByPciBusId_v2");
    get(clock, "nvmlDeviceGetClockInfo"), get(most_clock, "nvmlDeviceGetMaxClockInfo");
    get(power, "nvmlDeviceGetPowerUsage"), get(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    get(temperature, "nvmlDeviceGetTemperature"), get(reasons, "nvmlDeviceGetCurrentClocksEventReasons");
    if (!reasons) get(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");  // its name before driver 535
    get(energy, "nvmlDeviceGetTotalEnergyConsumption"), get(uuid, "nvmlDeviceGetUUID");
    get(vbios, "nvmlDeviceGetVbiosVersion"), get(ecc, "nvmlDeviceGetEccMode");
    get(mig, "nvmlDeviceGetMigMode"), get(driver, "nvmlSystemGetDriverVersion");
    get(generation, "nvmlDeviceGetMaxPcieLinkGeneration"), get(lanes, "nvmlDeviceGetCurrPcieLinkWidth");
    start = library.function<int()>("nvmlInit_v2")();
  }
};

const Functions& nvml() {
  static const Functions opened;
  return opened;
}

// 0 if the function is missing or refuses.
template <class T, class F, class... Before>
T value_of(F* f, Before... before) {
  T value = 0;
  return f && f(before..., &value) == 0 ? value : T(0);
}

template <class F, class... Before>
std::string text_of(F* f, Before... before) {
  char text[128] = "";
  return f && f(before..., text, unsigned(sizeof text)) == 0 ? text : "";
}

}  // namespace

std::string slowed_by(uint64_t reasons) {
  // Bits of nvmlClocksEventReasons. An idle GPU and user-set clocks do not count as a slow-down.
  const struct { uint64_t bit; const char* name; } all[] = {{0x04, "power cap"},
                                                            {0x08, "hardware slowdown"},
                                                            {0x20, "thermal slowdown"},
                                                            {0x40, "hardware thermal slowdown"},
                                                            {0x80, "power brake"}};
  std::string text;
  for (const auto& [bit, name] : all)
    if (reasons & bit) text += join(text.empty() ? "" : ", ", name);
  return text;
}

Status Nvml::open(const std::string& pci) {
  const Functions& f = nvml();
  if (!f.missed.empty()) return Status::unsupported("NVML: ", f.missed);
  if (f.start) return Status::failure(Code::device, "NVML: nvmlInit_v2: ", f.text(f.start));
  if (const int error = f.by_pci(pci.c_str(), &device_); error) {
    device_ = nullptr;
    return Status::failure(Code::device, "NVML: the GPU at ", pci, ": ", f.text(error));
  }
  return Status::good();
}

GpuIdentity Nvml::identity() const {
  if (!device_) return {};
  const Functions& f = nvml();
  unsigned now = 0, later = 0;
  return {.uuid = text_of(f.uuid, device_),
          .vbios = text_of(f.vbios, device_),
          .driver = text_of(f.driver),
          .power_limit_w = value_of<unsigned>(f.power_limit, device_) * 1e-3,
          .most_sm_mhz = double(value_of<unsigned>(f.most_clock, device_, kSmClock)),
          .ecc = f.ecc && f.ecc(device_, &now, &later) == 0 ? int(now) : -1,
          .mig = f.mig && f.mig(device_, &now, &later) == 0 ? int(now) : -1,
          .pcie_generation = int(value_of<unsigned>(f.generation, device_)),
          .pcie_lanes = int(value_of<unsigned>(f.lanes, device_))};
}

GpuReading Nvml::read() const {
  if (!device_) return {};
  const Functions& f = nvml();
  return {.sm_mhz = double(value_of<unsigned>(f.clock, device_, kSmClock)),
          .memory_mhz = double(value_of<unsigned>(f.clock, device_, kMemoryClock)),
          .watts = value_of<unsigned>(f.power, device_) * 1e-3,
          .celsius = double(value_of<unsigned>(f.temperature, device_, kChip)),
          .reasons = value_of<unsigned long long>(f.reasons, device_)};
}

double Nvml::joules() const {
  unsigned long long millijoules = 0;
  if (!device_ || !nvml().energy || nvml().energy(device_, &millijoules)) return -1;
  return double(millijoules) * 1e-3;
}

}  // namespace attune::cuda
