// SPDX-License-Identifier: Apache-2.0
#include "machine/gemm.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <vector>

#include "core/dtypes.h"
#include "core/problem.h"
#include "machine/cpu/kernels.h"
#include "machine/cpu/threads.h"
#include "machine/cuda/blas.h"
#include "machine/library.h"

namespace attune {
namespace {

constexpr int kTile = 64;                // rows and columns per task
constexpr int kDepth = 128;              // per packed slab: 64 KB for both factors
constexpr int kRows = 4, kColumns = 16;  // held in registers
constexpr int kFewRows = 8;              // up to so many, reading y takes longer than the product

// Calls f with a pointer of the right type.
template <class F>
void typed(const void* data, DType t, F f) {
  if (t == DType::f32) f(static_cast<const float*>(data));
  else if (t == DType::f16) f(static_cast<const F16*>(data));
  else f(static_cast<const Bf16*>(data));
}

// Packs a slab of a factor as f32: to[r * width + c] = element (first_row + r, first_column + c), 0 beyond `rows`,
// `columns`.
template <int Width>
void pack(const void* from, DType type, bool transposed, int64_t pitch, int64_t row, int64_t column, int rows,
          int columns, int all_rows, float* to) {
  typed(from, type, [&](const auto* x) {
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < Width; ++c)
        to[r * Width + c] = c >= columns ? 0.f
                                         : float(transposed ? x[(column + c) * pitch + row + r]
                                                        : x[(row + r) * pitch + column + c]);
  });
  std::fill(to + int64_t(rows) * Width, to + int64_t(all_rows) * Width, 0.f);
}

// sum[kTile][kTile] += x y for one slab of the depth. Only `depth` is not a compile-time constant.
void multiply_slab(const float* x, const float* y, int depth, float* sum) {
  for (int i = 0; i < kTile; i += kRows)
    for (int j = 0; j < kTile; j += kColumns) {
      float block[kRows][kColumns];
      for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kColumns; ++c) block[r][c] = sum[(i + r) * kTile + j + c];
      for (int p = 0; p < depth; ++p)
        for (int r = 0; r < kRows; ++r) {
          const float a = x[(i + r) * kDepth + p];
          for (int c = 0; c < kColumns; ++c) block[r][c] += a * y[p * kTile + j + c];
        }
      for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kColumns; ++c) sum[(i + r) * kTile + j + c] = block[r][c];
    }
}

void store_tile(const Gemm& g, int64_t row, int64_t column, int rows, int columns, const float* sum) {
  const void* before = g.plus ? g.plus : g.to;
  const auto write = [&](auto* to, const auto* from) {
    using T = std::remove_pointer_t<decltype(to)>;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) {
        const int64_t at = (row + r) * g.pitch_to + column + c;
        const float x = g.alpha * sum[r * kTile + c];
        to[at] = T(g.beta == 0.f ? x : x + g.beta * float(from[at]));
      }
  };
  if (g.out == DType::f32) write(static_cast<float*>(g.to), static_cast<const float*>(before));
  else if (g.out == DType::f16) write(static_cast<F16*>(g.to), static_cast<const F16*>(before));
  else write(static_cast<Bf16*>(g.to), static_cast<const Bf16*>(before));
}

// Products of few rows with y as it lies in memory, [n, k]: each row of y is read once, and nothing is packed.
bool has_few_rows(const Gemm& g, const CpuKernels* kernels) {
  return g.m <= kFewRows && g.y_transposed && !g.x_transposed && g.k > 0 && g.k % 8 == 0 && kernels &&
         kernels->row_scores;
}

void by_few_rows(const Gemm& g, const CpuKernels& kernels, int threads) {
  static thread_local std::vector<float> copies;  // of x, in f32; grows to the largest
  const float* x = static_cast<const float*>(g.x);
  if (g.in != DType::f32 || (g.m > 1 && g.pitch_x != g.k)) {
    copies.resize(size_t(g.m) * size_t(g.k));
    for (int64_t r = 0; r < g.m; ++r)
      kernels.widen(static_cast<const char*>(g.x) + r * g.pitch_x * size_of(g.in), g.k, copies.data() + r * g.k);
    x = copies.data();
  }
  std::atomic<int64_t> next{0};
  const int64_t tasks = ceil_div(g.n, kTile);
  auto work = [&](int) {
    float sum[kTile * kTile];
    const void* rows[kTile];
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      const int64_t first = task * kTile;
      const int columns = int(std::min<int64_t>(kTile, g.n - first));
      for (int c = 0; c < columns; ++c)
        rows[c] = static_cast<const char*>(g.y) + (first + c) * g.pitch_y * size_of(g.in);
      for (int r = 0; r < g.m; r += kRows)
        kernels.row_scores(x + int64_t(r) * g.k, std::min(kRows, g.m - r), rows, columns, g.k, sum + r * kTile, kTile);
      store_tile(g, 0, first, g.m, columns, sum);
    }
  };
  parallel(clamp(tasks * g.k / 2048, 1, threads), work);
}

