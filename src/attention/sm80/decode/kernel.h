// SPDX-License-Identifier: Apache-2.0
// Forward attention of few queries over many keys, bound by memory, for every GPU from sm_80 on.
//   A CTA has rows (position, head of the GQA group) and a range of keys. A team of warps, one per 16 rows, takes every
//   n-th key tile, loads it with cp.async and waits for no other team: `stages` tiles are in flight.
// Up to 16 rows, a team is one warp. At the end, teams combine in shared memory, in order; a second small kernel
// combines the KV splits, also in order. Tiles are counted from key 0 of the sequence: the bits of a row depend only on
// where its keys are split.
#pragma once
#include <cstddef>

#include "attention/sm80/decode/host.h"
#include "attention/gpu/byte_rows.h"
#include "attention/sm80/tile_steps.h"
#include "core/divisor.h"
#include "core/score.h"
#include "machine/sm80/mma.h"
#include "machine/sm80/dependent_launch.h"

namespace attune::sm80 {

constexpr int kFixedBits = 9;   // repro=batch: splits of 512 keys, or 1024, 2048, ...:
constexpr int kMostFixed = 32;  // large enough that a row has at most this many
constexpr int kMostSplits = 128;

// The rows and keys of a CTA.
struct DecodePlace {
  Sequence seq;
  int first, rows;            // range within the (position, head) rows of the sequence and KV head
  int begin, end;             // range of keys that some row sees
  int open_first, open_last;  // range of keys that every row sees
  int b, split, head_kv;
  int from, until;            // range of key tiles

  // Finds the rows of the n-th CTA of `most` rows, and the keys they see.
  ATTUNE_HD void find_rows(const Divisor& group, int n, int most) {
    const int all = seq.len_q * int(group.by);
    first = clamp(int64_t(n) * most, 0, all), rows = clamp(all - first, 0, most);
    if (!rows) return;
    const BandWalk walk{seq.band, seq.len_k, 1};
    const int top = int(group.divide(first)), bottom = int(group.divide(first + rows - 1));
    for (int i = top;; i = bottom) {  // a loop, so that the long division code is instantiated once
      const int from_key = walk.first_key(i), until_key = walk.last_key(i);
      if (i == top) begin = from_key, open_last = until_key;
      open_first = from_key, end = until_key;
      if (i == bottom) break;
    }
  }
  // Finds the key tiles: a split of fixed size, counted from key 0, or one of `splits` equal splits.
  __device__ void cut(bool fixed, const Divisor& splits, int keys) {
    const int first_tile = begin / keys, last_tile = max(first_tile, (end + keys - 1) / keys);
    if (fixed) {
      const auto splits_of = [&](int bits) {
        return int(((uint32_t(end) + (1u << bits) - 1) >> bits) - (uint32_t(begin) >> bits));
      };
      int bits = kFixedBits;
      while (splits_of(bits) > kMostFixed) ++bits;
      const int64_t start = ((int64_t(begin) >> bits) + split) << bits, stop = start + (int64_t(1) << bits);
      from = clamp(start / keys, first_tile, last_tile), until = clamp(stop / keys, first_tile, last_tile);
    } else {
      const int tiles = last_tile - first_tile, each = int(splits.divide(tiles)), more = int(splits.rest(tiles));
      from = first_tile + split * each + min(split, more), until = from + each + (split < more);
    }
  }
};

// The fields that lead to a CTA's first key come first and contiguously: constants are fetched by cache line.
struct DecodeParams {
  ByteRows q, k, v, out;  // paged keys: `batch` is the stride from page to page
  Divisor group;          // query heads per KV head; they share a CTA
  Divisor row_blocks;     // per (sequence, KV head)
  Divisor splits, heads_kv, page;
  const int32_t* pages;   // null unless paged
  int64_t pages_step;     // stride from sequence to sequence
  int pool;               // number of pages
  int dim_qk, dim_v;
  float scale;            // includes log2(e)
  bool uniform;           // all sequences equal that of `place` except for the batch index: no lengths in tensors
  bool placed;            // rows and keys are uniform too: one row block
  bool fixed;             // splits have fixed size; sequences of more than kMostDecodeRows rows go to another kernel
  int most_q;             // queries per sequence that have partial results
  DecodePlace place;
  float* partial_out;     // [split][batch][head][query][dim_v], where splits > 1
  float* partial_lse;     // [split][batch][head][query]
  Problem problem;
  DenseArgs args;

