// Backward attention for Hopper of any problem: what its two kernels share. They divide the work as those of wide heads
// do (sm90/backward/two_kernel/common.h) and multiply by the same code, but find their tiles in tables, so that lengths
// may be in tensors; they walk block lists, serve options that change scores and gradients in f32. No sum is shared
// between blocks but that of a bias that is broadcast, so a run has the same bits every time.
#pragma once
#include "attention/sm90/backward/config.h"
#include "attention/sm90/backward/two_kernel/common.h"
#include "attention/tile/key_tile.h"
#include "attention/tile/query_tile.h"

namespace attune::sm90 {

struct GeneralParams : TwoKernelParams {
  const QueryTile* row_table;  // of one head, or, of lists, of all
  const int* row_tiles;        // how many
  const KeyTile* key_table;    // of one head: of_keys.tiles
  // The end of a sequence within the tensors; a row at its end.
  CUtensorMap q_part[kEndParts], d_out_part[kEndParts], k_part[kEndParts];
  CUtensorMap dq_row, dk_row, dv_row;
  int rows_q, rows_k;          // of the tensors
  F32Rows f32_dq, f32_dk, f32_dv;
  int dim_qk, dim_v;
  bool wants_dq;
  bool accumulate;             // gradients are added to what is there, in f32
  bool cleared;                // dK and dV are 0 where nobody sees a key
  // Lists: by query block, `column`; by key block, the others.
  const int32_t *column, *list_begin, *list_row;
  int64_t list_batch, list_head;  // strides of list_begin
  Blocks blocks;
  bool options;                // some option changes scores
  ScoreOptions score;
  Tensor d_bias;               // f32, added to; no data: not wanted
  float kept_out;              // 1 / kept
};

// An entry of a table, past a cache that may be old.
template <class Tile>
__device__ inline Tile load_entry(const Tile* table, int n) {
  static_assert(sizeof(Tile) % 16 == 0);
  Tile t;
  const int4* from = reinterpret_cast<const int4*>(table + n);
#pragma unroll
  for (int i = 0; i < int(sizeof(Tile) / 16); ++i) reinterpret_cast<int4*>(&t)[i] = __ldcg(from + i);
  return t;
}

// A tile of `Panels` panels of 64 rows, of which `there` are its sequence's own. What lies behind them is another's and
// may be no numbers, which a weight of zero does not undo: those come as zeros, from `outside` of the tensor.
template <int Panels>
__device__ inline void load_end(uint32_t to, const CUtensorMap (&parts)[kEndParts], uint32_t full, int row, int there,
                                int outside, int head, int batch) {
#pragma unroll 1
  for (int at = 0; at < 64;) {
    const int open = (at < there ? there : 64) - at;
    const int part = open >= rows_of_end_part(0) ? 0 : open >= rows_of_end_part(1) ? 1 : 2;
#pragma unroll 1
    for (int n = 0; n < Panels; ++n)
      load_tile(to + (n * 64 + at) * 128, parts[part], full, n * 64, at < there ? row + at : outside, head, batch,
                Keep::last_to_go);
    at += rows_of_end_part(part);
  }
}

// Where 16 rows of a warp go: `row` of the tensor is the first, `end` past the last of their sequence.
struct RowsPlace {
  const CUtensorMap &map, &one;  // boxes of 16 rows, of one
  const F32Rows& f32;
  int row, end, rows;            // rows of the tensor
  int head, batch, dim;
  bool accumulate;
};

// As store_warp_rows, but rows that are another's stay as they are; f32 leaves straight from registers.
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
