// SPDX-License-Identifier: Apache-2.0
// Ceilings of a CPU. Register-only loops with enough independent chains to hide the latency of the instruction, as in
// the kernels. They are written in assembly: with intrinsics g++ 12 adds moves to the same loop and halves the result.
#include "tool/timing/ceilings.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "machine/host.h"
#include "tool/timing/clock.h"
#include "tool/timing/engine.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace attune {
namespace {

// A loop and what one iteration computes.
struct Spin {
  const char* instruction;
  uint32_t needs;         // feature bits
  double flops;           // per iteration
  void (*run)(long iterations);
};

#if defined(__aarch64__)
#define ATTUNE_24(op)                                                                                              \
  op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11) op(12) op(13) op(14) op(15) op(16) op(17) \
  op(18) op(19) op(20) op(21) op(22) op(23)
#define ATTUNE_SPIN(name, op)                                                                                       \
  void name(long n) {                                                                                               \
    asm volatile("movi v30.4s, #0\n movi v31.4s, #0\n 1:\n" ATTUNE_24(op) "subs %0, %0, #1\n b.ne 1b"               \
                 : "+r"(n) : : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",      \
                 "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v30", "v31"); \
  }
#define ATTUNE_FMLA(i) "fmla v" #i ".4s, v30.4s, v31.s[1]\n"
#define ATTUNE_BFMMLA(i) ".inst 0x6e5fefc0 + " #i "\n"  // bfmmla v#i.4s, v30.8h, v31.8h, for any -march
ATTUNE_SPIN(spin_fmla, ATTUNE_FMLA)
ATTUNE_SPIN(spin_bfmmla, ATTUNE_BFMMLA)
constexpr Spin kF32[] = {{"fmla", 0, 24 * 8, spin_fmla}};
constexpr Spin kBf16[] = {{"bfmmla", bit(Feature::neon_bf16), 24 * 32, spin_bfmmla}};

#elif defined(__x86_64__)
#define ATTUNE_14(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11) op(12) op(13)
#define ATTUNE_SPIN(name, op)                                                                                    \
  void name(long n) {                                                                                            \
    asm volatile("vpxor %%xmm14, %%xmm14, %%xmm14\n vpxor %%xmm15, %%xmm15, %%xmm15\n 1:\n" ATTUNE_14(op)         \
                 "sub $1, %0\n jnz 1b\n vzeroupper"                                                              \
                 : "+r"(n) : : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",     \
                 "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                  \
  }
#define ATTUNE_YMM(i) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n"
#define ATTUNE_ZMM(i) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #i "\n"
#define ATTUNE_DOT(i) "vdpbf16ps %%zmm14, %%zmm15, %%zmm" #i "\n"
ATTUNE_SPIN(spin_ymm, ATTUNE_YMM)
ATTUNE_SPIN(spin_zmm, ATTUNE_ZMM)
ATTUNE_SPIN(spin_dot, ATTUNE_DOT)

// Device::features lists only what the library has kernels for. A peer may use more, and must not be refused for it.
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (kBf16 | kTile)) != (kBf16 | kTile)) return false;
  constexpr int kArchReqXcompPerm = 0x1023, kTileData = 18;  // Linux saves tiles only for processes that request it
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

// Four accumulators of 16 x 16, each from a pair of operands of 16 x 32.
void spin_amx(long n) {
  alignas(64) uint8_t shape[64] = {1};  // palette 1; 64 bytes by 16 rows each
  for (int t = 0; t < 8; ++t) shape[16 + 2 * t] = 64, shape[48 + t] = 16;
  asm volatile("ldtilecfg %1\n tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"
               "tilezero %%tmm4\n tilezero %%tmm5\n tilezero %%tmm6\n tilezero %%tmm7\n 1:\n"
               "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
               "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n"
               "sub $1, %0\n jnz 1b\n tilerelease"
               : "+r"(n) : "m"(shape) : "cc", "memory");
}
constexpr Spin kF32[] = {{"vfmadd231ps zmm", bit(Feature::avx512), 14 * 32, spin_zmm},
                         {"vfmadd231ps ymm", bit(Feature::avx2), 14 * 16, spin_ymm}};
constexpr Spin kBf16[] = {{"tdpbf16ps", bit(Feature::amx_bf16), 4 * 16384, spin_amx},
                          {"vdpbf16ps zmm", bit(Feature::avx512_bf16), 14 * 64, spin_dot}};
#else
constexpr Spin kF32[] = {{"", ~0u, 0, nullptr}}, kBf16[] = {{"", ~0u, 0, nullptr}};
#endif

template <class F>
void on_threads(int n, const F& f) {
  std::vector<std::thread> others;
  for (int i = 1; i < n; ++i) others.emplace_back([&f, i] { f(i); });
  f(0);
  for (std::thread& t : others) t.join();
}

// The shortest of all runs: a ceiling is the rate of an undisturbed machine.
template <class F>
double best_ns(double seconds, const F& f) {
  const Clock clock = host_clock();
  const int64_t begin = clock.now();
  double best = 1e300;
  do {
    const int64_t start = clock.now();
    f();
    best = std::min(best, double(clock.now() - start));
  } while (double(clock.now() - begin) < seconds * 1e9);
  return best;
}

double thread_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) * 1e9 + double(t.tv_nsec);
}