  __device__ Sequence sequence_of(int b) const {
    Sequence s = uniform ? place.seq : sequence(problem, args, b);
    if (uniform) s.q_batch = s.k_batch = b;
    if (fixed && int64_t(s.len_q) * group.by > kMostDecodeRows) s.len_q = 0;
    return s;
  }
  __device__ int64_t partial_row(int split, int b, int head, int query) const {
    return ((int64_t(split) * problem.batch + b) * problem.heads_q + head) * most_q + query;
  }
  // Finishes a row once all its keys are in: merges the running result and the sink, and writes the lse.
  __device__ RowEnd end_row(const Sequence& s, int head, int query, float finished) const {
    RowEnd end(finished);
    float* lse = args.row<float>(Role::lse, s.q_batch, s.q_first + query, head);
    if (problem.has(Option::accumulate)) end.merge_running(*lse);
    if (problem.has(Option::sink)) end.merge_sink(*args.row<const float>(Role::sinks, 0, 0, head));
    if (lse) *lse = end.lse;
    return end;
  }
  // Writes four columns of a row; adds the old values if the run accumulates.
  __device__ void write(const Sequence& s, int head, int query, int column, float4 x, float now, float before) const {
    char* row = out.row(s.q_batch, s.q_first + query, head);
    const DType dtype = problem.dtype.out;
    // Adding 0 clears the sign of a zero, which would otherwise depend on the number of splits.
    x = {fmaf(x.x, now, 0.f), fmaf(x.y, now, 0.f), fmaf(x.z, now, 0.f), fmaf(x.w, now, 0.f)};
    if (dtype == DType::f32) {
      float4* to = reinterpret_cast<float4*>(row) + column / 4;
      if (before != 0.f) {
        const float4 y = *to;
        x = {x.x + y.x * before, x.y + y.y * before, x.z + y.z * before, x.w + y.w * before};
      }
      *to = x;
    } else {
      const bool bf16 = dtype == DType::bf16;
      reinterpret_cast<uint2*>(row)[column / 4] = {bf16 ? pack<Bf16>(x.x, x.y) : pack<F16>(x.x, x.y),
                                                   bf16 ? pack<Bf16>(x.z, x.w) : pack<F16>(x.z, x.w)};
    }
  }
};

// Compile-time configuration.
struct DecodeConfig {
  int dim = 128;
  int keys = 16, stages = 3;  // keys per tile, tiles per team
  int warps = 4, team = 1;    // team: warps that share a key tile
  int blocks_per_sm = 1;
};

template <class T, DecodeConfig C>
struct Decode {
  static constexpr int kDim = C.dim, kKeys = C.keys, kStages = C.stages, kWarps = C.warps, kTeam = C.team;
  static constexpr int kBlocksPerSm = C.blocks_per_sm;
  static constexpr int kThreads = kWarps * 32, kTeams = kWarps / kTeam, kRows = kTeam * 16;
  static constexpr int kOwn = kKeys / kTeam;  // keys of a tile that one warp loads
  using TileOfK = SharedTile<kKeys, kDim>;
  struct Stage {
    char k[TileOfK::kBytes], v[TileOfK::kBytes];
  };
  struct Shared {
    Stage stages[kTeams][kStages];
  };
  static constexpr int kStageBytes = sizeof(Stage), kTeamBytes = sizeof(Stage[kStages]);
  static constexpr int kSharedBytes = sizeof(Shared), kWarpBytes = kTeamBytes / kTeam;
  static constexpr int kV = offsetof(Stage, v);
  static_assert(kTeam == 1 || kTeam == kWarps, "a team syncs as a warp or as a block");
  static_assert(kOwn % 16 == 0 && kOwn <= 32 && kDim % 64 == 0 && kWarpBytes >= 16 * kDim * 4);

  const DecodeParams& x;
  const DecodePlace& at;
  const int lane, warp, team, member;
  const int until, begin, end;  // copies from the place
  const uint32_t stages;        // this team's shared memory
  int2 seen[2];                 // half-open ranges [x, y) of the keys that this thread's two rows see
  FragmentA q[kDim / 16];
  Accumulator o[kDim / 8];
  float ref[2], sum[2];
  const char *k, *v;            // this thread's chunk of key 0 of the sequence; paged: of slot 0 in page 0

