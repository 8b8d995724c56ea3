// SPDX-License-Identifier: Apache-2.0
// Gradients in f32 by mma.sync on tf32, for every GPU from sm_80 on.
//   prepare: lse and delta of every row -> rows: a CTA owns queries and walks keys, dQ += dS K
//                                       -> keys: a CTA owns keys and walks queries, dV += P^T dO, dK += dS^T Q
// This takes seven products instead of five. In return, no sum depends on timing, memory is linear, and both kernels
// share one scheme: S, dP and dS of owned rows against walked rows, then dS times the walked rows. A warp owns 16 rows,
// so P and dS leave the first two products as operands of the others.
#pragma once
#include <cstddef>

#include "attention/gpu/backward_pre_post.h"
#include "attention/sm80/f32.h"

namespace attune::sm80 {

struct F32Gradients {
  F32Call call;
  float2* rows;      // [batch][head][padded]: lse_of_weights() in base 2, +inf if a row sees no key; delta
  int padded;        // rows per head, a multiple of kRowsOfPrepare
  bool shared_keys;  // sequences may share keys: gradients are added to the existing values
  bool running;      // the run accumulates: adds to the previous gradients
};

// A CTA handles kRowsOfPrepare rows of a head, eight lanes per row.
static __global__ void __launch_bounds__(256) prepare_f32_kernel(const __grid_constant__ F32Gradients x) {
  const Problem& p = x.call.problem;
  const DenseArgs& a = x.call.args;
  uint32_t n = blockIdx.x;
  const uint32_t blocks = x.padded / kRowsOfPrepare;
  const int first = int(n % blocks) * kRowsOfPrepare;
  n /= blocks;
  const int h = int(n % p.heads_q), b = int(n / p.heads_q);
  const Sequence seq = sequence_of(x.call, b);
  for (int r = threadIdx.x / 8; r < kRowsOfPrepare; r += 32) {
    const int i = first + r;
    const bool there = i < seq.len_q;
    const int64_t token = seq.q_first + int64_t(i);
    float sum = 0.f;
    if (there) {
      const float* out = a.row<const float>(Role::out, seq.q_batch, token, h);
      const float* d_out = a.row<const float>(Role::d_out, seq.q_batch, token, h);
      for (int d = threadIdx.x % 8; d < p.dim_v; d += 8) sum = fmaf(out[d], d_out[d], sum);
    }
    for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % 8) continue;
    float2 row{INFINITY, 0.f};
    if (there) {
      const float lse = *a.row<const float>(Role::lse, seq.q_batch, token, h);
      if (a.given(Role::d_lse)) sum -= *a.row<const float>(Role::d_lse, seq.q_batch, token, h);
      if (lse != -INFINITY) row = {lse_of_weights(lse), sum};
    }
    x.rows[int64_t(n) * x.padded + first + r] = row;
  }
}

enum class Gradient { dv, dk };

// The keys that a CTA owns. Lives in shared memory; one thread fills it in.
struct KeyRows {
  Sequence seq;
  int b, head_kv;
  Gradient gradient;  // what this CTA computes, if dK and dV do not fit in registers together
  int first, count;
  int low, high;  // range of queries that see any of these keys

  template <int TileK>
  __device__ void find(const F32Call& x, int gradients) {
    const Problem& p = x.problem;
    uint32_t n = blockIdx.x;
    const int own = int(n % x.tiles);  // causal: longest first
    n /= x.tiles;
    gradient = Gradient(n % gradients), n /= gradients;
    head_kv = int(n % p.heads_kv), b = x.first_batch + int(n / p.heads_kv);
    seq = sequence_of(x, b);
    int64_t from = int64_t(own) * TileK, until = from + TileK;
    if (const Blocks size = p.mask.blocks; size.k) {  // a tile lies within one key block
      const int per_block = (size.k + TileK - 1) / TileK;
      const int64_t start = int64_t(own / per_block) * size.k;
      from = start + own % per_block * TileK, until = min(from + TileK, start + size.k);
    }
    first = clamp(from, 0, seq.len_k), count = clamp(until, 0, seq.len_k) - first;
    if (count <= 0) return;
    low = walk().first_query(first), high = walk().last_query(first + count - 1);
  }
  __device__ QueryWalk walk() const { return {seq.band, seq.len_q, 1}; }
};

