// SPDX-License-Identifier: Apache-2.0
// Helpers of the CPU backends: rows of any dtype as f32, tasks distributed over threads, and row loops that compilers
// vectorize.
#pragma once
#include <algorithm>
#include <atomic>

#include "attention/cpu/unit.h"
#include "core/dtypes.h"

namespace attune::cpu {

// Converts rows of one dtype to and from f32.
struct RowsAs {
  const CpuKernels* kernels;
  RowsAs(DType t, const Device& d) : kernels(best_kernels(t, d.features)) {}
  void read(const void* from, int n, float* to) const { kernels->widen(from, n, to); }
  void write(const float* from, int n, void* to) const { kernels->narrow(from, n, to); }
};

// Common checks of a backend that serves one variant and converts rows of any dtype.
inline Status supports_rows(std::string_view who, std::string_view variant, const Problem& p, const Device& d) {
  const auto no = [&](const auto&... why) { return Status::unsupported(who, ": ", why...); };
  if (word(p.variant) != variant) return no("is for the variant ", variant);
  if (d.kind != DeviceKind::cpu) return no("requires a CPU, but the device is ", d.name.empty() ? "a GPU" : d.name);
  for (const DType t : {p.dtype.q, p.dtype.out, p.pass == Pass::backward ? p.dtype.grad : DType::f32})
    if (!is_f32_or_half(t)) return no("dtype ", name(t), " is not one of f32, f16, bf16");
  if (!best_kernels(p.dtype.q, d.features)) return no("this build has no kernels for ", d.name);
  return Status::good();
}

// Calls f(worker, n) for n = 0 ... tasks - 1, on the next free worker.
template <class F>
void each_task(int64_t tasks, int units, F f) {
  if (tasks <= 0) return;
  std::atomic<int64_t> next{0};
  auto work = [&](int worker) {
    for (int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) f(worker, n);
  };
  parallel(int(std::min<int64_t>(units, tasks)), work);
}

// to += factor * from
inline void add_scaled(const float* from, float factor, int64_t n, float* to) {
  for (int64_t d = 0; d < n; ++d) to[d] += factor * from[d];
}

// to += from; they must not overlap.
inline void add_row(const float* __restrict from, int n, float* __restrict to) {
  for (int d = 0; d < n; ++d) to[d] += from[d];
}

// to[r] += factor * row r of a panel, for the first n rows; `row` is scratch for a panel.
inline void add_panel(const CpuKernels& m, const float* o, int dim, float factor, int n, float* row, float* const* to) {
  if (m.add) return m.add(o, dim, factor, n, to);
  float factors[64];
  std::fill_n(factors, 64, factor);
  m.unpack(o, dim, factors, n, row, dim);
  for (int r = 0; r < n; ++r) add_row(row + int64_t(r) * dim, dim, to[r]);
}

// Uses sixteen partial sums, so that it vectorizes.
inline float dot_rows(const float* a, const float* b, int64_t n) {
  float part[16] = {}, sum = 0.f;
  int64_t d = 0;
  for (; d + 16 <= n; d += 16)
    for (int e = 0; e < 16; ++e) part[e] += a[d + e] * b[d + e];
  for (; d < n; ++d) sum += a[d] * b[d];
  for (int step = 8; step; step /= 2)
    for (int e = 0; e < step; ++e) part[e] += part[e + step];
  return sum + part[0];
}

// True if block_bias is the only option that changes a logit.
inline bool only_numbers(const Problem& p) {
  return p.has(Option::block_bias) && !p.has(Option::softcap) && !p.has(Option::alibi) && !p.has(Option::dropout);
}

}  // namespace attune::cpu
