// SPDX-License-Identifier: Apache-2.0
#include "machine/host.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>

#include "machine/cuda/runtime.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace attune {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The value of the first "key : value" line.
std::string_view field(std::string_view text, std::string_view key) {
  for (size_t at = 0; at < text.size();) {
    const std::string_view line = text.substr(at, std::min(text.find('\n', at), text.size()) - at);
    at += line.size() + 1;
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == line.npos) continue;
    if (line.substr(key.size(), colon - key.size()).find_first_not_of(" \t") != line.npos) continue;
    const size_t first = line.find_first_not_of(" \t", colon + 1);
    return first == line.npos ? std::string_view{} : line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
  }
  return {};
}

// Main ID register: implementer and part, from Arm's and Apple's tables. Arm Linux prints no model name.
constexpr struct { std::string_view implementer, part, name; } kCores[] = {
    {"0x41", "0xd03", "Cortex-A53"},   {"0x41", "0xd07", "Cortex-A57"},   {"0x41", "0xd08", "Cortex-A72"},
    {"0x41", "0xd09", "Cortex-A73"},   {"0x41", "0xd0a", "Cortex-A75"},   {"0x41", "0xd0b", "Cortex-A76"},
    {"0x41", "0xd0c", "Neoverse-N1"},  {"0x41", "0xd0d", "Cortex-A77"},   {"0x41", "0xd40", "Neoverse-V1"},
    {"0x41", "0xd41", "Cortex-A78"},   {"0x41", "0xd44", "Cortex-X1"},    {"0x41", "0xd46", "Cortex-A510"},
    {"0x41", "0xd47", "Cortex-A710"},  {"0x41", "0xd48", "Cortex-X2"},    {"0x41", "0xd49", "Neoverse-N2"},
    {"0x41", "0xd4d", "Cortex-A715"},  {"0x41", "0xd4e", "Cortex-X3"},    {"0x41", "0xd4f", "Neoverse-V2"},
    {"0x41", "0xd81", "Cortex-A720"},  {"0x41", "0xd82", "Cortex-X4"},    {"0x41", "0xd83", "Neoverse-V3AE"},
    {"0x41", "0xd84", "Neoverse-V3"},  {"0x41", "0xd8e", "Neoverse-N3"},  {"0xc0", "0xac3", "Ampere-1"},
    {"0x61", "0x022", "Apple M1"},     {"0x61", "0x023", "Apple M1"},     {"0x61", "0x024", "Apple M1 Pro"},
    {"0x61", "0x025", "Apple M1 Pro"}, {"0x61", "0x028", "Apple M1 Max"}, {"0x61", "0x029", "Apple M1 Max"},
    {"0x61", "0x032", "Apple M2"},     {"0x61", "0x033", "Apple M2"},
};

#if defined(__x86_64__)
// The system saves the 8 KB of tiles only for processes that requested it, once for all their threads.
bool may_use_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (kBf16 | kTile)) != (kBf16 | kTile)) return false;
  constexpr int kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, absent from older headers; a state component
  return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
}
#endif

// All features of this CPU.
uint32_t supported() {
  uint32_t bits = 0;
  const auto set = [&](Feature f, bool there) { bits |= there ? bit(f) : 0; };
#if defined(__aarch64__)
  constexpr unsigned long kBf16 = 1ul << 14;           // HWCAP2_BF16, absent from older headers
  set(Feature::neon, getauxval(AT_HWCAP) & 1ul << 1);  // HWCAP_ASIMD; its f16 conversions need no extension
  set(Feature::neon_bf16, getauxval(AT_HWCAP2) & kBf16);
#elif defined(__x86_64__)
  // The compiler's run-time library reads CPUID and checks by XGETBV that the system saves the wide registers.
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);  // clang 14 lacks the name f16c
  const bool avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  set(Feature::avx2, avx2);
  set(Feature::avx512, avx512);
  const bool avx512_bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  set(Feature::avx512_bf16, avx512_bf16);
  set(Feature::amx_bf16, avx512_bf16 && may_use_tiles());  // they come together; our kernels round with the former
#endif
  set(Feature::blas, true);  // whether there is one shows when a plan or a product needs it: opening it starts threads
  return bits;
}

// Features that are slower than the level below them.
uint32_t slow() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("intel")) return bit(Feature::avx512_bf16);
#endif
  return 0;
}

// CPUs this process may be scheduled on. The kernel's mask may be longer than cpu_set_t's 1024 bits.
int affinity_threads() {
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const auto mask = std::make_unique<unsigned long[]>(bytes / sizeof(unsigned long));
    cpu_set_t* set = reinterpret_cast<cpu_set_t*>(mask.get());
    if (sched_getaffinity(0, bytes, set) == 0) return std::max(1, CPU_COUNT_S(bytes, set));
  }
  return 1;
}