  static constexpr int kChunks = kDim / 8, kRowsAtOnce = 32 / kChunks;

  __device__ Decode(const DecodeParams& params, const DecodePlace& place, char* shared)
      : x(params),
        at(place),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        team(warp / kTeam),
        member(warp % kTeam),
        until(place.until),
        begin(place.begin),
        end(place.end),
        stages(shared_address(shared) + team * kTeamBytes) {}

  __device__ int position(int row) const { return int(x.group.divide(at.first + row)); }
  __device__ int head(int row) const { return at.head_kv * int(x.group.by) + int(x.group.rest(at.first + row)); }

  __device__ static void sync_team() {
    if constexpr (kTeam == 1) __syncwarp();
    else __syncthreads();
  }
  // Row of the CTA that this thread's accumulators hold.
  __device__ int row_of(int half) const { return member * 16 + half * 8 + lane / 4; }

  // The page of one of this warp's keys in tile n; each lane handles one key.
  __device__ int page_of(int n) const {
    if (!x.pages || until <= n) return 0;
    const uint32_t slot = uint32_t(at.seq.k_first + min(n * kKeys + member * kOwn + lane % kOwn, end - 1));
    return x.pages[at.b * x.pages_step + x.page.divide(slot)];
  }

  __device__ bool sees(int key) const { return uint32_t(key - begin) < uint32_t(end - begin); }

  // Loads tile n into a stage: a thread copies one 16-byte chunk of every kRowsAtOnce-th row. Keys that no row sees are
  // filled with zeros: they are masked, and 0 times a missing value is then 0. `page` is page_of(n), read long before.
  __device__ void load(int n, int stage, int page) const {
    if (n >= until) return;
    const uint32_t to = stages + stage * kStageBytes;
    const int mine = member * kOwn, row = lane / kChunks, column = lane % kChunks * 8, first = n * kKeys + mine;
    if (!x.pages) {
      const char *from_k = k + (first + row) * x.k.seq, *from_v = v + (first + row) * x.v.seq;
#pragma unroll
      for (int r = 0; r < kOwn; r += kRowsAtOnce)
        copy_row(to, mine + row + r, column, from_k + r * x.k.seq, from_v + r * x.v.seq, sees(first + row + r));
      return;
    }
    const int64_t slot = x.page.rest(at.seq.k_first + first + lane % kOwn), in_pool = clamp(page, 0, x.pool - 1);
    const int64_t mine_k = in_pool * x.k.batch + slot * x.k.seq, mine_v = in_pool * x.v.batch + slot * x.v.seq;
#pragma unroll
    for (int r = 0; r < kOwn; r += kRowsAtOnce) {
      const int64_t off_k = __shfl_sync(~0u, mine_k, row + r), off_v = __shfl_sync(~0u, mine_v, row + r);
      const bool there = sees(first + row + r);
      copy_row(to, mine + row + r, column, there ? k + off_k : k, there ? v + off_v : v, there);
    }
  }
  __device__ void copy_row(uint32_t to, int row, int column, const char* from_k, const char* from_v, bool there) const {
    copy16(to + TileOfK::offset(row, column), from_k, there && column < x.dim_qk);
    copy16(to + kV + TileOfK::offset(row, column), from_v, there && column < x.dim_v);
  }

