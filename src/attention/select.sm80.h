// The selection of native sparse attention with mma.sync: scores of compressed keys, summed over the heads of a group
// and by Eq. 9 over selection blocks, and the n best blocks of each (token, group), without a matrix of scores.
//   load q -> for each key tile: p = exp(q k' - lse), sum over heads -> ring; blocks now complete -> lists -> store
// The sums over heads of the last columns are kept in a ring, from which the blocks that a tile completes are scored; a
// list of the best so far is touched only where a score beats its worst.
//
// A score is one sequence of operations, whatever shares the tile and however keys are split: given the same lse, one
// token of a decode has the scores of that token in a prefill, to the bit. Ties go to the lower block: the order of a
// list is that of 64-bit keys, the bits of the score (never negative, so they rise with it) above the complement of the
// block.
#pragma once
#include "attention/select.sm80.rows.h"

namespace attune::sm80 {

// The list of a token, its entries apart.
struct SelectState {
  uint64_t worst;   // key of the worst entry once the list is full
  float threshold;  // its score; -1 before
  int count, at;    // entries, and which of them is the worst
  int most;         // entries that it may have
  int last;         // blocks below it may be candidates; 0: no scores needed
  int seen;         // compressed tokens that the query sees
  int own;          // the block it stands in, -1: before the first token
};

// Rings, lists and their states: shared memory behind the tiles.
inline int64_t select_list_bytes(const SelectParams& x) {
  return int64_t(x.rings()) * x.ring * 4 + int64_t(x.tokens()) * (x.room * 8 + int64_t(sizeof(SelectState)));
}

template <class T, int Dim>
struct Select : SelectRows<T, Dim> {
  using Base = SelectRows<T, Dim>;
  using Base::kM, Base::kN, Base::lane, Base::nsa, Base::warp, Base::x;
  using Base::head_of, Base::position, Base::row_of, Base::there, Base::token_of;

  float* const rings;
  uint64_t* const lists;
  SelectState* const states;

  __device__ Select(const SelectParams& params, char* memory)
      : Base(params, memory),
        rings(reinterpret_cast<float*>(memory + Base::tile_bytes(params))),
        lists(reinterpret_cast<uint64_t*>(rings + params.rings() * params.ring)),
        states(reinterpret_cast<SelectState*>(lists + params.tokens() * params.room)) {}

  // Of a query at position t: then no score is needed.
  __device__ bool all_taken(int64_t t) const { return nsa.candidates(t) <= nsa.n - nsa.forced(t); }

  // Sums over the heads of each token into its ring; columns that a token does not see are 0.
  __device__ void sum_heads(const Accumulator (&p)[kM][kN], int first) {
    if (x.shift >= 3) {
#pragma unroll
      for (int slot = 0; slot < 4; ++slot) {
        const int m = slot / 2, half = slot % 2;
        if ((half && x.shift >= 4) || (m && x.shift >= 5)) continue;
        float sums[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float v[kN];
#pragma unroll
          for (int n = 0; n < kN; ++n) {
            v[n] = p[m][n].c[2 * half + e];
            if (half == 0 && x.shift >= 4) v[n] += p[m][n].c[2 + e];
            if (slot == 0 && x.shift >= 5) v[n] += p[1][n].c[e] + p[1][n].c[2 + e];
          }
          sums[e] = scatter_sum(v);
        }
        put(warp * kSelectRowsOfWarp + m * 16 + half * 8, first + lane / 4 * 8 + lane % 4 * 2, sums[0], sums[1]);
      }
    } else {
#pragma unroll
      for (int slot = 0; slot < 4; ++slot)
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          float low = p[slot / 2][n].c[slot % 2 * 2], high = p[slot / 2][n].c[slot % 2 * 2 + 1];
          for (int bit = 4; bit < 4 << x.shift; bit *= 2)
            low += __shfl_xor_sync(~0u, low, bit), high += __shfl_xor_sync(~0u, high, bit);
          if (head_of(lane / 4) == 0) put(row_of(slot / 2, slot % 2), first + n * 8 + lane % 4 * 2, low, high);
        }
    }
  }
  // Over the eight lanes that hold the rows of a fragment, eight fragments at once: lane / 4 is left with its own.
  __device__ float scatter_sum(float (&v)[kN]) const {
    static_assert(kN == 8);
#pragma unroll
    for (int bit = 16, left = 4; left; bit /= 2, left /= 2) {
      const bool upper = lane & bit;
#pragma unroll
      for (int n = 0; n < left; ++n) {
        const float kept = upper ? v[n + left] : v[n], sent = upper ? v[n] : v[n + left];
        v[n] = kept + __shfl_xor_sync(~0u, sent, bit);
      }
    }
    return v[0];
  }
  __device__ void put(int row, int column, float low, float high) const {
    const int token = token_of(row), seen = states[token].seen;
    float* to = rings + (x.is_wide() ? warp : token) * x.ring + (column & (x.ring - 1));
    *reinterpret_cast<float2*>(to) = {column < seen ? low : 0.f, column + 1 < seen ? high : 0.f};
  }