// The tightest limit of this process's cgroups: version 2 limits every level up to the root.
int cgroup_threads() {
  int least = 0;
  const auto take = [&](int limit) {
    if (limit > 0) least = least ? std::min(least, limit) : limit;
  };
  const std::string own = read("/proc/self/cgroup");
  if (const size_t at = own.find("0::/"); at != own.npos) {
    std::string path = own.substr(at + 3, own.find('\n', at) - at - 3);
    for (;; path.resize(path.rfind('/'))) {
      if (path.ends_with('/')) path.pop_back();
      take(quota_threads(read("/sys/fs/cgroup" + path + "/cpu.max")));
      if (path.empty()) break;
    }
  }
  const std::string folder = "/sys/fs/cgroup/cpu/cpu.cfs_";  // version 1; -1 means unlimited
  take(quota_threads(read(folder + "quota_us") + " " + read(folder + "period_us")));
  return least;
}

std::atomic<int> asked_threads{0};

Device whole_cpu() {
  static const Device cpu{.features = supported(), .name = cpu_name(read("/proc/cpuinfo"))};
  Device now = cpu;
  now.units = default_threads();
  return now;
}

// "scalar", then every level this CPU has.
std::string levels(uint32_t features) {
  std::string all = "scalar";
  for (int n = 0; n < int(Feature::blas); ++n)
    if (features >> n & 1) all += ", " + name(Feature(n));
  return all;
}

}  // namespace

std::string cpu_name(std::string_view cpuinfo) {
  if (const auto model = field(cpuinfo, "model name"); !model.empty()) return std::string(model);
  const auto implementer = field(cpuinfo, "CPU implementer"), part = field(cpuinfo, "CPU part");
  for (const auto& core : kCores)
    if (core.implementer == implementer && core.part == part) return std::string(core.name);
  if (!part.empty()) return join("Arm implementer ", implementer, " part ", part);
  return "unknown CPU";
}

int quota_threads(std::string_view cpu_max) {
  int64_t value[2] = {0, 0};
  const char *at = cpu_max.data(), *end = at + cpu_max.size();
  for (int64_t& v : value) {
    while (at < end && (*at == ' ' || *at == '\n')) ++at;
    const auto [next, error] = std::from_chars(at, end, v);
    if (error != std::errc{}) return 0;  // "max", or a missing file
    at = next;
  }
  if (value[0] <= 0 || value[1] <= 0) return 0;
  return int(std::min<int64_t>((value[0] - 1) / value[1] + 1, 1 << 20));
}

void set_threads(int threads) { asked_threads.store(std::max(0, threads), std::memory_order_relaxed); }

void* take_scratch(size_t bytes) {
  constexpr size_t kLine = 64, kLarge = size_t(2) << 20;
  const size_t align = bytes < kLarge ? kLine : kLarge;
  if (bytes > size_t(PTRDIFF_MAX) - align) return nullptr;  // larger than any object; a sanitizer would abort
  void* const data = std::aligned_alloc(align, (bytes + align - 1) / align * align);
#ifdef MADV_HUGEPAGE
  if (data && align == kLarge) madvise(data, bytes, MADV_HUGEPAGE);  // advisory: it may be refused
#endif
  return data;
}
void free_scratch(void* data) { std::free(data); }

int default_threads() {
  static const int allowed = [] {
    const int cpus = affinity_threads(), quota = cgroup_threads();
    return quota ? std::min(cpus, quota) : cpus;
  }();
  const int asked = asked_threads.load(std::memory_order_relaxed);
  return asked ? asked : allowed;
}

Device this_cpu() {
  Device cpu = whole_cpu();
  cpu.features &= ~slow();
  return cpu;
}

namespace {

// "cuda", "cuda:1": a GPU that is present.
Status gpu_named(std::string_view word, Device& out) {
  int index = 0;
  if (word != "cuda") {
    const std::string_view number = word.substr(5);
    const char* end = number.data() + number.size();
    const auto [at, error] = std::from_chars(number.data(), end, index);
    if (error != std::errc{} || at != end || index < 0)
      return Status::no("device '", word, "' is not cuda:# with the index of a GPU");
  }
  return cuda::device(index, out).after("device '", word, "': ");
}

}  // namespace

Status device_named(std::string_view word, Device& out) {
  if (word == "cuda" || word.starts_with("cuda:")) return gpu_named(word, out);
  if (word != "cpu" && !word.starts_with("cpu:")) {
    const Status known = known_device(word, out);
    if (known.ok()) return known;
    const size_t meant = known.message.rfind("; did you mean");
    return Status::no("device '", word, "' is unknown; accepted: cpu, cpu: with one of ", levels(whole_cpu().features),
                      "; cuda, cuda:#; ", known_devices(),
                      meant == std::string::npos ? "" : known.message.substr(meant));
  }
  Device cpu = word == "cpu" ? this_cpu() : whole_cpu();
  if (word != "cpu") {
    const std::string_view level = word.substr(4);
    uint32_t top = 0;
    for (int n = 0; n < int(Feature::blas); ++n)
      if (level == name(Feature(n))) top = bit(Feature(n));
    if (!top && level != "scalar")
      return Status::no("device '", word, "': ", level, " is not one of ", levels(bit(Feature::blas) - 1));
    if (top && !(cpu.features & top))
      return Status::unsupported("device '", word, "': this CPU (", cpu.name, ") has only ", levels(cpu.features));
    const uint32_t below = top ? top - 1 : 0;  // features are ordered: a level includes all below it
    cpu.features &= top | below | bit(Feature::blas);
    cpu.name += join(" (", level, ")");
  }
  out = std::move(cpu);
  return Status::good();
}

}  // namespace attune