// Compile-time configuration.
struct BackwardF32Config {
  int dim;
  int own;     // rows that a CTA owns
  int walked;  // rows per tile that it walks
};

template <BackwardF32Config C, bool three>
struct BackwardF32 {
  static constexpr int kDim = C.dim, kOwn = C.own, kWalked = C.walked;
  static constexpr int kWarps = kOwn / 16, kThreads = kWarps * 32, kN = kWalked / 8;
  static constexpr bool kBoth = kDim <= 128;  // dK and dV together
  using OwnTile = FloatTile<kOwn, kDim>;
  using WalkedTile = FloatTile<kWalked, kDim>;
  using Place = QueryRows<kOwn, kWalked>;
  struct Shared {
    char own[OwnTile::kBytes], own_y[OwnTile::kBytes], walked[WalkedTile::kBytes], walked_y[WalkedTile::kBytes];
  };
  static constexpr int kOwnY = offsetof(Shared, own_y), kWalkedX = offsetof(Shared, walked),
                       kWalkedY = offsetof(Shared, walked_y), kSharedBytes = sizeof(Shared);

  const F32Gradients& g;
  const F32Call& x;
  const Problem& p;
  const DenseArgs& a;
  const int lane, warp;
  const uint32_t own, own_y, walked, walked_y;  // q and dO, k and v; swapped in the dK/dV kernel
  int2* const seen;                             // [kOwn]: range of walked rows that see each row or that it sees
  float2* const info;                           // [kWalked]: lse and delta of walked queries

  __device__ BackwardF32(const F32Gradients& gradients, char* shared, int2* seen_rows, float2* row_info)
      : g(gradients),
        x(gradients.call),
        p(x.problem),
        a(x.args),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        own(shared_address(shared)),
        own_y(own + kOwnY),
        walked(own_y + (kWalkedX - kOwnY)),
        walked_y(walked + (kWalkedY - kWalkedX)),
        seen(seen_rows),
        info(row_info) {}

  __device__ int row_of(int half) const { return warp * 16 + half * 8 + lane / 4; }
  __device__ const float2* rows_of(int b, int head) const {
    return g.rows + (int64_t(b) * p.heads_q + head) * g.padded;
  }

  // Block list entry of the pairs of a tile.
  __device__ int entry(int b, int head, int i, int j) const {
    const BlockList list{p.mask.blocks, a.row<const int32_t>(Role::block_begin, b, 0, head),
                         a.row<const int32_t>(Role::block_column)};
    return max(0, list.find(i / p.mask.blocks.q, j / p.mask.blocks.k));
  }

