// SPDX-License-Identifier: Apache-2.0
// Block selection of native sparse attention with mma.sync. It scores compressed keys, sums the scores over the heads
// of a group and over selection blocks (Eq. 9), and keeps the n best blocks of each (token, group). No score matrix is
// stored.
//   load q -> for each key tile: p = exp(q k' - lse), sum over heads -> ring; blocks now complete -> scores
//             every few hundred scores: the best of them and of the list so far -> list
//   -> store
//
// A score is one fixed sequence of operations, whatever shares the tile and however the keys are split. Given the same
// lse, one token of a decode has the same scores as in a prefill, to the bit. Ties go to the lower block: lists are
// ordered by 64-bit keys, the bits of the score (never negative, so they increase with it) above the complement of the
// block.
#pragma once
#include "attention/sm80/nsa/select_rows.h"
#include "core/large_logit.h"

namespace attune::sm80 {

// State of a token and its list; the entries are stored separately, best first.
struct SelectState {
  int count, most;  // entries in the list, and its capacity
  int last;         // upper bound of candidate blocks; 0: no scores needed
  int seen;         // compressed tokens that the query sees
  int own;          // block of the token, -1 before the first token
};

// Shared memory behind the tiles: rings, pending scores, lists (two per token, alternating) and states.
inline int64_t select_list_bytes(const SelectParams& x) {
  return int64_t(x.rings()) * x.ring * 4 +
         int64_t(x.tokens()) * (x.kept * 4 + x.capacity * 16 + int64_t(sizeof(SelectState)));
}

template <class T, int Dim>
struct Select : SelectRows<T, Dim> {
  using Base = SelectRows<T, Dim>;
  using Base::kM, Base::kN, Base::lane, Base::nsa, Base::warp, Base::x;
  using Base::head_of, Base::position, Base::row_of, Base::there, Base::token_of;

  float *const rings, *const waiting;  // [ring], [token][kept]
  uint64_t* const lists;               // [0 or 1][token][capacity]
  SelectState* const states;
  int latest = 0;                      // index of the current lists
  int base = 0, filled = 0;            // pending scores: block of the first, and count

  __device__ Select(const SelectParams& params, char* memory)
      : Base(params, memory),
        rings(reinterpret_cast<float*>(memory + Base::tile_bytes(params))),
        waiting(rings + params.rings() * params.ring),
        lists(reinterpret_cast<uint64_t*>(waiting + params.tokens() * params.kept)),
        states(reinterpret_cast<SelectState*>(lists + 2 * params.tokens() * params.capacity)) {}

  // For a query at position t: the list holds every block, so no score is needed.
  __device__ bool all_taken(int t) const { return t < 0 || this->own(t) < nsa.n; }
  __device__ uint64_t* list_of(int token) const { return lists + (latest * x.tokens() + token) * x.capacity; }

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
  // Sums eight fragments at once over the eight lanes that hold their rows; lane / 4 is the fragment that a lane keeps.
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
    float* to = rings + (x.is_shared_ring() ? warp : token) * x.ring + (column & (x.ring - 1));
    *reinterpret_cast<float2*>(to) = {column < seen ? low : 0.f, column + 1 < seen ? high : 0.f};
  }

  // Eq. 9: a short filter over the ring, in column order.
  __device__ float score_of(int token, int block) const {
    const int first = block * int(x.columns.by) + x.first_tap, mask = x.ring - 1;
    const float* ring = rings + (x.is_shared_ring() ? warp : token) * x.ring;
    float sum = 0.f;
#pragma unroll 4
    for (int k = first < 0 ? -first : 0; k < x.taps; ++k) {
      float p = ring[(first + k) & mask];
      if (x.is_shared_ring())
        for (int n = 1; n < 1 << (x.shift - 5); ++n) p += ring[n * x.ring + ((first + k) & mask)];
      sum = fmaf(float(min(min(k + 1, x.taps - k), x.most_tap)), p, sum);
    }
    return sum;
  }
  // First token and token count of this warp.
  __device__ int2 own_tokens(const SelectPlace& at) const {
    const int each = max(1, kSelectRowsOfWarp >> x.shift), first = token_of(warp * kSelectRowsOfWarp);
    const bool owner = head_of(warp * kSelectRowsOfWarp) == 0;
    return {first, owner ? clamp(at.count - first, 0, each) : 0};
  }
  // Scores the blocks that the columns of a tile complete; -1 for a block that is not a candidate.
  __device__ void score_blocks(int2 tokens, int first) {
    const int begin = int(x.columns.divide(first));
    const int each = x.each.by ? int(x.each.by) : int(x.columns.divide(first + kSelectKeys)) - begin;
    if (!filled) base = begin;
    for (int n = lane; n < tokens.y * each; n += 32) {
      const int token = x.each.by ? int(x.each.divide(n)) : n / each, block = begin + n - token * each;
      const bool scored = block > 0 && block < states[tokens.x + token].last;
      waiting[(tokens.x + token) * x.kept + block - base] = scored ? score_of(tokens.x + token, block) : -1.f;
    }
    filled += each;
  }

