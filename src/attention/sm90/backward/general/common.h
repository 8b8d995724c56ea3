// SPDX-License-Identifier: Apache-2.0
// General backward for Hopper: what its two kernels share. They divide the work like the two-kernel backward
// (sm90/backward/two_kernel/common.h) and use its products, but find their tiles in tables, so that lengths may be in
// tensors. They walk block lists and serve options that change scores and gradients in f32. CTAs share no sums except
// that of a broadcast bias, so all other gradients have the same bits in every run.
#pragma once
#include "attention/sm90/backward/config.h"
#include "attention/sm90/backward/two_kernel/common.h"
#include "attention/tile/key_tile.h"
#include "attention/tile/query_tile.h"

namespace attune::sm90 {

struct GeneralParams : TwoKernelParams {
  const QueryTile* row_table;  // tiles of one head; with lists, of all heads
  const int* row_tiles;        // number of tiles
  const KeyTile* key_table;    // of_keys.tiles tiles of one head
  // Boxes at the end of a sequence inside the tensors; one row at its end.
  CUtensorMap q_end[kEndBoxes], d_out_end[kEndBoxes], k_end[kEndBoxes];
  CUtensorMap dq_row, dk_row, dv_row;
  int rows_q, rows_k;  // of the tensors
  F32Rows f32_dq, f32_dk, f32_dv;
  int dim_qk, dim_v;
  bool wants_dq;
  bool accumulate;     // gradients are added to the existing values, in f32
  bool cleared;        // dK and dV are already 0 for keys that no query sees
  // Lists by query block: `column`. Lists by key block: the others.
  const int32_t *column, *list_begin, *list_row;
  int64_t list_batch, list_head;  // strides of list_begin
  Blocks blocks;
  bool options;                   // some option changes scores
  ScoreOptions score;
  Tensor d_bias;                  // f32, added to; no data: not requested
  float kept_out;                 // 1 / kept
};

// Loads an entry of a table, bypassing L1, which may be stale.
template <class Tile>
__device__ inline Tile load_entry(const Tile* table, int n) {
  static_assert(sizeof(Tile) % 16 == 0);
  Tile t;
  const int4* from = reinterpret_cast<const int4*>(table + n);
#pragma unroll
  for (int i = 0; i < int(sizeof(Tile) / 16); ++i) reinterpret_cast<int4*>(&t)[i] = __ldcg(from + i);
  return t;
}

// Loads a tile of `Panels` panels of 64 rows, of which `there` belong to its sequence. The rows behind them belong to
// another and may be NaN, which a weight of zero does not cancel. They come as zeros, from `outside` the tensor.
template <int Panels>
__device__ inline void load_end(uint32_t to, const CUtensorMap (&boxes)[kEndBoxes], uint32_t full, int row, int there,
                                int outside, int head, int batch) {
#pragma unroll 1
  for (int at = 0; at < 64;) {
    const int open = (at < there ? there : 64) - at;
    const int box = open >= end_box_rows(0) ? 0 : open >= end_box_rows(1) ? 1 : 2;
#pragma unroll 1
    for (int n = 0; n < Panels; ++n)
      load_tile(to + (n * 64 + at) * 128, boxes[box], full, n * 64, at < there ? row + at : outside, head, batch,
                Keep::last_to_go);
    at += end_box_rows(box);
  }
}

// Destination of a warp's 16 rows: `row` of the tensor is the first, `end` one past the last of their sequence.
struct RowsPlace {
  const CUtensorMap &map, &one;  // boxes of 16 rows, of one
  const F32Rows& f32;
  int row, end, rows;            // rows: of the tensor
  int head, batch, dim;
  bool accumulate;
};

// Like store_warp_rows, but does not touch rows of other sequences. f32 leaves straight from registers.
template <class T, int Rows, int N>
__device__ inline void store_own_rows(const float (&sums)[N], float factor, uint32_t place, int first,
                                      const RowsPlace& to) {
  const int lane = int(threadIdx.x % 32);
  if (to.f32.data) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = to.row + lane / 4 + 8 * r;
      if (row >= to.end) continue;
      float* const at_row =
          to.f32.data + to.batch * to.f32.batch + int64_t(row) * to.f32.seq + to.head * to.f32.head;
#pragma unroll
      for (int n = 0; n < N / 4; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        if (column >= to.dim) continue;
        float2* const at = reinterpret_cast<float2*>(at_row + column);
        const float2 was = to.accumulate ? *at : float2{0.f, 0.f};
        *at = {fmaf(sums[4 * n + 2 * r], factor, was.x), fmaf(sums[4 * n + 2 * r + 1], factor, was.y)};
      }
    }
    return;
  }
  if (to.row + 16 <= to.end || to.end >= to.rows)
    return store_warp_rows<T, Rows>(sums, factor, place, first, to.map, to.row, to.head, to.batch);
  const int r = first + lane % 16, half = lane / 16;
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    const float* y = sums + 8 * n;
    store_matrix4(place + n / 4 * Rows * 128 + r * 128 + (((n % 4 * 2 + half) ^ (r & 7)) << 4),
                  sm80::pack<T>(y[0] * factor, y[1] * factor), sm80::pack<T>(y[2] * factor, y[3] * factor),
                  sm80::pack<T>(y[4] * factor, y[5] * factor), sm80::pack<T>(y[6] * factor, y[7] * factor));
  }
  publish_shared();
  __syncwarp();
  if (lane > 0) return;
#pragma unroll 1
  for (int i = 0; to.row + i < to.end; ++i)
#pragma unroll 1
    for (int n = 0; n < N / 32; ++n)
      store_tile(to.one, place + (n * Rows + first + i) * 128, n * 64, to.row + i, to.head, to.batch);
  close_stores();
  wait_stores_read();
}

}  // namespace attune::sm90