  // Replaces dot products by P and dP by dS. `keys`: owned rows are keys and walked rows queries. Otherwise P is not
  // needed; with options, the gradient of the logits takes its place.
  template <bool keys>
  __device__ void weigh(Accumulator (&s)[kN], Accumulator (&dp)[kN], const Tile& t, int first, const Sequence& q, int b,
                        int head, const float2 (&row)[2]) const {
    const int start = t.first + lane % 4 * 2;  // first column
    int from[2], until[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      from[half] = seen[row_of(half)].x - start, until[half] = min(seen[row_of(half)].y, t.last) - start;
    const auto of_row = [&](int c, int half) { return keys ? info[lane % 4 * 2 + c] : half ? row[1] : row[0]; };
    if (x.options) {
      General score(p, a, q, b, head);
      if (score.block_bias) score.entry = entry(b, head, keys ? t.first : first, keys ? first : t.first);
      each_rotating<kN>(
          [&](int n, int e) {
            const int c = n * 8 + e % 2, half = e / 2, mine = first + row_of(half), walked = start + c;
            const int i = keys ? walked : mine, j = keys ? mine : walked;
            const float2 of = of_row(c, half);
            float weight = 0.f, d_logit = 0.f, ds = 0.f;
            if (c >= (half ? from[1] : from[0]) && c < (half ? until[1] : until[0]) && of.x != INFINITY) {
              const float keep = score.keep(i, j);
              weight = weight_of_large_logit(exp2_fast(score.logit(s[0].c[0], i, j) - of.x), of.x);
              d_logit = weight * (keep * dp[0].c[0] - of.y), ds = d_logit * score.slope_of_logit(s[0].c[0]);
              weight *= keep;
            }
            s[0].c[0] = keys ? weight : d_logit, dp[0].c[0] = ds;
          },
          s, dp);
      return;
    }
    const float scale = scale_of(p, a) * kLog2e;
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int c = n * 8 + e % 2;
        const bool hidden = t.partial && (c < from[e / 2] || c >= until[e / 2]);
        const Pair pair =
            differentiate(scale, Kept{}, hidden ? -INFINITY : s[n].c[e], dp[n].c[e], of_row(c, e / 2));
        s[n].c[e] = pair.p, dp[n].c[e] = pair.ds;
      }
  }

