// SPDX-License-Identifier: Apache-2.0
// Ceilings of a GPU: products of 8192 x 8192 matrices of normal numbers. With zeros a GPU would be a tenth faster,
// because it draws less power. The shortest of several runs counts, after a few untimed ones.
#include <algorithm>
#include <vector>

#include "core/number.h"
#include "machine/cuda/blas.h"
#include "tool/timing/ceilings.h"
#include "tool/timing/device_timer.h"
#include "verify/world.h"

namespace attune {
namespace {

constexpr int kSide = 8192, kRuns = 12, kUntimed = 3;
constexpr size_t kMatrix = size_t(kSide) * kSide;

// The shortest of kRuns in ns; 0 and a message in `missed` if one fails.
template <class F>
double best_ns(const DeviceTimer& timer, cuda::Marks& marks, const F& f, std::string& missed) {
  const auto no = [&](const Status& s) { return missed = s.message, 0.0; };
  for (int n = 0; n < kRuns; ++n) {
    if (const Status s = marks.set(2 * n, timer.stream()); !s.ok()) return no(s);
    if (const Status s = f(); !s.ok()) return no(s);
    if (const Status s = marks.set(2 * n + 1, timer.stream()); !s.ok()) return no(s);
  }
  if (const Status s = cuda::wait(timer.stream()); !s.ok()) return no(s);
  double best = 1e300;
  for (int n = kUntimed; n < kRuns; ++n) {
    double ns = 0;
    if (const Status s = marks.between(2 * n, 2 * n + 1, ns); !s.ok()) return no(s);
    best = std::min(best, ns);
  }
  return best;
}

// Fills `bytes` with normal numbers of this dtype, repeating the same million of them.
Status fill_normal(const DeviceTimer& timer, std::byte* gpu, size_t bytes, DType type) {
  constexpr int kPattern = 1 << 20;
  std::vector<unsigned char> pattern(size_t(kPattern) * size_t(size_of(type)));
  const Tensor t{.data = pattern.data(), .dtype = type, .extent = {.dim = kPattern}};
  Random random{1};
  for (int n = 0; n < kPattern; ++n) store(t, 0, 0, 0, n, random.normal());
  if (Status s = cuda::copy_to(gpu, pattern.data(), pattern.size(), timer.stream()); !s.ok()) return s;
  for (size_t have = pattern.size(); have < bytes; have *= 2)
    if (Status s = cuda::copy_inside(gpu + have, gpu, std::min(have, bytes - have), timer.stream()); !s.ok()) return s;
  return Status::good();
}

Ceiling product_rate(const DeviceTimer& timer, cuda::Marks& marks, std::byte* memory, DType type, std::string& missed) {
  const size_t bytes = kMatrix * size_t(size_of(type));
  if (const Status s = fill_normal(timer, memory, 2 * bytes, type); !s.ok()) return missed = s.message, Ceiling{};
  const cuda::Product product{.in = type, .out = type, .m = kSide, .n = kSide, .k = kSide, .y_transposed = 1,
                              .tf32 = type == DType::f32, .device = timer.index(), .pitch_x = kSide,
                              .pitch_y = kSide, .pitch_to = kSide};
  const cuda::Factors factors{.x = memory, .y = memory + bytes, .to = memory + 2 * bytes};
  const double ns = best_ns(timer, marks, [&] {
    return cuda::multiply(product, factors, memory + 3 * bytes, timer.stream());
  }, missed);
  if (ns <= 0) return {};
  return {join("cuBLASLt ", type == DType::f32 ? "tf32" : name(type)), 2.0 * double(kMatrix) * kSide / ns};
}

}  // namespace

Ceilings measure_gpu_ceilings(const DeviceTimer& timer) {
  Ceilings c{.threads = 0};
  const cuda::DeviceGuard use(timer.index());
  cuda::Marks marks;
  cuda::Memory memory;
  const size_t bytes = 3 * kMatrix * sizeof(float) + cuda::kBlasBytes;
  if (const Status s = marks.open(timer.index(), 2 * kRuns); !s.ok()) return c.missed = s.message, c;
  if (const Status s = memory.allocate(timer.index(), bytes); !s.ok()) return c.missed = s.message, c;
  const size_t half = bytes / 2;
  const double ns = best_ns(timer, marks, [&] {
    return cuda::copy_inside(memory.data() + half, memory.data(), half, timer.stream());
  }, c.missed);
  if (ns > 0) c.copy_gbs = 2.0 * double(half) / ns;
  c.f32 = product_rate(timer, marks, memory.data(), DType::f32, c.missed);
  c.f16 = product_rate(timer, marks, memory.data(), DType::f16, c.missed);
  c.bf16 = product_rate(timer, marks, memory.data(), DType::bf16, c.missed);
  return c;
}

}  // namespace attune
