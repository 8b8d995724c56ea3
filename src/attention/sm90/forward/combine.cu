// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/forward/combine.h"

#include "attention/sm90/forward/softmax.h"
#include "core/softmax.h"
#include "machine/cuda/launcher.h"
#include "machine/sm80/mma.h"
#include "machine/sm80/dependent_launch.h"

namespace attune::sm90 {
namespace {

constexpr int kMatrices = 2;  // 8-column matrices per CTA

// A warp has the rows of the corresponding warp of the forward kernel, and a lane what that lane had.
template <class T>
__global__ void __launch_bounds__(256) combine_kernel(const __grid_constant__ CombineParams x) {
  sm80::wait_for_previous();
  sm80::admit_next();
  const int slices = x.dim / (8 * kMatrices), tile = int(blockIdx.x) / slices, slice = int(blockIdx.x) % slices;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int first = x.stream_k.first_block(tile), last = x.stream_k.last_block(tile);
  const auto partial = [&](int block, int n) {
    return __ldcg(x.partials + (int64_t(StreamK::place(block, tile)) * x.warps + warp) * partial_size(x.dim) +
                  32 * n + lane);
  };
  // Keys are walked from the end, so the last CTA has the first ones. Unrolled to keep many loads in flight.
  float top[2] = {kNone, kNone}, sum[2] = {};
#pragma unroll 8
  for (int b = last; b >= first; --b) {
    const float4 rows = partial(b, x.dim / 8);
    top[0] = fmaxf(top[0], rows.x), top[1] = fmaxf(top[1], rows.y);
  }
  float4 all[kMatrices] = {};
#pragma unroll 4
  for (int b = last; b >= first; --b) {
    const float4 rows = partial(b, x.dim / 8);
    const float w[2] = {sm80::exp2_fast(rows.x - top[0]), sm80::exp2_fast(rows.y - top[1])};
    sum[0] += w[0] * rows.z, sum[1] += w[1] * rows.w;
#pragma unroll
    for (int n = 0; n < kMatrices; ++n) {
      const float4 o = partial(b, slice * kMatrices + n);
      all[n].x += w[0] * o.x, all[n].y += w[0] * o.y, all[n].z += w[1] * o.z, all[n].w += w[1] * o.w;
    }
  }
  const int index = x.first + tile, global_head = index / x.tiles_of_head, batch = global_head / x.heads,
            head = global_head % x.heads;
  const int row = (index - global_head * x.tiles_of_head) * x.warps * 16 + warp * 16 + lane / 4;
  T* const out = reinterpret_cast<T*>(x.out) + batch * x.out_stride.batch + head * x.out_stride.head;
  // 0: the row sees nothing.
  const float by[2] = {sum[0] == 0.f ? 0.f : 1.f / sum[0], sum[1] == 0.f ? 0.f : 1.f / sum[1]};
#pragma unroll
  for (int n = 0; n < kMatrices; ++n) {
    const int column = (slice * kMatrices + n) * 8 + lane % 4 * 2;
    if (column >= x.dim_v) break;
    if (row < x.rows)
      *reinterpret_cast<uint32_t*>(out + row * x.out_stride.seq + column) =
          sm80::pack<T>(all[n].x * by[0], all[n].y * by[0]);
    if (row + 8 < x.rows)
      *reinterpret_cast<uint32_t*>(out + (row + 8) * x.out_stride.seq + column) =
          sm80::pack<T>(all[n].z * by[1], all[n].w * by[1]);
  }
  if (!x.lse || slice > 0 || lane % 4 > 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (row + 8 * r < x.rows)
      x.lse[batch * x.lse_stride.batch + head * x.lse_stride.head + (row + 8 * r) * x.lse_stride.seq] =
          (top[r] + __log2f(sum[r])) * kLn2;
}

}  // namespace

Status combine_partials(const cuda::Launcher& launch, DType dtype, const CombineParams& x) {
  static constinit cuda::SharedMemoryOptIn ready[2];
  const bool bf16 = dtype == DType::bf16;
  return launch({.kernel = bf16 ? cuda::address(combine_kernel<Bf16>) : cuda::address(combine_kernel<F16>),
                 .ready = &ready[bf16],
                 .blocks = int64_t(x.stream_k.tiles) * (x.dim / (8 * kMatrices)),
                 .threads = x.warps * 32,
                 .dependent = true},
                x);
}

}  // namespace attune::sm90
