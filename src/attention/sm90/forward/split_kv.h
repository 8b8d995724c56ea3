// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper with few query tiles: the warpgroups of a CTA share 64 queries and divide their keys,
// which shortens the serial chain of a row by their number.
//   each warpgroup  loads k and v of its own key tiles, two ahead; S = Q K^T | softmax | O += P V, one after another
//   then all        exchange maxima and sums, and each adds up its share of the columns
// Warpgroups hide each other's waits. There is no producer warp and no unrolling by stages: a small problem runs this
// code once, and most of its time is the latency of the first byte.
#pragma once
#include <cstddef>

#include "attention/sm90/forward/softmax.h"
#include "core/divisor.h"
#include "core/softmax.h"
#include "core/tensor.h"
#include "machine/sm80/dependent_launch.h"
#include "machine/sm90/barrier.h"
#include "machine/sm90/tma.h"

namespace attune::sm90 {

struct SplitKvParams {
  CUtensorMap q, k, v;
  float scale;                  // of the products, in base 2
  int rows, keys;               // queries and keys of a sequence
  int left, right, offset;      // query i sees key j if i + offset - left <= j <= i + offset + right
  int tiles_of_head, tiles;     // query tiles
  Divisor heads_total, heads;   // heads of all sequences, and of one
  Divisor heads_per_key;
  bool longest_first, f32_out;  // f32_out: output in f32
  char* out;
  Strides out_stride;           // in elements
  int dim_v;
  float* lse;                   // null: not requested
  Strides lse_stride;
};

template <class T_, int Dim, int TileK, int Groups>
struct SplitKvLayout {
  using T = T_;
  static constexpr int kDim = Dim, kTileK = TileK, kGroups = Groups, kTileQ = 64, kStages = 2;
  static constexpr int kThreads = 128 * kGroups, kPanels = kDim / 64;
  static constexpr int kShare = kDim / 2 / kGroups;  // per thread: sums of the columns that its warpgroup finishes
  static constexpr int kPanelQ = kTileQ * 128, kPanelK = kTileK * 128;
  static constexpr int kBytesQ = kPanelQ * kPanels, kBytesK = kPanelK * kPanels;
  struct Shared {
    char q[2][kBytesQ];                                  // of this tile and the next
    char k_v[2][kGroups][kStages][kBytesK];
    float4 sums[kGroups][kGroups - 1][kShare / 4][128];  // in transit from warpgroup to warpgroup
    float2 rows[kGroups][64];                            // maximum and sum
    Mbarrier q_full[2], full[2][kGroups][kStages], empty[2][kGroups][kStages];
  };
  static constexpr int kQ = offsetof(Shared, q), kK = offsetof(Shared, k_v), kSums = offsetof(Shared, sums),
                       kRows = offsetof(Shared, rows), kQFull = offsetof(Shared, q_full),
                       kFull = offsetof(Shared, full), kEmpty = offsetof(Shared, empty), kSharedBytes = sizeof(Shared);
  static_assert(kDim % 64 == 0 && kShare % 4 == 0 && kSharedBytes <= 227 * 1024);
};

template <class C>
struct SplitKv {
  using T = typename C::T;
  struct Tile { int row, head, batch, first, last; };  // key tiles from first to last

  const SplitKvParams& x;
  char* const memory;
  const uint32_t shared;
  const int group, warp, lane;

  float s[C::kTileK / 2];
  uint32_t p[C::kTileK / 4];
  float o[C::kDim / 2];
  Rows rows;
  uint32_t step;  // key tiles of this warpgroup, over all query tiles
  // State of the loading threads, one or two key tiles ahead of the products.
  Tile load;
  int load_pass, load_key;
  uint32_t load_step;

  // Warps of which one thread loads; q is loaded by the first warpgroup only. k has the first half of the slots and of
  // their barriers, v the second.
  static constexpr int kLoadsK = 0, kLoadsV = 1, kLoadsQ = 2;
  __device__ bool loads(int role) const { return warp == role && lane == 0; }
  __device__ uint32_t slot_of(int role, uint32_t n) const {
    return (role * C::kGroups + group) * C::kStages + n % C::kStages;
  }

  // The n-th tile of a CTA: the longest first, then in reverse, so that a long one and a short one go together.
  __device__ int index(int pass) const {
    const int grid = int(gridDim.x), mine = int(blockIdx.x);
    return pass * grid + (pass % 2 ? grid - 1 - mine : mine);
  }
  __device__ Tile tile_of(int index) const {
    const int rank = int(x.heads_total.divide(index)), global_head = int(x.heads_total.rest(index));
    Tile t;
    t.row = (x.longest_first ? x.tiles_of_head - 1 - rank : rank) * C::kTileQ;
    t.batch = int(x.heads.divide(global_head)), t.head = int(x.heads.rest(global_head));
    const int end = min(x.keys, min(t.row + C::kTileQ, x.rows) + x.offset + x.right);  // one past the last visible key
    const int begin = max(0, t.row + x.offset - x.left);
    t.first = begin / C::kTileK, t.last = end > begin ? (end - 1) / C::kTileK : t.first - 1;
    return t;
  }