  // Adds the warp's share of the bias gradient for one tile. It first sums over axes that the bias broadcasts: a single
  // element may receive everything, and fewer additions there lose less precision.
  __device__ void add_bias(const Accumulator (&d_logit)[kN], const Place& at, const Tile& t) const {
    const Tensor& to = a[Role::d_bias];
    const bool one_key = to.extent.dim == 1, one_query = to.extent.seq == 1;
    const auto add_one = [&](float y, int half, int j) {
      if (row_of(half) < at.rows && j < t.last && y != 0.f)
        atomicAdd(view<float>(to).row(at.b, at.first + row_of(half), at.head) + (one_key ? 0 : j), y);
    };
    const auto over_rows = [](float y) {
      for (int n = 4; n < 32; n *= 2) y += __shfl_xor_sync(~0u, y, n);
      return y;
    };
    if (p.has(Option::block_bias)) {
      float block = 0.f;
#pragma unroll
      for (int n = 0; n < kN; ++n) block += (d_logit[n].c[0] + d_logit[n].c[1]) + (d_logit[n].c[2] + d_logit[n].c[3]);
      block = over_rows(row_sum(block));
      if (lane == 0) atomicAdd(a.row<float>(Role::d_bias) + entry(at.b, at.head, at.first, t.first), block);
      return;
    }
    float row[2] = {};
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float two[2] = {d_logit[n].c[e], d_logit[n].c[2 + e]};
        const int j = t.first + n * 8 + lane % 4 * 2 + e;
        if (one_key) row[0] += two[0], row[1] += two[1];
        else if (!one_query) add_one(two[0], 0, j), add_one(two[1], 1, j);
        else if (const float y = over_rows(two[0] + two[1]); lane < 4) add_one(y, 0, j);
      }
    if (!one_key) return;
    const float low = row_sum(row[0]), high = row_sum(row[1]), both = over_rows(low + high);
    if (one_query && lane == 0) add_one(both, 0, t.first);
    if (!one_query && lane % 4 == 0) add_one(low, 0, t.first), add_one(high, 1, t.first);
  }

  // `opaque` hides the lane, so that addresses are computed where they are used instead of kept in registers.
  __device__ void dot(Accumulator (&s)[kN], uint32_t mine, uint32_t walked) const {
    dot_rows<three, TilePair<OwnTile, WalkedTile>, 1, kN>(s, mine, walked, warp * 16, opaque(lane));
  }
  __device__ void add(Accumulator (&acc)[1][kDim / 8], const Accumulator (&w)[kN], uint32_t walked) const {
    add_rows<three, WalkedTile, 1, kN>(acc, w, walked, opaque(lane));
  }

  __device__ void round_own(bool both) const {
    close_group();
    wait_groups<0>();
    round_loaded<three, OwnTile, kThreads>(own);
    if (both) round_loaded<three, OwnTile, kThreads>(own_y);
  }

  __device__ void rows(const Place& at) const {
    load_queries<OwnTile, kThreads>(x, Role::q, at.seq, at.head, at.first, at.rows, own);
    load_queries<OwnTile, kThreads>(x, Role::d_out, at.seq, at.head, at.first, at.rows, own_y);
    round_own(true);
    for (int r = threadIdx.x; r < kOwn; r += kThreads) seen[r] = at.seen(r);
    float2 row[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      row[half] = row_of(half) < at.rows ? rows_of(at.b, at.head)[at.first + row_of(half)] : float2{INFINITY, 0.f};
    Accumulator dq[1][kDim / 8] = {};
    for (int n = 0; n < at.tiles; ++n) {
      const Tile t = at.tile(x, n);
      load_keys<WalkedTile, kThreads>(x, Role::k, at.seq, at.b, at.head_kv, t.first, t.last - t.first, walked);
      load_keys<WalkedTile, kThreads>(x, Role::v, at.seq, at.b, at.head_kv, t.first, t.last - t.first, walked_y);
      close_group();
      wait_groups<0>();
      __syncthreads();
      Accumulator s[kN], dp[kN];
      dot(s, own, walked);
      dot(dp, own_y, walked_y);
      weigh<false>(s, dp, t, at.first, at.seq, at.b, at.head, row);
      if (a.given(Role::d_bias)) add_bias(s, at, t);
      add(dq, dp, walked);
      __syncthreads();
    }
    wait_groups<0>();
    if (!a.given(Role::dq)) return;
    store(dq[0], at.rows, p.dim_qk, scale_of(p, a), g.running, [&](int r) {
      return a.row<float>(Role::dq, at.seq.q_batch, at.seq.q_first + int64_t(at.first + r), at.head);
    });
  }

  __device__ void keys(const KeyRows& at) const {
    const bool wants_k = a.given(Role::dk) && (kBoth || at.gradient == Gradient::dk);
    const bool wants_v = a.given(Role::dv) && (kBoth || at.gradient == Gradient::dv);
    if (!wants_k && !wants_v) return;
    load_keys<OwnTile, kThreads>(x, Role::k, at.seq, at.b, at.head_kv, at.first, at.count, own);
    if (wants_k) load_keys<OwnTile, kThreads>(x, Role::v, at.seq, at.b, at.head_kv, at.first, at.count, own_y);
    round_own(wants_k);
    for (int r = threadIdx.x; r < kOwn; r += kThreads)
      seen[r] = r < at.count ? int2{at.walk().first_query(at.first + r), at.walk().last_query(at.first + r)}
                             : int2{INT32_MAX, 0};
    Accumulator acc[kBoth ? 2 : 1][1][kDim / 8] = {};  // dV, dK
    const int group = p.heads_q / p.heads_kv;
    const Blocks size = p.mask.blocks;
    const auto begin = [&] { return at.low >= at.high ? at.high : at.low - at.low % (size.q ? size.q : kWalked); };
    int head = at.head_kv * group;
    for (int first = begin(); head < (at.head_kv + 1) * group;) {
      if (first >= at.high) {
        ++head, first = begin();
        continue;
      }
      int64_t end = int64_t(first) + kWalked;
      if (size.q) {
        const int block = first / size.q;
        const int64_t next = (int64_t(block) + 1) * size.q;
        if (first == block * size.q && !__syncthreads_or(listed(at, head, block))) {
          first = int(min(next, int64_t(at.high)));
          continue;
        }
        end = min(end, next);
      }
      const Tile t = at.walk().cut({at.first, at.first + at.count}, first, min(end, int64_t(at.high)));
      visit(at, head, t, acc, wants_k, wants_v);
      first = t.last;
    }
    wait_groups<0>();
    if (wants_v) store_keys(at, Role::dv, acc[0][0], p.dim_v, 1.f);
    if (wants_k) store_keys(at, Role::dk, acc[kBoth ? 1 : 0][0], p.dim_qk, scale_of(p, a));
  }

  // True if this thread finds the owned key block in the list of a query block.
  __device__ bool listed(const KeyRows& at, int head, int block) const {
    const BlockList list{p.mask.blocks, a.row<const int32_t>(Role::block_begin, at.b, 0, head),
                         a.row<const int32_t>(Role::block_column)};
    const int wanted = at.first / p.mask.blocks.k, count = list.count(block);
    bool hit = false;
    for (int n = threadIdx.x; n < count && !hit; n += kThreads) hit = list.key_block(block, n) == wanted;
    return hit;
  }

  template <int kGradients>
  __device__ void visit(const KeyRows& at, int head, const Tile& t, Accumulator (&acc)[kGradients][1][kDim / 8],
                        bool wants_k, bool wants_v) const {
    const int count = t.last - t.first;
    __syncthreads();
    load_queries<WalkedTile, kThreads>(x, Role::q, at.seq, head, t.first, count, walked);
    load_queries<WalkedTile, kThreads>(x, Role::d_out, at.seq, head, t.first, count, walked_y);
    for (int n = threadIdx.x; n < kWalked; n += kThreads)
      info[n] = n < count ? rows_of(at.b, head)[t.first + n] : float2{INFINITY, 0.f};
    close_group();
    wait_groups<0>();
    __syncthreads();
    Accumulator s[kN], dp[kN] = {};
    dot(s, own, walked);
    if (wants_k) dot(dp, own_y, walked_y);
    weigh<true>(s, dp, t, at.first, at.seq, at.b, head, {});
    if (wants_v) add(acc[0], s, walked_y);
    if (wants_k) add(acc[kGradients - 1], dp, walked);
  }

  __device__ void store_keys(const KeyRows& at, Role role, const Accumulator (&acc)[kDim / 8], int dim,
                             float factor) const {
    const bool paged = p.keys == KeySource::paged;
    const PagedRows<float> pages(p, a, role, at.seq, at.b, at.head_kv);
    const LinearRows<float> lines(p, a, role, at.seq, at.b, at.head_kv);
    store(acc, at.count, dim, factor, g.shared_keys || g.running,
          [&](int r) { return paged ? pages.row(at.first + r) : lines.row(at.first + r); });
  }
  template <class Row>
  __device__ void store(const Accumulator (&acc)[kDim / 8], int count, int dim, float factor, bool sum,
                        Row row_at) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row_of(half) >= count) continue;
      float* to = row_at(row_of(half)) + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (d * 8 + lane % 4 * 2 + e >= dim) continue;
          const float y = acc[d].c[2 * half + e] * factor;
          if (sum) atomicAdd(to + d * 8 + e, y);
          else to[d * 8 + e] = y;
        }
    }
  }
};

template <class B>
__global__ void __launch_bounds__(B::kThreads, 2) backward_f32_rows_kernel(const __grid_constant__ F32Gradients g) {
  extern __shared__ __align__(128) char shared[];
  __shared__ typename B::Place place;
  __shared__ int2 seen[B::kOwn];
  if (threadIdx.x == 0) place.find(g.call);
  __syncthreads();
  if (place.rows > 0) B(g, shared, seen, nullptr).rows(place);
}

template <class B>
__global__ void __launch_bounds__(B::kThreads, 2) backward_f32_keys_kernel(const __grid_constant__ F32Gradients g) {
  extern __shared__ __align__(128) char shared[];
  __shared__ KeyRows place;
  __shared__ int2 seen[B::kOwn];
  __shared__ float2 info[B::kWalked];
  if (threadIdx.x == 0) place.find<B::kOwn>(g.call, B::kBoth ? 1 : 2);
  __syncthreads();
  if (place.count > 0) B(g, shared, seen, info).keys(place);
}

}  // namespace attune::sm80