  // Loads q directly into fragments: every warp needs all of q, once.
  __device__ void load_q() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(half);
      const bool there = row < at.rows;
      const int r = there ? row : 0;
      const char* from = x.q.row(at.seq.q_batch, at.seq.q_first + position(r), head(r));
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        q[n / 2].r[n % 2 * 2 + half] =
            there && column < x.dim_qk ? *reinterpret_cast<const uint32_t*>(from + column * sizeof(T)) : 0;
      }
    }
    // Divisions are long code, so each lane computes one row.
    const BandWalk walk{at.seq.band, at.seq.len_k, kKeys};
    const int i = position(min(member * 16 + lane % 16, at.rows - 1));
    const int first = walk.first_key(i), last = walk.last_key(i);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      seen[half] = {__shfl_sync(~0u, first, half * 8 + lane / 4), __shfl_sync(~0u, last, half * 8 + lane / 4)};
  }

  // s = q k^T. Fragments of k are loaded ahead of the products that use them.
  __device__ void scores(uint32_t shared, Accumulator (&s)[kKeys / 8]) const {
    constexpr int kPairs = kKeys / 16, kSteps = kDim / 16 * kPairs, kAhead = kDim > 128 ? 3 : 4;
    const uint32_t first = shared + TileOfK::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
    uint32_t keys[kAhead][4];
    const auto load_k = [&](int step) {
      load_matrix4(keys[step % kAhead], TileOfK::further(first, step / kPairs * 16) + step % kPairs * 16 * 128);
    };
#pragma unroll
    for (int step = 0; step < kAhead; ++step) load_k(step);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) s[n] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int n = step % kPairs * 2;
      const uint32_t(&two)[4] = keys[step % kAhead];
      multiply_add<T>(s[n], q[step / kPairs], {two[0], two[1]});
      multiply_add<T>(s[n + 1], q[step / kPairs], {two[2], two[3]});
      if (step + kAhead < kSteps) load_k(step + kAhead);
    }
  }

  __device__ void hide(Accumulator (&s)[kKeys / 8], int first) const {
    const int column = first + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = column + n * 8 + e % 2;
        if (key < seen[e / 2].x || key >= seen[e / 2].y) s[n].c[e] = -INFINITY;
      }
  }

  __device__ void admit(Accumulator (&s)[kKeys / 8], float scale) { admit_tile(s, o, ref, sum, scale, 8.f); }
  __device__ void accumulate(uint32_t shared, const Accumulator (&s)[kKeys / 8]) {
    constexpr int kAhead = kDim > 128 ? 3 : 4;
    add_values<ValueTile<T, TileOfK, kAhead>>(o, s, shared + TileOfK::offset(lane % 16, lane / 16 * 8));
  }

  __device__ void walk_keys() {
    const int batch = x.pages ? 0 : at.seq.k_batch, first = x.pages ? 0 : at.seq.k_first;
    k = x.k.row(batch, first, at.head_kv) + lane % kChunks * 16;
    v = x.v.row(batch, first, at.head_kv) + lane % kChunks * 16;
    int n = at.from + (team + kTeams - at.from % kTeams) % kTeams;  // first tile of this team
    int page[kStages + 1];
#pragma unroll
    for (int stage = 0; stage <= kStages; ++stage) page[stage] = page_of(n + stage * kTeams);
#pragma unroll 1  // long code is slow on its first execution
    for (int stage = 0; stage < kStages; ++stage) {
      load(n + stage * kTeams, stage, page[0]), close_group();
#pragma unroll
      for (int i = 0; i < kStages; ++i) page[i] = page[i + 1];
    }
    load_q();
#pragma unroll
    for (int half = 0; half < 2; ++half) ref[half] = -INFINITY, sum[half] = 0.f;
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) o[d] = {};
#pragma unroll 1
    for (int stage = 0; n < until; n += kTeams) {
      wait_groups<kStages - 1>();
      sync_team();
      const uint32_t shared = stages + stage * kStageBytes;
      Accumulator s[kKeys / 8];
      scores(shared, s);
      if (at.open_first > n * kKeys || at.open_last < (n + 1) * kKeys) hide(s, n * kKeys);
      admit(s, x.scale);
      accumulate(shared + kV, s);
      sync_team();
      load(n + kStages * kTeams, stage, page[0]);
      close_group();
      page[0] = page_of(n + (kStages + 1) * kTeams);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    wait_groups<0>();
    sync_team();
  }

  __device__ int64_t partial_row(int row) const { return x.partial_row(at.split, at.b, head(row), position(row)); }
  __device__ void leave_empty() const {
    if (const int row = threadIdx.x; row < at.rows) x.partial_lse[partial_row(row)] = -INFINITY;
    for (int row = warp; row < at.rows; row += kWarps)
      for (int column = lane * 4; column < x.dim_v; column += 128)
        *reinterpret_cast<float4*>(x.partial_out + partial_row(row) * x.dim_v + column) = {};
  }

  // 16-byte chunks are swizzled by row, so that the rows of a fragment lie in different banks.
  __device__ static int o_at(int row, int column) { return row * kDim + (column ^ ((row & 7) * 4)); }

  // `team_stats`, [kTeams][kRows]: reference and sum of a team's row, later its factor; `last`: factors of the row.
  __device__ void combine_teams(char* shared, float2* team_stats, float2* last) {
    float* mine = reinterpret_cast<float*>(shared + warp * kWarpBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(half);
      const float total = row_sum(sum[half]);
      if (lane % 4 == 0) team_stats[team * kRows + row] = {ref[half], total};
      if (row >= at.rows) continue;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d)
        reinterpret_cast<float2*>(mine)[o_at(row % 16, d * 8 + lane % 4 * 2) / 2] = {o[d].c[2 * half],
                                                                                     o[d].c[2 * half + 1]};
    }
    __syncthreads();
    if (const int row = threadIdx.x; row < at.rows) {
      SoftmaxRow all;
      for (int t = 0; t < kTeams; ++t) all.max = fmaxf(all.max, team_stats[t * kRows + row].x);
      const float shift = all.max == -INFINITY ? 0.f : all.max;
      float factor[kTeams];
      for (int t = 0; t < kTeams; ++t) {
        factor[t] = exp2f(team_stats[t * kRows + row].x - shift);
        all.sum += team_stats[t * kRows + row].y * factor[t];
      }
      for (int t = 0; t < kTeams; ++t) team_stats[t * kRows + row].x = factor[t] * all.normaliser();
      if (x.splits.by == 1) {
        const RowEnd end = x.end_row(at.seq, head(row), position(row), all.lse());
        last[row] = {end.now, end.before};
      } else {
        x.partial_lse[partial_row(row)] = all.lse();
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int n = threadIdx.x; n < at.rows * (kDim / 4); n += kThreads) {
      const int row = n / (kDim / 4), column = n % (kDim / 4) * 4;
      if (column >= x.dim_v) continue;
      float4 y{};
#pragma unroll
      for (int t = 0; t < kTeams; ++t) {
        const float factor = team_stats[t * kRows + row].x;
        const char* from = shared + (t * kTeam + row / 16) * kWarpBytes;
        const float4 z = reinterpret_cast<const float4*>(from)[o_at(row % 16, column) / 4];
        y = {y.x + z.x * factor, y.y + z.y * factor, y.z + z.z * factor, y.w + z.w * factor};
      }
      if (x.splits.by == 1)
        x.write(at.seq, head(row), position(row), column, y, last[row].x, last[row].y);
      else
        *reinterpret_cast<float4*>(x.partial_out + partial_row(row) * x.dim_v + column) = y;
    }
  }
};

