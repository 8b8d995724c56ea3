// SPDX-License-Identifier: Apache-2.0
// to = x y' in f32, [m, n] = [m, k] [n, k]', with rows whose bits do not depend on m. A token that a decode compresses
// alone has the bits that it has among thousands, which cuBLASLt does not guarantee. Rows of x may overlap (their pitch
// may be less than k). An element is summed in slices of kSlice terms, each in order, then slice by slice. One CTA
// computes all slices of its elements if there are enough rows; otherwise a CTA has one slice, and add_slices is the
// last step.
#pragma once
#include <cstdint>

namespace attune::compress {

inline constexpr int kTileM = 128, kTileN = 64, kTileK = 16, kSlice = 512, kProductThreads = 256;

struct ProductParams {
  const float *x, *y;  // 16-byte rows; k is a multiple of 4
  float* to;           // [m][n], or [slice][m][n] if `split_k`
  int64_t pitch_x;
  int32_t m, n, k;
  int32_t blocks_n, slices;  // slices: of all terms
  bool split_k;
};

__host__ __device__ inline int slices_of(int64_t k) { return int((k + kSlice - 1) / kSlice); }
__device__ inline float add_slices(const float* partial, int64_t step, int count) {
  float sum = partial[0];
  for (int n = 1; n < count; ++n) sum = __fadd_rn(sum, partial[n * step]);
  return sum;
}

struct ProductTiles {
  // Terms by rows, so that the rows of a thread are contiguous.
  float x[2][kTileK][kTileM + 4], y[2][kTileK][kTileN + 4];
};

__device__ inline void product_block(const ProductParams& p, ProductTiles& tiles, int block_m, int block_n,
                                     int first_slice, int last_slice) {
  const int tid = threadIdx.x, rows = tid / 16 * 8, columns = tid % 16 * 4;
  const int row0 = block_m * kTileM, column0 = block_n * kTileN, last = min(last_slice * kSlice, p.k);
  float4 from_x[2], from_y;
  const auto fetch = [&](int k) {
    const int at = k + tid % 4 * 4;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int row = row0 + tid / 4 + n * 64;
      from_x[n] = row < p.m && at < last ? *reinterpret_cast<const float4*>(p.x + row * p.pitch_x + at) : float4{};
    }
    const int column = column0 + tid / 4;
    from_y = column < p.n && at < last ? *reinterpret_cast<const float4*>(p.y + int64_t(column) * p.k + at) : float4{};
  };
  const auto keep = [&](int buffer) {
    const int k = tid % 4 * 4;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float four[4] = {from_x[n].x, from_x[n].y, from_x[n].z, from_x[n].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) tiles.x[buffer][k + e][tid / 4 + n * 64] = four[e];
    }
    const float four[4] = {from_y.x, from_y.y, from_y.z, from_y.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) tiles.y[buffer][k + e][tid / 4] = four[e];
  };
  float* const to = p.to + (p.split_k ? int64_t(first_slice) * p.m * p.n : 0) +
                    int64_t(row0 + rows) * p.n + column0 + columns;
  float sum[8][4] = {};
  int buffer = 0;
  fetch(first_slice * kSlice), keep(0);
  __syncthreads();
  for (int k = first_slice * kSlice; k < last; k += kTileK) {
    if (k + kTileK < last) fetch(k + kTileK);
#pragma unroll
    for (int step = 0; step < kTileK; ++step) {
      const float4 a = *reinterpret_cast<const float4*>(&tiles.x[buffer][step][rows]);
      const float4 b = *reinterpret_cast<const float4*>(&tiles.x[buffer][step][rows + 4]);
      const float4 c = *reinterpret_cast<const float4*>(&tiles.y[buffer][step][columns]);
      const float left[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, right[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
    }
    if ((k + kTileK) % kSlice == 0 || k + kTileK >= last) {  // earlier slices are kept in memory
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float* place = to + int64_t(i) * p.n + j;
          if (row0 + rows + i < p.m && column0 + columns + j < p.n)
            *place = k < (first_slice + 1) * kSlice ? sum[i][j] : __fadd_rn(*place, sum[i][j]);
          sum[i][j] = 0.f;
        }
    }
    buffer ^= 1;
    if (k + kTileK < last) keep(buffer);
    __syncthreads();
  }
}

}  // namespace attune::compress
