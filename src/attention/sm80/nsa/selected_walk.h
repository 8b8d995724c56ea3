// SPDX-License-Identifier: Apache-2.0
// Selected attention on a GPU: the work of a CTA and its walk over keys.
//
// A CTA has the rows (token, head) of a few neighbouring tokens and one KV head, and visits the union of their lists. A
// key block is loaded once for all tokens that chose it, and a warp whose tokens did not choose it skips it.
//
// Four producer warps only load. They merge the sorted lists, one lane per token, and run ahead by the number of
// stages. Warps with different lists can therefore drift apart instead of waiting for each other at every key block.
#pragma once
#include <cstddef>

#include "attention/gpu/nsa/selected_params.h"
#include "machine/sm80/barrier.h"
#include "machine/sm80/memory.h"

namespace attune::sm80 {

constexpr int kLoaders = 4;      // producer warps
constexpr int kMostWarps = 8;    // consumer warps, 16 rows each
constexpr int kMostTokens = 32;  // per CTA: one lane each
constexpr int kMostStages = 8;

struct SelectedPlace {
  Sequence seq;
  int b, head_kv, split;
  int first, rows;    // range within the (token, head) rows of the sequence and KV head
  int token, tokens;  // tokens of these rows
  const char *k, *v;  // address of key 0 of the sequence
};

// Contents of a stage.
struct SelectedTile {
  int first, last;  // keys
  uint32_t chosen;  // tokens of the CTA that chose it; 0: end of the walk
};

// Static shared memory of a CTA.
struct SelectedShared {
  SelectedPlace at;
  Barrier full[kMostStages], empty[kMostStages];
  SelectedTile tile[kMostStages];
  int2 span[kMostTokens];       // list entries of a token in this split
  uint2 row[kMostWarps * 16];   // bit of its token in `chosen`, 0 for a missing row; keys that it sees
  uint32_t tokens[kMostWarps];  // bits of a warp's rows
};

// Compile-time configuration.
struct SelectedConfig {
  int dim = 128, dim_v = dim;
  int tile_k = 64, warps = 8;  // consumer warps
};

template <class T, SelectedConfig C>
struct SelectedWalk {
  static constexpr int kDim = C.dim, kDimV = C.dim_v, kTileK = C.tile_k, kWarps = C.warps;
  static constexpr int kRows = kWarps * 16, kFirstProducer = kWarps * 32, kThreads = kFirstProducer + kLoaders * 32;
  using TileOfK = SharedTile<kTileK, kDim>;
  using TileOfV = SharedTile<kTileK, kDimV>;
  struct Stage {
    char k[TileOfK::kBytes], v[TileOfV::kBytes];
  };
  static constexpr int kV = offsetof(Stage, v), kStageBytes = sizeof(Stage);
  static_assert(kWarps <= kMostWarps && kTileK % 16 == 0 && kDim % 64 == 0 && kDimV % 64 == 0);

  const SelectedParams& x;
  SelectedShared& shared;
  int32_t* const lists;   // [tokens][n]
  const uint32_t stages;  // [x.stages] of K and V, in shared memory

  __device__ uint32_t k_shared(int stage) const { return stages + stage * kStageBytes; }
  __device__ uint32_t v_shared(int stage) const { return k_shared(stage) + kV; }

  // Called by all threads. Returns false if the CTA has no rows.
  __device__ bool begin() const {
    if (threadIdx.x == 0) {
      find_place();
      for (int n = 0; n < x.stages; ++n)
        start_barrier(shared.full + n, kLoaders * 32 + 1), start_barrier(shared.empty + n, kWarps * 32);
    }
    __syncthreads();
    const SelectedPlace& at = shared.at;
    if (at.rows <= 0) return false;
    for (int i = threadIdx.x; i < at.tokens * x.n; i += kThreads) {
      const int token = i / x.n;
      lists[i] = reinterpret_cast<const int32_t*>(
          x.blocks.row(at.seq.q_batch, at.seq.q_first + int64_t(at.token + token), at.head_kv))[i - token * x.n];
    }
    __syncthreads();
    if (threadIdx.x < at.tokens) {
      const int64_t count = compact_blocks(lists + threadIdx.x * x.n, x.n, int(ceil_div(at.seq.len_k, x.size)));
      shared.span[threadIdx.x] = {int(count * at.split / x.splits.by), int(count * (at.split + 1) / x.splits.by)};
    }
    __syncthreads();
    return true;
  }
  __device__ void find_place() const {
    SelectedPlace& at = shared.at;
    uint32_t n = blockIdx.x;
    const int block = int(x.row_blocks.rest(n));
    n = x.row_blocks.divide(n);
    at.split = int(x.splits.rest(n)), n = x.splits.divide(n);
    at.head_kv = int(x.heads_kv.rest(n)), at.b = int(x.heads_kv.divide(n));
    at.seq = x.sequence_of(at.b);
    const int64_t all = int64_t(at.seq.len_q) * x.group.by;
    at.first = clamp(int64_t(block) * x.rows, 0, all), at.rows = clamp(all - at.first, 0, x.rows);
    if (!at.rows) return;
    at.token = int(x.group.divide(at.first));
    at.tokens = int(x.group.divide(at.first + at.rows - 1)) + 1 - at.token;
    at.k = x.k.row(at.seq.k_batch, at.seq.k_first, at.head_kv);
    at.v = x.v.row(at.seq.k_batch, at.seq.k_first, at.head_kv);
  }