  __device__ void load_panels(const CUtensorMap& map, uint32_t to, uint32_t full, int panel, int row, int head,
                              int batch, Keep keep) const {
    arrive_expect(full, panel * C::kPanels);
#pragma unroll
    for (int n = 0; n < C::kPanels; ++n) load_tile(to + n * panel, map, full, n * 64, row, head, batch, keep);
  }
  __device__ void load_q(int pass) const {
    const int n = index(pass);
    if (n >= x.tiles) return;
    const Tile t = tile_of(n);
    load_panels(x.q, shared + C::kQ + pass % 2 * C::kBytesQ, shared + C::kQFull + 8 * (pass % 2), C::kPanelQ, t.row,
                t.head, t.batch, Keep::first_to_go);
  }
  // Loads the next key tile of this warpgroup, if there is one.
  __device__ void load_next() {
    while (load_key > load.last) {
      const int n = index(++load_pass);
      if (n >= x.tiles) return;
      load = tile_of(n), load_key = load.first + group;
    }
    const uint32_t slot = slot_of(warp, load_step);
    if (load_step >= C::kStages) wait(shared + C::kEmpty + 8 * slot, (load_step / C::kStages & 1) ^ 1);
    const int head = int(x.heads_per_key.divide(load.head)), row = load_key * C::kTileK;
    load_panels(warp ? x.v : x.k, shared + C::kK + slot * C::kBytesK, shared + C::kFull + 8 * slot, C::kPanelK, row,
                head, load.batch, Keep::last_to_go);
    ++load_step, load_key += C::kGroups;
  }

  // Masks scores. Only key tiles that cross an edge of the band or the end of the keys need it.
  __device__ void hide(const Tile& t, int j) {
    const int low = t.row + x.offset, first = j * C::kTileK;
    if (first >= low + 63 - x.left && first + C::kTileK <= min(x.keys, low + x.right + 1)) return;
    const int row = low + warp * 16 + lane / 4, column = first + lane % 4 * 2;
    const int last[2] = {min(x.keys - 1, row + x.right) - column, min(x.keys - 1, row + 8 + x.right) - column};
    const int from[2] = {row - x.left - column, row + 8 - x.left - column};
#pragma unroll
    for (int n = 0; n < C::kTileK / 2; ++n) {
      const int c = n / 4 * 8 + n % 2, r = n / 2 % 2;
      if (c > last[r] || c < from[r]) s[n] = -INFINITY;
    }
  }

  __device__ void attend(const Tile& t, int pass) {
    rows = {{kNone, kNone}, {0.f, 0.f}};
    const uint32_t q = operand(shared + C::kQ + pass % 2 * C::kBytesQ, 0);
    wait(shared + C::kQFull + 8 * (pass % 2), pass / 2 & 1);
    const int first = t.first + group;
    if (first > t.last)
#pragma unroll
      for (float& y : o) y = 0.f;
#pragma unroll 1
    for (int j = first; j <= t.last; j += C::kGroups, ++step) {
      const uint32_t k_slot = slot_of(kLoadsK, step), v_slot = slot_of(kLoadsV, step), parity = step / C::kStages & 1;
      const uint32_t k = operand(shared + C::kK + k_slot * C::kBytesK, 0);
      const uint32_t v = operand(shared + C::kK + v_slot * C::kBytesK, C::kPanelK);
      wait(shared + C::kFull + 8 * k_slot, parity);
      begin_products();
#pragma unroll
      for (int n = 0; n < C::kDim / 16; ++n)
        Product<T, C::kTileK>::shared(s, q + (n / 4 * C::kPanelQ + n % 4 * 32) / 16,
                                      k + (n / 4 * C::kPanelK + n % 4 * 32) / 16, n > 0);
      close_products();
      wait_products<0>();
      pin(s);
      if (lane == 0) arrive(shared + C::kEmpty + 8 * k_slot);
      if (loads(kLoadsK)) load_next();
      hide(t, j);
      float alpha[2];
      if (softmax_in_place<T>(s, p, rows, alpha, x.scale, j == first, [] {})) rescale(o, alpha);
      wait(shared + C::kFull + 8 * v_slot, parity);
      begin_products();
#pragma unroll
      for (int n = 0; n < C::kTileK / 16; ++n)
        Product<T, C::kDim>::registers(o, p + 4 * n, v + n * 16 * 128 / 16, n > 0 ? 1 : j > first);
      close_products();
      wait_products<0>();
      pin(o);
      if (lane == 0) arrive(shared + C::kEmpty + 8 * v_slot);
      if (loads(kLoadsV)) load_next();
    }
  }