  // Eq. 9: a short filter over the ring, in the order of the columns.
  __device__ float score_of(int token, int block) const {
    const int first = int(nsa.first_tap(block)), taps = nsa.taps();
    const int parts = x.is_wide() ? 1 << (x.shift - 5) : 1;
    const float* ring = rings + (x.is_wide() ? warp : token) * x.ring;
    float sum = 0.f;
    for (int k = 0; k < taps; ++k) {
      const int column = first + k;
      if (column < 0) continue;
      float p = ring[column & (x.ring - 1)];
      for (int n = 1; n < parts; ++n) p += ring[n * x.ring + (column & (x.ring - 1))];
      sum = fmaf(float(nsa.tap(k)), p, sum);
    }
    return sum;
  }

  // By a warp: into the list of a token. What is full loses its worst.
  __device__ void insert(int token, uint64_t key) {
    SelectState& state = states[token];
    uint64_t* list = lists + token * x.room;
    const int most = state.most, before = state.count;
    if (lane == 0) {
      list[before < most ? before : state.at] = key;
      if (before < most) state.count = before + 1;
    }
    __syncwarp();
    if (before + 1 < most) return;
    uint64_t mine = ~uint64_t(0);
    int at = 0;
    for (int n = lane; n < most; n += 32)
      if (list[n] < mine) mine = list[n], at = n;
    const uint32_t high = __reduce_min_sync(~0u, uint32_t(mine >> 32));
    const uint32_t low = __reduce_min_sync(~0u, uint32_t(mine >> 32) == high ? uint32_t(mine) : ~0u);
    if (mine == (uint64_t(high) << 32 | low))
      state.worst = mine, state.threshold = __uint_as_float(high), state.at = at;
    __syncwarp();
  }
  // Tokens of this warp: the first, and how many.
  __device__ int2 own_tokens(const SelectPlace& at) const {
    const int each = max(1, kSelectRowsOfWarp >> x.shift), first = token_of(warp * kSelectRowsOfWarp);
    const bool owner = head_of(warp * kSelectRowsOfWarp) == 0;
    return {first, owner ? clamp(at.count - first, 0, each) : 0};
  }
  // The blocks that the columns of a tile complete.
  __device__ void score_blocks(int2 tokens, int first) {
    const int begin = int(x.columns.divide(first)), each = int(x.columns.divide(first + kSelectKeys)) - begin;
    const int all = tokens.y * each;
    for (int start = 0; start < all; start += 32) {
      const int n = start + lane, token = n < all ? n / each : 0, block = begin + n - token * each;
      const SelectState& state = states[tokens.x + token];
      float score = -1.f;
      if (n < all && block > 0 && block < state.last) score = score_of(tokens.x + token, block);
      for (uint32_t better = __ballot_sync(~0u, score > state.threshold); better; better &= better - 1) {
        const int from = __ffs(better) - 1, to = tokens.x + __shfl_sync(~0u, token, from);
        const float s = __shfl_sync(~0u, score, from);
        const int m = __shfl_sync(~0u, block, from);
        if (s > states[to].threshold) insert(to, uint64_t(__float_as_uint(s)) << 32 | ~uint32_t(m));
        __syncwarp();
      }
    }
  }

  __device__ void begin_lists(const SelectPlace& at) {
    for (int token = threadIdx.x; token < x.tokens(); token += kSelectThreads) {
      const int64_t t = token < at.count ? position(at, token) : -1;
      const bool scored = t >= 0 && !all_taken(t);
      states[token] = {.worst = 0,
                       .threshold = scored && nsa.chosen(t) > 0 ? -1.f : INFINITY,
                       .count = 0,
                       .at = 0,
                       .most = scored ? nsa.chosen(t) : 0,
                       .last = scored ? nsa.own(t) - 1 : 0,
                       .seen = clamp(nsa.visible(t), 0, at.seq.keys),
                       .own = t < 0 ? -1 : nsa.own(t)};
    }
  }
  // Ascending: block 0, the chosen ones, the two last; then -1.
  __device__ void store(const SelectPlace& at, int2 tokens) const {
    for (int n = 0; n < tokens.y; ++n) {
      const int token = tokens.x + n;
      const SelectState& state = states[token];
      const uint64_t* list = lists + token * x.room;
      int32_t* to = reinterpret_cast<int32_t*>(
          x.blocks.row(at.seq.batch, at.seq.first + at.first + token, at.head));
      const bool all = state.last == 0;
      const int count = all ? state.own + 1 : state.count + 3;
      for (int e = lane; e < nsa.n; e += 32) {
        if (e >= count) to[e] = -1;
        else if (all || e == 0) to[e] = e;
        else if (e >= count - 2) to[e] = state.own - (count - 1 - e);
      }
      if (all) continue;
      for (int e = lane; e < state.count; e += 32) {
        const uint32_t mine = ~uint32_t(list[e]);
        int rank = 1;
        for (int other = 0; other < state.count; ++other) rank += ~uint32_t(list[other]) < mine;
        to[rank] = int32_t(mine);
      }
    }
  }