  // Token of a row of the CTA.
  __device__ int token_of(int row) const { return int(x.group.divide(shared.at.first + row)); }
  __device__ int head_of(int row) const {
    return shared.at.head_kv * int(x.group.by) + int(x.group.rest(shared.at.first + row));
  }
  __device__ char* row_at(const ByteRows& rows, int row) const {
    return rows.row(shared.at.seq.q_batch, shared.at.seq.q_first + int64_t(token_of(row)), head_of(row));
  }

  // Finds the rows of a consumer warp. They lie in shared memory, since registers are scarce.
  __device__ void find_rows() const {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane;
    uint2 mine{};
    if (lane < 16) {
      const int token = token_of(row);
      if (row < shared.at.rows) mine = {1u << (token - shared.at.token), uint32_t(keys_seen(shared.at.seq, token))};
      shared.row[row] = mine;
    }
    mine.x = __reduce_or_sync(~0u, mine.x);
    if (lane == 0) shared.tokens[threadIdx.x / 32] = mine.x;
    __syncwarp();
  }
  // How many of the tile's first keys a row sees. A missing row sees all: it holds zeros and is not stored.
  __device__ int seen(const SelectedTile& t, int row) const {
    const uint2 r = shared.row[row];
    if (!r.x) return kTileK;
    return t.chosen & r.x ? min(int(r.y), t.last) - t.first : 0;
  }

  // Loads the 16 rows of a consumer warp into the CTA's tile; no other warp reads them there.
  template <class Layout>
  __device__ void load_rows(uint32_t to, const ByteRows& rows, int dim) const {
    constexpr int kChunks = Layout::kPanels * 8;
#pragma unroll 4
    for (int n = threadIdx.x % 32; n < 16 * kChunks; n += 32) {
      const int row = threadIdx.x / 32 * 16 + n / kChunks, column = n % kChunks * 8;
      const bool there = row < shared.at.rows && column < dim;
      copy16(to + Layout::offset(row, column), there ? row_at(rows, row) + column * sizeof(T) : rows.data, there);
    }
  }
  // Stores the rows of a warp's accumulators to `rows`, `dim` columns of them. 16-bit rows go through shared memory
  // that only this warp uses (16 rows of the CTA's tile), in 16-byte chunks.
  template <int kColumns>
  __device__ void store_narrow(const Accumulator (&from)[kColumns / 8], uint32_t through, const ByteRows& rows,
                               int dim) const {
    using Through = SharedTile<kRows, kColumns>;
    constexpr int kChunks = kColumns / 8;
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int d = 0; d < kColumns / 8; ++d)
        store_shared(through + Through::offset(first + half * 8 + lane / 4, d * 8) + lane % 4 * 4,
                     pack<T>(from[d].c[2 * half], from[d].c[2 * half + 1]));
    __syncwarp();
#pragma unroll 4
    for (int n = lane; n < 16 * kChunks; n += 32) {
      const int row = first + n / kChunks, column = n % kChunks * 8;
      if (row < shared.at.rows && column < dim)
        *reinterpret_cast<uint4*>(row_at(rows, row) + column * sizeof(T)) =
            load_shared16(through + Through::offset(row, column));
    }
  }
  // Stores one of a thread's two rows as f32.
  template <int kColumns>
  __device__ static void store_f32(const Accumulator (&from)[kColumns / 8], int half, float* to, int dim) {
#pragma unroll
    for (int d = 0; d < kColumns / 8; ++d) {
      const int column = d * 8 + threadIdx.x % 4 * 2;
      if (column < dim)
        *reinterpret_cast<float2*>(to + column) = {from[d].c[2 * half], from[d].c[2 * half + 1]};
    }
  }

