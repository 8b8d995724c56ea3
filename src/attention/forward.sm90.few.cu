#include "attention/forward.sm90.few.h"

#include <algorithm>
#include <iterator>

#include "attention/forward.sm90.few.host.h"
#include "core/check.h"
#include "core/score.h"
#include "machine/cuda/launch.h"
#include "machine/cuda/tensor_map.h"

namespace attune::sm90 {
namespace {

using FewFunction = void (*)(FewParams);

// How long a kernel takes by a count of its steps, in cycles: a tile of queries has a beginning and an end and its
// steps, blocks share the tiles evenly, and none is done before the longest is.
struct Cost { double tile, step; };
constexpr Cost kPlainCost[] = {{1500, 1150}, {1800, 2050}};  // of 128 queries and 128 keys, dims up to 64 and 128
constexpr int kMostRows = 1 << 15;      // of all heads: more fill the GPU
constexpr int kTileQ = 64;

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
    few_kernel_row<64, 64, 4, 1>({1900, 950}),
    few_kernel_row<64, 64, 2, 2>({1500, 850}),
    few_kernel_row<128, 64, 2, 1>({2000, 1150}),
};

double cycles(const Problem& p, Cost cost, int tile_q, int tile_k, int groups, double blocks) {
  const Band band = band_of(p.mask, p.len_q, p.len_k, 0, 0);
  const BandWalk walk{band, p.len_k, tile_k};
  double all = 0, longest = 0;
  for (int row = 0; row < p.len_q; row += tile_q) {
    const int tiles = walk.tiles({row, std::min(row + tile_q, p.len_q)});
    const double time = cost.tile + cost.step * double(std::max<int64_t>(1, ceil_div(tiles, groups)));
    all += time, longest = std::max(longest, time);
  }
  return std::max(longest, all * p.batch * p.heads_q / blocks);
}

}  // namespace

int few_groups(const Problem& p, const Device& d) {
  const bool plain = !p.options && p.keys == KeySource::linear && !p.mask.blocks.q && p.mask.k_step == 1 &&
                     p.mask.k_phase == 0 && p.mask.align != Align::absolute;
  const int dim = std::max(p.dim_qk, p.dim_v);
  if (!plain || dim > 128 || int64_t(p.batch) * p.heads_q * p.len_q > kMostRows) return 1;
  double least = cycles(p, kPlainCost[dim > 64], 128, 128, 1, d.units);
  int groups = 1;
  for (const FewKernel& k : kKernels) {
    if (k.dim != (dim > 64 ? 128 : 64)) continue;
    const double time = cycles(p, k.cost, kTileQ, k.tile_k, k.groups, double(d.units) * k.blocks_per_sm);
    if (time < least) least = time, groups = k.groups;
  }
  return groups;
}

Status few_run(std::string_view who, const Plan& plan, const Args& a, Stream stream) {
  const Problem& p = plan.problem;
  FewKernel& k = *std::find_if(std::begin(kKernels), std::end(kKernels), [&](const FewKernel& x) {
    return x.groups == plan.splits && std::max(p.dim_qk, p.dim_v) <= x.dim;
  });
  constexpr int kFar = 1 << 28;  // a side without end
  const auto far = [](int64_t x) { return int(std::clamp<int64_t>(x, -kFar, kFar)); };
  const int rows = a[Role::q].extent.seq, keys = a[Role::k].extent.seq;
  const Band band = band_of(p.mask, rows, keys, 0, 0);
  FewParams x{.scale = scale_of(p, a) * kLog2e,
              .rows = rows,
              .keys = keys,
              .left = far(band.left),
              .right = far(band.right),
              .offset = far(band.q_first - band.k_first),
              .tiles_of_head = int(ceil_div(rows, kTileQ)),
              .tiles = int(ceil_div(rows, kTileQ)) * p.batch * p.heads_q,
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
      {Role::q, &x.q, kTileQ}, {Role::k, &x.k, k.tile_k}, {Role::v, &x.v, k.tile_k}};
  for (const auto& [role, map, tile] : maps)
    if (Status s = cuda::tensor_map(a[role], tile, *map); !s.ok())
      return Status::no(who, ": ", name(role), ": ", s.message, ", in: ", name(p));
  const cuda::Use use(a[Role::q].device_index);
  if (!use.status.ok()) return Status::no(who, ": ", use.status.message, ", in: ", name(p));
  const int type = p.dtype.q == DType::bf16;
  return cuda::launch({.who = who,
                       .kernel = reinterpret_cast<const void*>(k.function[type]),
                       .ready = &k.ready[type],
                       .blocks = std::min(plan.device.units * k.blocks_per_sm, x.tiles),
                       .threads = k.threads,
                       .shared_bytes = k.shared_bytes,
                       .device = a[Role::q].device_index,
                       .stream = stream,
                       .early = true},
                      p, &x);
}

}  // namespace attune::sm90
