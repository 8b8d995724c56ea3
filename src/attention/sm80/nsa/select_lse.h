// SPDX-License-Identifier: Apache-2.0
// Log-sum-exp of the compressed attention, for a selection without a given one. It makes a decode select as the prefill
// did, to the bit: kLseTiles key tiles form one partial result, and partial results are combined in order, whether one
// CTA computed them all or several CTAs some each.
#pragma once
#include "attention/sm80/nsa/select_rows.h"

namespace attune::sm80 {

template <class T, int Dim>
struct SelectLse : SelectRows<T, Dim> {
  using Base = SelectRows<T, Dim>;
  using Base::Base, Base::kM, Base::kN, Base::lane, Base::nsa, Base::warp, Base::x;
  using Base::head_of, Base::position, Base::row_of, Base::there, Base::token_of;
  static constexpr float kLazy = 8.f;          // a reference moves only when the maximum grew by more than 2^kLazy
  static constexpr float kMostSum = 0x1p100f;  // exceeded only within the rounding of logits

  // Combines two partial results: the reference of the exponents (base 2) and their sum. Spelled out, so that both
  // callers round alike.
  __device__ static float2 combined(float2 a, float2 b) {
    const float top = fmaxf(a.x, b.x);
    if (top == -INFINITY) return a;
    return {top, fmaf(b.y, exp2_fast(b.x - top), __fmul_rn(a.y, exp2_fast(a.x - top)))};
  }
  __device__ static float lse_of_partial(float2 partial) {
    return partial.y == 0.f ? -INFINITY : __fmul_rn(__fadd_rn(partial.x, log2f(partial.y)), kLn2);
  }
  __device__ int seen(const SelectPlace& at, int row) const {
    return there(at, row) ? this->seen_from(at, position(at, token_of(row))) : 0;
  }

  // One thread per row at both ends. Shared memory holds, for every row, the result so far and the keys it sees.
  __device__ void run(SelectPlace& at, float2* total, int* last) {
    static_assert(kSelectThreads == kSelectRows);
    if (threadIdx.x == 0) {
      at = this->find_place();
      this->split_tiles(at, this->seen_from(at, position(at, at.count - 1)), 0, kLseTiles);
    }
    __syncthreads();
    if (at.count <= 0) return;
    const int row = threadIdx.x;
    total[row] = {-INFINITY, 0.f}, last[row] = seen(at, row);
    __syncthreads();
    if (at.tiles > 0) walk(at, total, last);
    if (x.splits.by == 1) {
      __syncthreads();
      if (there(at, row)) *this->lse_of(at, row) = lse_of_partial(total[row]);
      return;
    }
    const int64_t sequence_head = int64_t(at.b) * x.groups.by + at.head;
    if (!this->is_last(sequence_head * x.token_blocks.by + at.block) || !there(at, row)) return;
    const int count = (last[row] + kLseTiles * kSelectKeys - 1) / (kLseTiles * kSelectKeys);
    float2 all = {-INFINITY, 0.f};
    for (int n = 0; n < count; ++n) all = combined(all, __ldcg(partial(at, row) + n));
    *this->lse_of(at, row) = lse_of_partial(all);
  }
  __device__ float2* partial(const SelectPlace& at, int row) const {
    const int64_t head = int64_t(at.b) * x.problem.heads_q + at.head * x.group + head_of(row);
    return x.partial_lse + (head * x.problem.len_q + at.first + token_of(row)) * x.chunks;
  }

  __device__ void walk(const SelectPlace& at, float2* total, const int* last) {
    this->load_q(at);
    float ref[kM][2], sum[kM][2];
    // `open`: keys that every row sees.
    const int end = at.first_tile + at.tiles, open = this->seen_from(at, position(at, 0));
    this->load_keys(at, at.first_tile);
    for (int tile = at.first_tile; tile < end; ++tile) {
      wait_groups<0>();
      __syncthreads();
      if (tile + 1 < end) this->load_keys(at, tile + 1);
      Accumulator s[kM][kN];
      this->scores(s, tile);
      const bool fresh = tile % kLseTiles == 0, done = tile % kLseTiles == kLseTiles - 1;
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (fresh) ref[m][half] = -INFINITY, sum[m][half] = 0.f;
          if ((tile + 1) * kSelectKeys > open)
            hide(s[m], half, last[row_of(m, half)] - opaque(tile) * kSelectKeys - lane % 4 * 2);
          admit(s[m], half, ref[m][half], sum[m][half]);
          if (!done) continue;
          const float2 now = {ref[m][half], row_sum(sum[m][half])};
          const int row = row_of(m, half);
          if (lane % 4 || !there(at, row)) continue;
          if (x.splits.by == 1) total[row] = combined(total[row], now);
          else partial(at, row)[tile / kLseTiles] = now;
        }
    }
  }
  // Masks the columns from `until` on in one row.
  __device__ void hide(Accumulator (&s)[kN], int half, int until) const {
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (n * 8 + e >= until) s[n].c[2 * half + e] = -INFINITY;
  }
  __device__ void admit(const Accumulator (&s)[kN], int half, float& ref, float& sum) const {
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < kN; ++n) top = fmaxf(top, fmaxf(s[n].c[2 * half], s[n].c[2 * half + 1]));
    top = __fmul_rd(row_max(top), x.scale);  // as in admit_tile()
    if (top > ref + kLazy) sum = __fmul_rn(sum, exp2_fast(ref - top)), ref = top;
    const float shift = ref == -INFINITY ? 0.f : ref;
    float more[2] = {};
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) more[e] = __fadd_rn(more[e], exp2_fast(fmaf(s[n].c[2 * half + e], x.scale, -shift)));
    sum = __fadd_rn(sum, __fadd_rn(more[0], more[1]));
    if (sum > kMostSum) sum = kMostSum;
  }
};

template <class T, int Dim>
__global__ void __launch_bounds__(kSelectThreads, select_blocks(Dim))
    select_lse_kernel(const __grid_constant__ SelectParams params) {
  extern __shared__ __align__(128) char shared[];
  __shared__ SelectPlace place;
  __shared__ float2 total[kSelectRows];
  __shared__ int last[kSelectRows];
  SelectLse<T, Dim> s(params, shared);
  s.run(place, total, last);
}

}  // namespace attune::sm80
