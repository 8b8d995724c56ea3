#include "attention/forward.sm90.few.h"

#include <algorithm>
#include <iterator>

#include "attention/forward.sm90.few.host.h"
#include "attention/limits.sm90.h"
#include "core/check.h"
#include "core/score.h"
#include "machine/cuda/kernels.h"
#include "machine/cuda/tensor_map.h"

namespace attune::sm90 {
namespace {

using FewFunction = void (*)(FewParams);

// How long a kernel takes, by a count of its steps, in microseconds: fitted to an H200. A tile of queries has a
// beginning and an end and its steps, blocks share the tiles evenly, and none is done before the longest is.
struct Cost {
  double start, tile, step;
  double crowd = 1;  // how much slower two blocks are that share a multiprocessor
};
constexpr Cost kPlainCost[] = {{3.0, 0.6, 1.24}, {3.0, 0.8, 1.8}};  // of 128 x 128, dims up to 64 and 128
constexpr int kMostRows = 1 << 15;      // of all heads: more fill the GPU

struct FewKernel {
  Cost cost;
  int dim, tile_k, groups, blocks_per_sm, threads, shared_bytes;
  FewFunction function[2];  // f16, bf16
  cuda::Ready ready[2]{};   // theirs
};

template <int Dim, int TileK, int Groups, int BlocksPerSm>
constexpr FewKernel few_kernel_row(Cost cost) {
  using F = FewShape<F16, Dim, TileK, Groups>;
  using B = FewShape<Bf16, Dim, TileK, Groups>;
  return {cost, Dim, TileK, Groups, BlocksPerSm, F::kThreads, F::kSharedBytes,
          {few_kernel<F, BlocksPerSm>, few_kernel<B, BlocksPerSm>}};
}

// dim, keys a tile, warpgroups, blocks a multiprocessor
constinit FewKernel kKernels[] = {
    few_kernel_row<64, 64, 4, 1>({2.6, 0.8, 1.55}),
    few_kernel_row<64, 64, 2, 2>({1.85, 0.8, 1.05, 1.45}),
    few_kernel_row<128, 64, 2, 1>({2.4, 0.9, 1.4}),
};

double time_of(const Problem& p, const Cost& cost, int tile_q, int tile_k, int groups, int units, int packed = 1) {
  const BandWalk walk{band_of(p.mask, p.len_q, p.len_k, 0, 0), p.len_k, tile_k};
  const double heads = double(p.batch) * p.heads_q / packed;
  double all = 0, longest = 0;
  for (int row = 0; row < p.len_q; row += tile_q) {
    const int tiles = walk.tiles({row, std::min(row + tile_q, p.len_q)});
    const double time = cost.tile + cost.step * double(std::max<int64_t>(1, ceil_div(tiles, groups)));
    all += time, longest = std::max(longest, time);
  }
  const bool crowded = cost.crowd > 1 && double(ceil_div(p.len_q, tile_q)) * heads > units;
  if (crowded) longest *= cost.crowd, all *= cost.crowd / 2;
  return cost.start + std::max(longest, all * heads / units);
}

}  // namespace

int packed_heads(const Problem& p, int rows, int tile_q, int units) {
  const int group = p.heads_q / p.heads_kv;
  int heads = tile_q == 128 ? group & -group : 1;  // the largest power of two that divides it
  while (heads > 1 && (tile_q / heads < 16 || tile_q / heads < rows)) heads /= 2;
  const int64_t tiles = int64_t(p.batch) * p.heads_q * ceil_div(rows, tile_q);
  return ceil_div(tiles / heads, units) < ceil_div(tiles, units) ? heads : 1;
}

void few_shape(Plan& plan) {
  const Problem& p = plan.problem;
  const bool plain = !p.options && p.keys == KeySource::linear && !p.mask.blocks.q && p.mask.k_step == 1 &&
                     p.mask.k_phase == 0 && p.mask.align != Align::absolute;
  const int dim = std::max(p.dim_qk, p.dim_v);
  if (!plain || dim > 128 || int64_t(p.batch) * p.heads_q * p.len_q > kMostRows) return;
  const int units = plan.device.units;
  double least = time_of(p, kPlainCost[dim > 64], 128, 128, 1, units, packed_heads(p, p.len_q, 128, units));
  for (const FewKernel& k : kKernels) {
    if (k.dim != (dim > 64 ? 128 : 64)) continue;
    const double time = time_of(p, k.cost, kFewQueries, k.tile_k, k.groups, units);
    if (time < least) least = time, plan.tile_q = kFewQueries, plan.tile_k = k.tile_k, plan.splits = k.groups;
  }
}

Status few_run(std::string_view who, const Plan& plan, const Args& a, Stream stream) {
  const Problem& p = plan.problem;
  FewKernel& k = *std::find_if(std::begin(kKernels), std::end(kKernels), [&](const FewKernel& x) {
    return x.groups == plan.splits && std::max(p.dim_qk, p.dim_v) <= x.dim;
  });
  const int rows = a[Role::q].extent.seq, keys = a[Role::k].extent.seq;
  const Band band = band_of(p.mask, rows, keys, 0, 0);
  FewParams x{.scale = scale_of(p, a) * kLog2e,
              .rows = rows,
              .keys = keys,
              .left = far(band.left),
              .right = far(band.right),
              .offset = far(band.q_first - band.k_first),
              .tiles_of_head = int(ceil_div(rows, kFewQueries)),
              .tiles = int(ceil_div(rows, kFewQueries)) * p.batch * p.heads_q,
              .units = Divisor(uint32_t(p.batch * p.heads_q)),
              .heads = Divisor(uint32_t(p.heads_q)),
              .heads_per_key = Divisor(uint32_t(p.heads_q / p.heads_kv)),
              .longest_first = p.mask.kind != MaskKind::full,
              .wide = p.dtype.out == DType::f32,
              .out = static_cast<char*>(a[Role::out].data),
              .out_stride = a[Role::out].stride,
              .dim_v = p.dim_v};
  if (a.given(Role::lse)) x.lse = static_cast<float*>(a[Role::lse].data), x.lse_stride = a[Role::lse].stride;
  const struct { Role role; CUtensorMap* map; int tile; } maps[] = {
      {Role::q, &x.q, kFewQueries}, {Role::k, &x.k, k.tile_k}, {Role::v, &x.v, k.tile_k}};
  for (const auto& [role, map, tile] : maps)
    if (Status s = cuda::tensor_map(a[role], tile, *map); !s.ok())
      return Status::no(who, ": ", name(role), ": ", s.message, ", in: ", name(p));
  const cuda::Use use(a[Role::q].device_index);
  if (!use.status.ok()) return Status::no(who, ": ", use.status.message, ", in: ", name(p));
  cuda::Launch launch = cuda::launch_of(k, p.dtype.q);
  launch.who = who, launch.blocks = std::min(plan.device.units * k.blocks_per_sm, x.tiles), launch.early = true;
  launch.device = a[Role::q].device_index, launch.stream = stream;
  return cuda::launch(launch, p, &x);
}

}  // namespace attune::sm90