  // Called by a warp: writes the `most` largest of the keys that `better` finds to `to`. Returns their number.
  // better(limit): this lane's largest key below the limit, 0 if it has none.
  template <class F>
  __device__ int take_best(int most, uint64_t* to, F better) const {
    uint64_t mine = better(~uint64_t(0));
    for (int n = 0; n < most; ++n) {
      const uint32_t high = __reduce_max_sync(~0u, uint32_t(mine >> 32));
      const uint32_t low = __reduce_max_sync(~0u, uint32_t(mine >> 32) == high ? uint32_t(mine) : 0u);
      const uint64_t best = uint64_t(high) << 32 | low;
      if (!best) return n;
      if (lane == 0) to[n] = best;
      if (mine == best) mine = better(best);  // keys are unique, so this is one lane
    }
    return most;
  }
  // Merges the pending scores into the lists of this warp's tokens.
  __device__ void update_lists(int2 tokens) {
    __syncwarp();
    for (int n = 0; n < tokens.y; ++n) {
      const int token = tokens.x + n, count = states[token].count, most = states[token].most;
      if (!most) continue;
      const float* scores = waiting + token * x.kept;
      const uint64_t* list = list_of(token);
      uint64_t* to = lists + ((1 - latest) * x.tokens() + token) * x.capacity;
      const auto better = [&](uint64_t limit) {
        uint64_t found = 0;
        for (int i = lane; i < count; i += 32)
          if (list[i] < limit && list[i] > found) found = list[i];
#pragma unroll 4
        for (int i = lane; i < filled; i += 32) {
          const float score = scores[i];
          const uint64_t key = uint64_t(__float_as_uint(score)) << 32 | ~uint32_t(base + i);
          if (score >= 0.f && key < limit && key > found) found = key;
        }
        return found;
      };
      const int now = take_best(most, to, better);
      __syncwarp();  // every lane has read the count
      if (lane == 0) states[token].count = now;
    }
    latest ^= 1, filled = 0;
    __syncwarp();
  }

  __device__ void begin_lists(const SelectPlace& at) {
    for (int token = threadIdx.x; token < x.tokens(); token += kSelectThreads) {
      const int t = token < at.count ? position(at, token) : -1;
      const bool scored = !all_taken(t);
      states[token] = {.count = 0,
                       .most = scored ? nsa.n - 3 : 0,
                       .last = scored ? this->own(t) - 1 : 0,
                       .seen = t < 0 ? 0 : this->seen_from(at, t),
                       .own = t < 0 ? -1 : this->own(t)};
    }
  }
  // Stores the list in ascending order: block 0, the chosen ones, the last two; then -1.
  __device__ void store(const SelectPlace& at, int2 tokens) const {
    for (int n = 0; n < tokens.y; ++n) {
      const int token = tokens.x + n;
      const SelectState& state = states[token];
      const uint64_t* list = list_of(token);
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
      const int t = position(at, at.count - 1), warm = (x.taps + kSelectKeys - 2) / kSelectKeys;
      this->split_tiles(at, all_taken(t) ? 0 : int64_t(x.columns.by) * (this->own(t) - 1), warm, 1);
    }
    __syncthreads();
    if (at.count <= 0) return;
    begin_lists(at);
    __syncthreads();
    const int2 tokens = own_tokens(at);
    if (at.tiles > 0) walk(at, tokens);
    if (x.splits.by == 1) return store(at, tokens);
    combine_splits(at, tokens);
  }
  __device__ static void cut_large_logits(Accumulator (&p)[kM][kN], const float (&shift)[kM][2]) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) p[m][n].c[e] = weight_of_large_logit(p[m][n].c[e], shift[m][e / 2]);
  }
  __device__ void walk(const SelectPlace& at, int2 tokens) {
    float shift[kM][2];
    bool large_logits = false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(m, half);
        shift[m][half] = INFINITY;  // missing, or sees no key: p = 0
        if (!there(at, row)) continue;
        const float lse = *this->lse_of(at, row);
        shift[m][half] = lse_of_weights(lse), large_logits |= is_large_logit(shift[m][half]);
      }
    this->load_q(at);
    const int end = at.first_tile + at.tiles;
    const int most_each = (kSelectKeys + int(x.columns.by) - 1) / int(x.columns.by);
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
        if (large_logits) cut_large_logits(p, shift);
        sum_heads(p, first);
      }
      if (x.is_shared_ring()) __syncthreads();
      __syncwarp();
      if (tile >= at.first_tile) {
        score_blocks(tokens, first);
        if (filled + most_each > x.kept || tile + 1 == end) update_lists(tokens);
      }
      __syncwarp();
    }
  }

  // The last split of a token block to arrive combines all lists.
  __device__ void combine_splits(const SelectPlace& at, int2 tokens) {
    const int64_t sequence_head = int64_t(at.b) * x.groups.by + at.head;
    const auto candidates = [&](int token, int split) {
      return x.candidates +
             ((sequence_head * x.problem.len_q + at.first + token) * x.splits.by + split) * x.capacity;
    };
    for (int n = 0; n < tokens.y; ++n)
      for (int e = lane; e < x.capacity; e += 32)
        candidates(tokens.x + n, at.split)[e] =
            e < states[tokens.x + n].count ? list_of(tokens.x + n)[e] : uint64_t(0);
    if (!this->is_last(sequence_head * x.token_blocks.by + at.block)) return;
    for (int n = 0; n < tokens.y; ++n) {
      const int token = tokens.x + n, most = states[token].most, all = int(x.splits.by) * x.capacity;
      const uint64_t* keys = candidates(token, 0);
      const auto better = [&](uint64_t limit) {
        uint64_t found = 0;
#pragma unroll 4
        for (int i = lane; i < all; i += 32) {
          const uint64_t key = __ldcg(keys + i);
          if (key < limit && key > found) found = key;
        }
        return found;
      };
      const int count = take_best(most, list_of(token), better);
      if (lane == 0) states[token].count = count;
    }
    __syncwarp();
    store(at, tokens);
  }
};

template <class T, int Dim>
__global__ void __launch_bounds__(kSelectThreads, select_blocks(Dim))
    select_kernel(const __grid_constant__ SelectParams params) {
  extern __shared__ __align__(128) char shared[];
  __shared__ SelectPlace place;  // read at the edges of the loop, where registers are scarce
  Select<T, Dim> s(params, shared);
  s.run(place);
}

}  // namespace attune::sm80