// Called by one warp. The heads of a sequence run next to each other in time, as they often lie in memory.
template <int Rows, int Keys>
__device__ inline void find_place(const DecodeParams& x, DecodePlace& at) {
  static_assert(sizeof(DecodePlace) <= 128);
  if (x.placed && threadIdx.x < sizeof(DecodePlace) / 4)
    reinterpret_cast<int*>(&at)[threadIdx.x] = reinterpret_cast<const int*>(&x.place)[threadIdx.x];
  __syncwarp();
  if (threadIdx.x) return;
  uint32_t n = blockIdx.x;
  const int block = int(x.row_blocks.rest(n));
  n = x.row_blocks.divide(n), at.head_kv = int(x.heads_kv.rest(n));
  n = x.heads_kv.divide(n), at.split = int(x.splits.rest(n)), at.b = int(x.splits.divide(n));
  if (x.placed) at.seq.q_batch = at.seq.k_batch = at.b;
  else at.seq = x.sequence_of(at.b), at.find_rows(x.group, block, Rows);
  if (at.rows) at.cut(x.fixed, x.splits, Keys);
}

template <class D>
__global__ void __launch_bounds__(D::kThreads, D::kBlocksPerSm)
    decode_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(128) char shared[];
  __shared__ DecodePlace place;
  __shared__ float2 team_stats[D::kTeams * D::kRows], last[D::kRows];
  admit_next();
  if (threadIdx.x < 32) find_place<D::kRows, D::kKeys>(params, place);
  __syncthreads();
  if (!place.rows) return;
  D d(params, place, shared);
  if (params.splits.by > 1 && place.from >= place.until) return d.leave_empty();
  d.walk_keys();
  d.combine_teams(shared, team_stats, last);
}

}  // namespace attune::sm80