// The total rate of all threads over one window in which every thread spins from beginning to end. Best times of
// different moments may never have occurred together, and equal shares of work would measure the slowest thread. Counts
// processor time, because a busy neighbour's share is not the machine's limit. The CPUs of a virtual machine are not
// steady: 16 of a Xeon gave 2141 to 2747 GFLOP/s within minutes, and a share of a ceiling is no more accurate than
// that.
double window_rate(const Spin& s, long iterations, int threads, double seconds) {
  const Clock clock = host_clock();
  std::atomic<int> ready{0};
  std::atomic<bool> stop{false};
  std::vector<double> rates(static_cast<size_t>(threads));
  on_threads(threads, [&](int t) {
    s.run(iterations);  // warms the unit up: wide vectors start at a lower clock
    ++ready;
    while (ready.load() < threads) {}
    const int64_t begin = clock.now();
    const double start = thread_ns();
    double done = 0;
    while (!stop.load(std::memory_order_relaxed)) {
      s.run(iterations), ++done;
      if (t == 0 && double(clock.now() - begin) > seconds * 1e9) stop = true;
    }
    rates[size_t(t)] = done * double(iterations) * s.flops / (thread_ns() - start);
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

template <size_t N>
Ceiling spin_rate(const Spin (&spins)[N], uint32_t features, int threads, double seconds) {
  for (const Spin& s : spins) {
    if (!s.run || (features & s.needs) != s.needs) continue;
    constexpr double kPiece = 100e3;  // ns; short compared with a window, so that all threads end together
    constexpr int kWindows = 5;       // the best one counts: the placement of threads varies
    long iterations = 100;
    while (iterations < (1L << 40) && best_ns(0, [&] { s.run(iterations); }) < kPiece) iterations *= 2;
    double best = 0;
    for (int n = 0; n < kWindows; ++n) best = std::max(best, window_rate(s, iterations, threads, seconds / kWindows));
    return {s.instruction, best};
  }
  return {};
}

double copy_rate(int threads, double seconds) {
  // Both together are twice the last cache: what a copy reads is no longer in it.
  const size_t bytes = std::max(size_t(64) << 20, last_level_cache_bytes()), share = bytes / size_t(threads);
  const auto from = std::make_unique_for_overwrite<char[]>(bytes), to = std::make_unique_for_overwrite<char[]>(bytes);
  const auto copy = [&](int t) { std::memcpy(&to[size_t(t) * share], &from[size_t(t) * share], share); };
  // First touched by the thread that copies it, so that it is in that thread's NUMA node.
  on_threads(threads, [&](int t) { std::memset(&from[size_t(t) * share], 1, share), copy(t); });
  return 2.0 * double(share) * threads / best_ns(seconds, [&] { on_threads(threads, copy); });
}

}  // namespace

const Ceiling& Ceilings::of(DType t) const {
  const Ceiling& own = t == DType::bf16 ? bf16 : t == DType::f16 ? f16 : f32;
  return own.gflops > f32.gflops ? own : f32;
}

Ceilings measure_ceilings(const Device& cpu, int threads, double seconds) {
  uint32_t features = cpu.features & ~bit(Feature::amx_bf16);
#if defined(__x86_64__)
  if (cpu.has(Feature::avx512) && has_amx()) features |= bit(Feature::amx_bf16);  // not on a restricted cpu:<isa>
#endif
  // More threads than CPUs share them by time slices. Counted by processor time they would appear as that many CPUs,
  // and starting them would be most of the time of a copy.
  const int at_once = std::min(threads, this_cpu().units);
  return {.threads = threads,
          .f32 = spin_rate(kF32, features, at_once, seconds),
          .bf16 = spin_rate(kBf16, features, at_once, seconds),
          .copy_gbs = copy_rate(at_once, seconds)};
}

}  // namespace attune
