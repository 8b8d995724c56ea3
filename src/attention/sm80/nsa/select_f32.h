// SPDX-License-Identifier: Apache-2.0
// Scores of f32 queries and keys by ordinary multiply-adds, in dim order: exact where tensor cores are not. The
// fragments have the same layout, so all later code is shared with the 16-bit types. A lane has 4 rows by 16 keys. Keys
// lie in shared memory; queries are read from global memory. Any dim and any strides.
#pragma once
#include "attention/sm80/nsa/select_rows.h"

namespace attune::sm80 {

template <>
struct SelectRows<float, 0> : SelectBase {
  // A key row is padded by a few floats, so that rows begin in different banks.
  __host__ __device__ static int pitch_of(const SelectParams& x) { return (x.problem.dim_qk + 3) / 4 * 4 + 4; }
  __host__ __device__ static int tile_bytes(const SelectParams& x) { return 2 * kSelectKeys * pitch_of(x) * 4; }

  float* const keys;
  const int pitch;
  const float* q[kM][2];  // null: missing row

  __device__ SelectRows(const SelectParams& params, char* memory)
      : SelectBase(params), keys(reinterpret_cast<float*>(memory)), pitch(pitch_of(params)) {}

  // Four dims of a row, 0 beyond the last.
  __device__ float4 four(const float* row, int column) const {
    if (!row) return {};
    if (x.aligned16) return *reinterpret_cast<const float4*>(row + column);
    const int left = x.problem.dim_qk - column;
    return {row[column], left > 1 ? row[column + 1] : 0.f, left > 2 ? row[column + 2] : 0.f,
            left > 3 ? row[column + 3] : 0.f};
  }
  __device__ void load_q(const SelectPlace& at) {
#pragma unroll
    for (int n = 0; n < 2 * kM; ++n) {
      const int row = row_of(n / 2, n % 2), token = at.seq.first + at.first + token_of(row);
      q[n / 2][n % 2] = there(at, row) ? reinterpret_cast<const float*>(
                                             x.q.row(at.seq.batch, token, at.head * x.group + head_of(row)))
                                       : nullptr;
    }
  }
  __device__ float* place_of(int tile) const { return keys + tile % 2 * kSelectKeys * pitch; }
  __device__ void load_keys(const SelectPlace& at, int tile) const {
    const int chunks = (x.problem.dim_qk + 3) / 4, first = tile * kSelectKeys;
    for (int n = threadIdx.x; n < kSelectKeys * chunks; n += kSelectThreads) {
      const int row = n / chunks, column = n % chunks * 4;
      const float* from = nullptr;
      if (first + row < at.seq.keys)
        from = reinterpret_cast<const float*>(x.k.row(at.seq.k_batch, at.seq.k_first + first + row, at.head));
      *reinterpret_cast<float4*>(place_of(tile) + row * pitch + column) = four(from, column);
    }
  }

  __device__ void scores(Accumulator (&s)[kM][kN], int tile) const {
    const float* first = place_of(tile) + lane % 4 * 2 * pitch;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; ++n) s[m][n] = {};
#pragma unroll 1
    for (int column = 0; column < x.problem.dim_qk; column += 4) {
      float4 rows[kM][2];
#pragma unroll
      for (int n = 0; n < 2 * kM; ++n) rows[n / 2][n % 2] = four(q[n / 2][n % 2], column);
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float4 key = *reinterpret_cast<const float4*>(first + (n * 8 + e) * pitch + column);
#pragma unroll
          for (int r = 0; r < 2 * kM; ++r) {
            const float4 row = rows[r / 2][r % 2];
            float& sum = s[r / 2][n].c[r % 2 * 2 + e];
            sum = fmaf(row.w, key.w, fmaf(row.z, key.z, fmaf(row.y, key.y, fmaf(row.x, key.x, sum))));
          }
        }
    }
  }
};

}  // namespace attune::sm80
