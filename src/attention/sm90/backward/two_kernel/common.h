// SPDX-License-Identifier: Apache-2.0
// Two-kernel backward for Hopper, for head dims over 128 (192, 256): what its two kernels share. Sums of dK and dV of
// 64 keys fill the registers of a CTA, and dQ added to memory from so few keys would take longer than the products. So
// there are two kernels, with seven products instead of five, and CTAs share no sums:
//   rows  a CTA owns 128 queries and walks keys: S, dP, dQ (kernel_dq.h)
//   keys  a CTA owns 64 keys and walks queries: S^T, dP^T, dV, dK (kernel_dkdv.h)
#pragma once
#include <cuda.h>

#include "attention/sm90/backward/large_logits.h"
#include "attention/sm90/backward/roles.h"
#include "core/tensor.h"
#include "machine/sm80/mma.h"
#include "machine/sm80/dependent_launch.h"
#include "machine/sm90/barrier.h"
#include "machine/sm90/memory.h"
#include "machine/sm90/tma.h"
#include "machine/sm90/wgmma.h"

namespace attune::sm90 {

// The walk of a CTA starts at the first visible row, rounded down to a multiple of this: copies may start anywhere.
inline constexpr int kTwoKernelStart = 16;

// CTAs go section by section of heads, then tile by tile over all heads of a section.
struct BlockOrder {
  int tiles;  // per head
  int heads;  // of all sequences
  int section;
};

struct TwoKernelParams {
  CUtensorMap q, d_out, k, v;  // boxes of 64 rows; of a tensor that a kernel walks, of a step's rows
  CUtensorMap dq, dk, dv;      // of 16 rows
  CUtensorMap stats;           // of a step's rows
  const float2* row_stats;     // [batch][head][padded]: lse_of_weights(), base 2, +inf without keys; delta * kept
  float scale2;                // of the products, in base 2
  float kept, scale;           // power of two that multiplies dS; factor of dQ and dK, which removes it
  int rows, keys;              // of a sequence
  int heads, heads_kv, group;
  int left, right, offset;     // query i sees key j if i + offset - left <= j <= i + offset + right
  int padded;                  // rows per head in the statistics, a multiple of 128
  bool wants_dk, wants_dv;     // requested
  bool alone;                  // the kernel that owns keys directly follows the preprocessing
  BlockOrder of_rows, of_keys;
};

struct BlockPlace { int tile, head; };
__device__ inline BlockPlace find_block(const BlockOrder& o, int n) {
  const int per_section = o.section * o.tiles, section = n / per_section;
  const int rest = n - section * per_section, here = min(o.section, o.heads - section * o.section);
  return {rest / here, section * o.section + rest % here};
}

// Loads a tile of `Panels` panels of 64 columns, `Rows` rows each, in boxes of `Box` rows.
template <int Rows, int Panels, int Box = 64>
__device__ inline void load_panels(uint32_t to, const CUtensorMap& map, uint32_t full, int first_panel, int row,
                                   int head, int batch, Keep keep) {
#pragma unroll
  for (int n = 0; n < Panels; ++n)
#pragma unroll
    for (int r = 0; r < Rows; r += Box)
      load_tile(to + (n * Rows + r) * 128, map, full, (first_panel + n) * 64, row + r, head, batch, keep);
}

// Loads a warp's 16 rows of a tile, from `first` on, as register operands. Products are limited by shared memory, from
// which each one would read these rows again.
template <int PanelBytes, int N>
__device__ inline void keep_rows(uint32_t (&to)[N], uint32_t tile, int first, int lane) {
  const int row = first + lane % 16;
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    const int chunk = (i % 4 * 2 + lane / 16) ^ (row & 7);
    uint32_t four[4];
    sm80::load_matrix4(four, tile + i / 4 * PanelBytes + row * 128 + chunk * 16);
#pragma unroll
    for (int e = 0; e < 4; ++e) to[4 * i + e] = four[e];
  }
}

// Stores the sums of a warp's 16 rows to a tensor, through shared memory: `place` is row 0 of panels of `Rows` rows,
// `first` the warp's first row there. The buffer is free on return.
template <class T, int Rows, int N>
__device__ inline void store_warp_rows(const float (&sums)[N], float factor, uint32_t place, int first,
                                       const CUtensorMap& map, int row, int head, int batch) {
  const int lane = int(threadIdx.x % 32), r = first + lane % 16, half = lane / 16;
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    const float* y = sums + 8 * n;
    store_matrix4(place + n / 4 * Rows * 128 + r * 128 + (((n % 4 * 2 + half) ^ (r & 7)) << 4),
                  sm80::pack<T>(y[0] * factor, y[1] * factor), sm80::pack<T>(y[2] * factor, y[3] * factor),
                  sm80::pack<T>(y[4] * factor, y[5] * factor), sm80::pack<T>(y[6] * factor, y[7] * factor));
  }
  publish_shared();
  __syncwarp();
  if (lane == 0) {
#pragma unroll
    for (int n = 0; n < N / 32; ++n) store_tile(map, place + (n * Rows + first) * 128, n * 64, row, head, batch);
    close_stores();
    wait_stores_read();
  }
  __syncwarp();
}

}  // namespace attune::sm90
