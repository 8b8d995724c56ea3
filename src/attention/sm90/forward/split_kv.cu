// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/forward/split_kv.h"

#include <algorithm>
#include <iterator>

#include "attention/sm90/forward/split_kv_host.h"
#include "attention/sm90/schedule.h"
#include "attention/sm90/tensor_maps.h"
#include "core/check.h"
#include "core/score.h"
#include "machine/cuda/kernels.h"
#include "machine/cuda/launcher.h"

namespace attune::sm90 {
namespace {

using SplitKvFunction = void (*)(SplitKvParams);

struct SplitKvKernel {
  int dim, tile_k, groups, blocks_per_sm, threads, shared_bytes;
  SplitKvFunction function[2];         // f16, bf16
  cuda::SharedMemoryOptIn ready[2]{};  // of these functions
};

template <int Dim, int TileK, int Groups, int BlocksPerSm>
constexpr SplitKvKernel split_kv_instance() {
  using F = SplitKvLayout<F16, Dim, TileK, Groups>;
  using B = SplitKvLayout<Bf16, Dim, TileK, Groups>;
  return {Dim, TileK, Groups, BlocksPerSm, F::kThreads, F::kSharedBytes,
          {split_kv_kernel<F, BlocksPerSm>, split_kv_kernel<B, BlocksPerSm>}};
}

// Head dim, keys per tile, warpgroups, CTAs per SM; kTimeModels has the time of each.
constinit SplitKvKernel kKernels[] = {
    split_kv_instance<64, 64, 4, 1>(),
    split_kv_instance<64, 64, 2, 2>(),
    split_kv_instance<128, 64, 2, 1>(),
};

}  // namespace

Status split_kv_run(std::string_view who, const Plan& plan, const Args& a, Stream stream) {
  const Problem& p = plan.problem;
  SplitKvKernel* const k = std::find_if(std::begin(kKernels), std::end(kKernels), [&](const SplitKvKernel& x) {
    return x.groups == plan.splits && std::max(p.dim_qk, p.dim_v) <= x.dim;
  });
  if (k == std::end(kKernels))
    return Status::failure(Code::internal, who, ": no split-KV kernel has ", plan.splits, " warpgroups, in: ", name(p));
  const int rows = a[Role::q].extent.seq, keys = a[Role::k].extent.seq;
  const Band band = band_of(p.mask, rows, keys, 0, 0);
  SplitKvParams x{.scale = scale_of(p, a) * kLog2e,
                  .rows = rows,
                  .keys = keys,
                  .left = clamp_len(band.left),
                  .right = clamp_len(band.right),
                  .offset = clamp_len(band.q_first - band.k_first),
                  .tiles_of_head = int(ceil_div(rows, kSplitKvRows)),
                  .tiles = int(ceil_div(rows, kSplitKvRows)) * p.batch * p.heads_q,
                  .heads_total = Divisor(uint32_t(p.batch * p.heads_q)),
                  .heads = Divisor(uint32_t(p.heads_q)),
                  .heads_per_key = Divisor(uint32_t(p.heads_q / p.heads_kv)),
                  .longest_first = p.mask.kind != MaskKind::full,
                  .f32_out = p.dtype.out == DType::f32,
                  .out = static_cast<char*>(a[Role::out].data),
                  .out_stride = a[Role::out].stride,
                  .dim_v = p.dim_v};
  if (a.given(Role::lse)) x.lse = static_cast<float*>(a[Role::lse].data), x.lse_stride = a[Role::lse].stride;
  const Status mapped = make_maps(who, p, {{Role::q, a[Role::q], &x.q, kSplitKvRows},
                                           {Role::k, a[Role::k], &x.k, k->tile_k},
                                           {Role::v, a[Role::v], &x.v, k->tile_k}});
  if (!mapped.ok()) return mapped;
  const cuda::Launcher launcher(who, p, a[Role::q].device_index, stream);
  if (!launcher.status.ok()) return launcher.status;
  cuda::Launch launch = cuda::launch_of(*k, p.dtype.q);
  launch.blocks = std::min(plan.device.units * k->blocks_per_sm, x.tiles), launch.dependent = true;
  return launcher(launch, x);
}

}  // namespace attune::sm90