  // Called by the producer warps.
  __device__ void load() const {
    const SelectedPlace& at = shared.at;
    const int thread = threadIdx.x - kFirstProducer, lane = threadIdx.x % 32;
    const int column = thread % 8 * 8, row = thread / 8;
    const int2 span = lane < at.tokens ? shared.span[lane] : int2{0, 0};
    int cursor = span.x, stage = 0, filled = 0;
    uint32_t parity = 1;  // the first round finds every stage empty
    const auto entry = [&] { return cursor < span.y ? lists[lane * x.n + cursor] : INT32_MAX; };
    const auto publish = [&](const SelectedTile& t) {
      if (filled >= x.stages) wait(shared.empty + stage, parity);
      if (t.chosen) {
        copy<TileOfK>(k_shared(stage), at.k, x.k.seq, x.problem.dim_qk, t, row, column);
        copy<TileOfV>(v_shared(stage), at.v, x.v.seq, x.problem.dim_v, t, row, column);
      }
      if (thread == 0) {
        shared.tile[stage] = t;
        arrive(shared.full + stage);
      }
      arrive_with_copies(shared.full + stage);
      ++filled;
      if (++stage == x.stages) stage = 0, parity ^= 1;
    };
    for (int next = entry();;) {
      const int block = __reduce_min_sync(~0u, next);
      if (block == INT32_MAX) break;
      const uint32_t chosen = __ballot_sync(~0u, next == block);
      if (next == block) ++cursor, next = entry();
      const int64_t begin = int64_t(block) * x.size;
      const int end = clamp(begin + x.size, 0, at.seq.len_k);
      for (int64_t first = begin; first < end; first += kTileK)
        publish({int(first), clamp(first + kTileK, 0, end), chosen});
    }
    publish({0, 0, 0});
    close_group();
    wait_groups<0>();
  }
  // Each thread copies one 16-byte column in every panel, of every 16th row, so its place in a panel is constant.
  template <class Layout>
  __device__ void copy(uint32_t to, const char* from, int64_t step, int dim, const SelectedTile& t, int row,
                       int column) const {
    constexpr int kStep = kLoaders * 4;  // rows
    static_assert(kStep % 8 == 0 && kTileK % kStep == 0);
    to += Layout::offset(row, column);
    const int count = t.last - t.first - row;
    const char* const first = from + (t.first + row) * step + column * sizeof(T);
#pragma unroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      const bool there = panel * 64 + column < dim;
      const char* at = first + panel * 128;
#pragma unroll
      for (int n = 0; n < kTileK; n += kStep, at += kStep * step) {
        const bool real = there && n < count;
        copy16(to + (panel * kTileK + n) * 128, real ? at : from, real);
      }
    }
  }

  // Called by a consumer warp: calls `use` with every tile that one of its tokens chose, and its stage. Every lane
  // releases the stage after its own reads. One lane per warp would suffice after __syncwarp, but racecheck then
  // reports the reads of lanes that do not arrive.
  template <class F>
  __device__ void walk(F use) const {
    uint32_t parity = 0;
    for (int stage = 0;;) {
      wait(shared.full + stage, parity);
      const SelectedTile t = shared.tile[stage];
      if (!t.chosen) return;
      if (t.chosen & shared.tokens[threadIdx.x / 32]) use(t, stage);
      __syncwarp();
      arrive(shared.empty + stage);
      if (++stage == x.stages) stage = 0, parity ^= 1;
    }
  }
};

// The work of a CTA of S, a kernel whose consumer warps own rows (token, head).
template <class S>
__device__ __forceinline__ void run_selected(const SelectedParams& params, char* memory, SelectedShared& shared) {
  const uint32_t rows = shared_address(memory);
  const int lists = S::kFixedBytes + params.stages * S::kStageBytes;
  const typename S::Walk walk{params, shared, reinterpret_cast<int32_t*>(memory + lists), rows + S::kFixedBytes};
  if (!walk.begin()) return;
  if (threadIdx.x >= S::Walk::kFirstProducer) return walk.load();
  S(walk, rows).run();
}

}  // namespace attune::sm80