void tile_product(const Gemm& g, int64_t row, int64_t column) {
  alignas(64) float x[kTile * kDepth], y[kDepth * kTile], sum[kTile * kTile] = {};
  const int rows = int(std::min<int64_t>(kTile, g.m - row)), columns = int(std::min<int64_t>(kTile, g.n - column));
  for (int p = 0; p < g.k; p += kDepth) {
    const int depth = std::min(kDepth, g.k - p);
    pack<kDepth>(g.x, g.in, g.x_transposed, g.pitch_x, row, p, rows, depth, kTile, x);
    pack<kTile>(g.y, g.in, g.y_transposed, g.pitch_y, p, column, depth, columns, depth, y);
    multiply_slab(x, y, depth, sum);
  }
  store_tile(g, row, column, rows, columns, sum);
}

void by_tiles(const Gemm& g, int threads) {
  const int64_t across = ceil_div(g.n, kTile), tasks = ceil_div(g.m, kTile) * across;
  std::atomic<int64_t> next{0};
  auto work = [&](int) {
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
      tile_product(g, task / across * kTile, task % across * kTile);
  };
  parallel(clamp(tasks, 1, threads), work);
}

// Divides the rows of the result, or its columns if more, into equal slabs, with one BLAS thread each.
void by_blas(const Blas& blas, const Gemm& g, int threads) {
  constexpr int kRowMajor = 101, kAsIs = 111, kTransposed = 112;
  const auto* x = static_cast<const float*>(g.x);
  const auto* y = static_cast<const float*>(g.y);
  auto* to = static_cast<float*>(g.to);
  if (g.plus && g.plus != g.to && g.beta != 0.f)
    for (int64_t r = 0; r < g.m; ++r)
      std::memcpy(to + r * g.pitch_to, static_cast<const float*>(g.plus) + r * g.pitch_to, size_t(g.n) * sizeof(float));
  const bool by_rows = g.m >= g.n;
  // At most 32 slabs, by the shape alone: the bits do not depend on the number of threads.
  const int64_t all = by_rows ? g.m : g.n, step = round_up(ceil_div(all, 32), kTile), slabs = ceil_div(all, step);
  std::atomic<int64_t> next{0};
  auto work = [&](int) {
    const BlasOneThread one_thread(blas);
    for (int64_t slab; (slab = next.fetch_add(1, std::memory_order_relaxed)) < slabs;) {
      const int64_t first = slab * step, row = by_rows ? first : 0, column = by_rows ? 0 : first;
      const int rows = by_rows ? int(std::min<int64_t>(step, g.m - first)) : g.m;
      const int columns = by_rows ? g.n : int(std::min<int64_t>(step, g.n - first));
      blas.sgemm(kRowMajor, g.x_transposed ? kTransposed : kAsIs, g.y_transposed ? kTransposed : kAsIs, rows, columns,
                 g.k, g.alpha, g.x_transposed ? x + row : x + row * g.pitch_x, int(g.pitch_x),
                 g.y_transposed ? y + column * g.pitch_y : y + column, int(g.pitch_y), g.beta,
                 to + row * g.pitch_to + column, int(g.pitch_to));
    }
  };
  parallel(clamp(slabs, 1, threads), work);
}

// The largest power of two up to 16 that divides every address and pitch, in bytes.
int64_t alignment(const Gemm& g) {
  const auto address = [](const void* p) { return reinterpret_cast<intptr_t>(p); };
  const int64_t all = address(g.x) | address(g.y) | address(g.to) | address(g.plus) | g.pitch_x * size_of(g.in) |
                      g.pitch_y * size_of(g.in) | g.pitch_to * size_of(g.out) | 16;
  return all & -all;
}

}  // namespace

size_t gemm_bytes(const Device& d) { return d.kind == DeviceKind::cuda ? cuda::kBlasBytes : 0; }

Status gemm(const Device& d, const Gemm& g, void* scratch, void* stream) {
  if (!is_f32_or_half(g.in) || !is_f32_or_half(g.out) || (g.out != g.in && g.out != DType::f32))
    return Status::no("gemm: ", name(g.in), " to ", name(g.out),
                      " given; f32, f16 and bf16 are accepted, to the same type or f32");
  if (!g.m || !g.n) return Status::good();
  if (d.kind == DeviceKind::cuda) {
    const cuda::Product p{.in = g.in, .out = g.out, .m = g.m, .n = g.n, .k = g.k, .x_transposed = g.x_transposed,
                          .y_transposed = g.y_transposed, .tf32 = g.tf32, .device = d.index, .pitch_x = g.pitch_x,
                          .pitch_y = g.pitch_y, .pitch_to = g.pitch_to, .align = alignment(g)};
    return cuda::multiply(p, {.x = g.x, .y = g.y, .to = g.to, .plus = g.plus, .alpha = g.alpha, .beta = g.beta},
                          scratch, stream);
  }
  if (const CpuKernels* const kernels = best_kernels(g.in, d.features); has_few_rows(g, kernels))
    return by_few_rows(g, *kernels, d.units), Status::good();
  const bool all_f32 = g.in == DType::f32 && g.out == DType::f32;
  if (const Blas* library = all_f32 && g.k && d.has(Feature::blas) ? blas() : nullptr) by_blas(*library, g, d.units);
  else by_tiles(g, d.units);
  return Status::good();
}

}  // namespace attune
