// SPDX-License-Identifier: Apache-2.0
// Transposes lse through shared memory: 32 queries of 32 heads per CTA. Both sides use 128-byte lines if heads are
// adjacent in memory.
#include "attention/cudnn/lse.h"
#include "machine/cuda/launcher.h"

namespace attune::cudnn {
namespace {

constexpr int kTile = 32, kRows = 8;

struct Params {
  View<const float> lse;
  float* to;  // [batch][head][query]
  int32_t tiles_q, tiles_h;
};

__global__ void __launch_bounds__(kTile* kRows) pack_lse_kernel(const __grid_constant__ Params x) {
  __shared__ float tile[kTile][kTile + 1];
  const auto [batch, seq, head, dim] = x.lse.extent;
  const int across = threadIdx.x % kTile, down = threadIdx.x / kTile;
  const int first_h = int(blockIdx.x % x.tiles_h) * kTile, first_q = int(blockIdx.x / x.tiles_h % x.tiles_q) * kTile;
  const int b = int(blockIdx.x / x.tiles_h / x.tiles_q);
  for (int n = down; n < kTile; n += kRows)
    if (first_q + n < seq && first_h + across < head) tile[n][across] = *x.lse.row(b, first_q + n, first_h + across);
  __syncthreads();
  for (int n = down; n < kTile; n += kRows)
    if (first_h + n < head && first_q + across < seq)
      x.to[(int64_t(b) * head + first_h + n) * seq + first_q + across] = tile[across][n];
}

}  // namespace

Status pack_lse(std::string_view who, const Plan& plan, const Tensor& lse, float* to, Stream stream) {
  static constinit cuda::SharedMemoryOptIn ready;
  const Params params{.lse = view<const float>(lse), .to = to, .tiles_q = int(ceil_div(lse.extent.seq, kTile)),
                      .tiles_h = int(ceil_div(lse.extent.head, kTile))};
  const cuda::Launcher launcher(who, plan.problem, plan.device.index, stream);
  if (!launcher.status.ok()) return launcher.status;
  return launcher({.kernel = cuda::address(pack_lse_kernel), .ready = &ready,
                   .blocks = int64_t(lse.extent.batch) * params.tiles_q * params.tiles_h,
                   .threads = kTile * kRows},
                  params);
}

}  // namespace attune::cudnn
