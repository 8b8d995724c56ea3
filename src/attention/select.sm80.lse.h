// The log-sum-exp of the compressed attention, for a selection that was given none. It exists so that a decode selects
// as the prefill did, to the bit: kLseTiles tiles of keys make a part of their own and parts are merged in their order,
// whether one block did them all or several did some each.
#pragma once
#include "attention/select.sm80.rows.h"

namespace attune::sm80 {

template <class T, int Dim>
struct SelectLse : SelectRows<T, Dim> {
  using Base = SelectRows<T, Dim>;
  using Base::Base, Base::kM, Base::kN, Base::lane, Base::nsa, Base::warp, Base::x;
  using Base::head_of, Base::position, Base::row_of, Base::there, Base::token_of;
  static constexpr float kLazy = 8.f;  // a reference moves only when the maximum grew by more than 2^kLazy

  // A part: the reference of its exponents (base 2) and their sum. Written out, so that both callers round alike.
  __device__ static float2 merged(float2 a, float2 b) {
    const float top = fmaxf(a.x, b.x);
    if (top == -INFINITY) return a;
    return {top, fmaf(b.y, exp2_fast(b.x - top), __fmul_rn(a.y, exp2_fast(a.x - top)))};
  }
  __device__ static float lse_of_part(float2 part) {
    return part.y == 0.f ? -INFINITY : __fmul_rn(__fadd_rn(part.x, log2f(part.y)), kLn2);
  }
  __device__ int seen(const SelectPlace& at, int row) const {
    return there(at, row) ? clamp(nsa.visible(position(at, token_of(row))), 0, at.seq.keys) : 0;
  }

  // A thread a row at both ends, and `total` a row's parts so far.
  __device__ void run(SelectPlace& at, float2* total) {
    static_assert(kSelectThreads == kSelectRows);
    if (threadIdx.x == 0) {
      at = this->find_place();
      this->share_tiles(at, clamp(nsa.visible(position(at, at.count - 1)), 0, at.seq.keys), 0, kLseTiles);
    }
    __syncthreads();
    if (at.count <= 0) return;
    const int row = threadIdx.x;
    total[row] = {-INFINITY, 0.f};
    __syncthreads();
    if (at.tiles > 0) walk(at, total);
    if (x.splits.by == 1) {
      __syncthreads();
      if (there(at, row)) *this->lse_of(at, row) = lse_of_part(total[row]);
      return;
    }
    const int64_t unit = int64_t(at.b) * x.groups.by + at.head;
    if (!this->is_last(unit * x.token_blocks.by + at.block) || !there(at, row)) return;
    const int count = (seen(at, row) + kLseTiles * kSelectKeys - 1) / (kLseTiles * kSelectKeys);
    float2 all = {-INFINITY, 0.f};
    for (int n = 0; n < count; ++n) all = merged(all, __ldcg(part(at, row) + n));
    *this->lse_of(at, row) = lse_of_part(all);
  }
  __device__ float2* part(const SelectPlace& at, int row) const {
    const int64_t head = int64_t(at.b) * x.problem.heads_q + at.head * x.group + head_of(row);
    return x.parts + (head * x.problem.len_q + at.first + token_of(row)) * x.chunks;
  }

  __device__ void walk(const SelectPlace& at, float2* total) {
    this->load_q(at);
    int last[kM][2];
    float ref[kM][2], sum[kM][2];
#pragma unroll
    for (int n = 0; n < 2 * kM; ++n) last[n / 2][n % 2] = seen(at, row_of(n / 2, n % 2)) - lane % 4 * 2;
    const int end = at.first_tile + at.tiles;
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
          admit(s[m], half, last[m][half] - opaque(tile) * kSelectKeys, ref[m][half], sum[m][half]);
          if (!done) continue;
          const float2 now = {ref[m][half], row_sum(sum[m][half])};
          const int row = row_of(m, half);
          if (lane % 4 || !there(at, row)) continue;
          if (x.splits.by == 1) total[row] = merged(total[row], now);
          else part(at, row)[tile / kLseTiles] = now;
        }
    }
  }
  // The columns of one row, those from `until` on hidden.
  __device__ void admit(Accumulator (&s)[kN], int half, int until, float& ref, float& sum) const {
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& y = s[n].c[2 * half + e];
        y = n * 8 + e < until ? __fmul_rn(y, x.scale) : -INFINITY;
        top = fmaxf(top, y);
      }
    top = row_max(top);
    if (top > ref + kLazy) sum = __fmul_rn(sum, exp2_fast(ref - top)), ref = top;
    const float shift = ref == -INFINITY ? 0.f : ref;
    float more = 0.f;
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) more = __fadd_rn(more, exp2_fast(__fadd_rn(s[n].c[2 * half + e], -shift)));
    sum = __fadd_rn(sum, more);
  }
};

template <class T, int Dim>
__global__ void __launch_bounds__(kSelectThreads, 2) select_lse_kernel(const __grid_constant__ SelectParams params) {
  extern __shared__ __align__(128) char shared[];
  __shared__ SelectPlace place;
  __shared__ float2 total[kSelectRows];
  SelectLse<T, Dim> s(params, shared);
  s.run(place, total);
}

}  // namespace attune::sm80
