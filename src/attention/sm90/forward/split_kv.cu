#include "attention/sm90/forward/split_kv.h"

#include <algorithm>
#include <iterator>

#include "attention/sm90/forward/split_kv_host.h"
#include "attention/sm90/schedule.h"
#include "core/check.h"
#include "core/score.h"
#include "machine/cuda/kernels.h"
#include "machine/cuda/tensor_map.h"

namespace attune::sm90 {
namespace {

using FewFunction = void (*)(FewParams);

struct FewKernel {
  int dim, tile_k, groups, blocks_per_sm, threads, shared_bytes;
  FewFunction function[2];  // f16, bf16
  cuda::Ready ready[2]{};   // theirs
};

template <int Dim, int TileK, int Groups, int BlocksPerSm>
constexpr FewKernel few_kernel_row() {
  using F = FewShape<F16, Dim, TileK, Groups>;
  using B = FewShape<Bf16, Dim, TileK, Groups>;
  return {Dim, TileK, Groups, BlocksPerSm, F::kThreads, F::kSharedBytes,
          {few_kernel<F, BlocksPerSm>, few_kernel<B, BlocksPerSm>}};
}

// dim, keys a tile, warpgroups, blocks a multiprocessor; kWays has the time of each.
constinit FewKernel kKernels[] = {
    few_kernel_row<64, 64, 4, 1>(),
    few_kernel_row<64, 64, 2, 2>(),
    few_kernel_row<128, 64, 2, 1>(),
};

}  // namespace

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