  __device__ void run(SelectPlace& at) {
    if (threadIdx.x == 0) {
      at = this->find_place();
      const int64_t t = position(at, at.count - 1);
      const bool any = t >= 0 && !all_taken(t);
      const int warm = (nsa.taps() + kSelectKeys - 2) / kSelectKeys;
      this->share_tiles(at, any ? int64_t(x.columns.by) * (nsa.own(t) - 1) : 0, warm, 1);
    }
    __syncthreads();
    if (at.count <= 0) return;
    begin_lists(at);
    __syncthreads();
    const int2 tokens = own_tokens(at);
    if (at.tiles > 0) walk(at, tokens);
    if (x.splits.by == 1) return store(at, tokens);
    merge_splits(at, tokens);
  }
  __device__ void walk(const SelectPlace& at, int2 tokens) {
    float shift[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(m, half);
        shift[m][half] = INFINITY;  // a row that is not there, or sees nothing: p = 0
        if (!there(at, row)) continue;
        const float lse = *this->lse_of(at, row);
        if (lse != -INFINITY) shift[m][half] = lse * kLog2e;
      }
    this->load_q(at);
    const int end = at.first_tile + at.tiles;
    const bool active = token_of(warp * kSelectRowsOfWarp) < at.count;
    this->load_keys(at, at.warm_tile);
    for (int tile = at.warm_tile; tile < end; ++tile) {
      wait_groups<0>();
      __syncthreads();
      if (tile + 1 < end) this->load_keys(at, tile + 1);
      const int first = tile * kSelectKeys;
      if (active) {
        Accumulator p[kM][kN];
        this->scores(p, tile);
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
          for (int n = 0; n < kN; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) p[m][n].c[e] = exp2_fast(fmaf(p[m][n].c[e], x.scale, -shift[m][e / 2]));
        sum_heads(p, first);
      }
      if (x.is_wide()) __syncthreads();
      __syncwarp();
      if (tile >= at.first_tile) score_blocks(tokens, first);
      __syncwarp();
    }
  }

  // The last split of a token block to arrive makes one list of all.
  __device__ void merge_splits(const SelectPlace& at, int2 tokens) {
    const int64_t unit = int64_t(at.b) * x.groups.by + at.head;
    const auto candidates = [&](int token, int split) {
      return x.candidates +
             ((unit * x.problem.len_q + at.first + token) * x.splits.by + split) * x.room;
    };
    for (int n = 0; n < tokens.y; ++n)
      for (int e = lane; e < x.room; e += 32)
        candidates(tokens.x + n, at.split)[e] =
            e < states[tokens.x + n].count ? lists[(tokens.x + n) * x.room + e] : uint64_t(0);
    if (!this->is_last(unit * x.token_blocks.by + at.block)) return;
    begin_lists(at);
    __syncthreads();
    for (int n = 0; n < tokens.y; ++n) {
      const int token = tokens.x + n;
      const SelectState& state = states[token];
      if (!state.most) continue;
      const int all = int(x.splits.by) * x.room;
      for (int start = 0; start < all; start += 32) {
        const uint64_t key = start + lane < all ? __ldcg(candidates(token, 0) + start + lane) : 0;
        for (uint32_t some = __ballot_sync(~0u, key != 0 && key > state.worst); some; some &= some - 1) {
          const uint64_t next = __shfl_sync(~0u, key, __ffs(some) - 1);
          if (state.count < state.most || next > state.worst) insert(token, next);
          __syncwarp();
        }
      }
    }
    store(at, tokens);
  }
};

template <class T, int Dim>
__global__ void __launch_bounds__(kSelectThreads, 2) select_kernel(const __grid_constant__ SelectParams params) {
  extern __shared__ __align__(128) char shared[];
  __shared__ SelectPlace place;  // read at the edges of the loop, where registers are dear
  Select<T, Dim> s(params, shared);
  s.run(place);
}

}  // namespace attune::sm80