  __device__ float4* sums(int to, int from, int n) const {
    const int place = to * (C::kGroups - 1) + from - (from > to);
    return reinterpret_cast<float4*>(memory + C::kSums) + (place * (C::kShare / 4) + n) * 128 + warp * 32 + lane;
  }
  // Merges the results of the warpgroups into out and lse, in the order of the warpgroups.
  __device__ void merge_groups(const Tile& t, int pass) {
    float2* partials = reinterpret_cast<float2*>(memory + C::kRows);  // [group][64]: maximum and sum
    const int row = warp * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = sm80::row_sum(rows.sum[r]);
      if (lane % 4 == 0) partials[group * 64 + row + 8 * r] = {rows.max[r], sum};
    }
    __syncthreads();
    if (group == 0 && loads(kLoadsQ)) load_q(pass + 2);  // this tile's q is no longer read
    float share[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = kNone, total = 0.f;
#pragma unroll
      for (int g = 0; g < C::kGroups; ++g) top = fmaxf(top, partials[g * 64 + row + 8 * r].x);
#pragma unroll
      for (int g = 0; g < C::kGroups; ++g) {
        const float2 partial = partials[g * 64 + row + 8 * r];
        total += partial.y * sm80::exp2_fast(partial.x - top);
      }
      const bool any = total != 0.f;  // some key was seen, or a NaN
      share[r] = any ? sm80::exp2_fast(rows.max[r] - top) / total : 0.f;
      const int i = t.row + row + 8 * r;
      if (x.lse && group == 0 && lane % 4 == 0 && i < x.rows)
        x.lse[t.batch * x.lse_stride.batch + i * x.lse_stride.seq + t.head * x.lse_stride.head] =
            any ? (top + __log2f(total)) * kLn2 : -INFINITY;
    }
    float4 mine[C::kShare / 4];
#pragma unroll
    for (int g = 0; g < C::kGroups; ++g)
#pragma unroll
      for (int n = 0; n < C::kShare / 4; ++n) {
        const float* y = o + g * C::kShare + 4 * n;
        const float4 four = {y[0] * share[0], y[1] * share[0], y[2] * share[1], y[3] * share[1]};
        if (g == group) mine[n] = four;
        else *sums(g, group, n) = four;
      }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < C::kShare / 4; ++n) {
      float4 y{};
#pragma unroll
      for (int g = 0; g < C::kGroups; ++g) {
        const float4 partial = g == group ? mine[n] : *sums(group, g, n);
        y = {y.x + partial.x, y.y + partial.y, y.z + partial.z, y.w + partial.w};
      }
      const int column = group * (C::kShare * 2) + n * 8 + lane % 4 * 2;
      if (column >= x.dim_v) break;
      store(t, row, column, y.x, y.y), store(t, row + 8, column, y.z, y.w);
    }
  }
  __device__ void store(const Tile& t, int row, int column, float a, float b) const {
    const int i = t.row + row;
    if (i >= x.rows) return;
    const int64_t at =
        t.batch * x.out_stride.batch + i * x.out_stride.seq + t.head * x.out_stride.head + column;
    if (x.f32_out) *reinterpret_cast<float2*>(x.out + 4 * at) = {a, b};
    else *reinterpret_cast<uint32_t*>(x.out + 2 * at) = sm80::pack<T>(a, b);
  }

  __device__ void run() {
    step = load_step = 0;
    if (loads(kLoadsK) || loads(kLoadsV)) {
      prefetch_map(warp ? x.v : x.k);
      for (int n = 0; n < C::kStages; ++n)
        barrier_init(shared + C::kFull + 8 * slot_of(warp, n), 1),
            barrier_init(shared + C::kEmpty + 8 * slot_of(warp, n), 4);
      barrier_init_done();
      sm80::wait_for_previous();
      load_pass = -1, load_key = 0, load.last = -1;
      for (int n = 0; n < C::kStages; ++n) load_next();
    } else if (group == 0 && loads(kLoadsQ)) {
      prefetch_map(x.q);
      barrier_init(shared + C::kQFull, 1), barrier_init(shared + C::kQFull + 8, 1);
      barrier_init_done();
      sm80::wait_for_previous();
      load_q(0), load_q(1);
    }
    __syncthreads();
    sm80::admit_next();
#pragma unroll 1
    for (int pass = 0; index(pass) < x.tiles; ++pass) {
      const Tile t = tile_of(index(pass));
      attend(t, pass);
      merge_groups(t, pass);
    }
  }
};

template <class C, int BlocksPerSm>
__global__ void __launch_bounds__(C::kThreads, BlocksPerSm) split_kv_kernel(const __grid_constant__ SplitKvParams x) {
  extern __shared__ __align__(1024) char memory[];
  const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), warp = __shfl_sync(~0u, int(threadIdx.x) / 32 % 4, 0);
  SplitKv<C> split_kv{x, memory, shared_address(memory), group, warp, int(threadIdx.x % 32)};
  split_kv.run();
}

}  // namespace attune::sm90
