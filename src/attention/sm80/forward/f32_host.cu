// SPDX-License-Identifier: Apache-2.0
// sm80_forward_f32: host side of sm80/forward/f32_kernel.h. One kernel for each of three widths and two precisions; one
// launch.
#include "attention/gpu/append.h"
#include "attention/sm80/f32_host.h"
#include "attention/sm80/forward/f32_kernel.h"

namespace attune {
namespace {

constexpr std::string_view kWho = "sm80_forward_f32";

struct Kernel {
  int dim, tile_q, tile_k, threads, shared_bytes;  // dim: largest head dim of q and v
  void (*function[2])(sm80::F32Call);              // tf32, tf32x3
  cuda::SharedMemoryOptIn ready[2]{};
};

template <sm80::ForwardF32Config C>
constexpr Kernel instance() {
  using One = sm80::ForwardF32<C, false>;
  using Three = sm80::ForwardF32<C, true>;
  static_assert(One::kSharedBytes <= cuda::shared_limit(89));
  return {.dim = C.dim,
          .tile_q = C.tile_q,
          .tile_k = C.tile_k,
          .threads = One::kThreads,
          .shared_bytes = One::kSharedBytes,
          .function = {sm80::forward_f32_kernel<One>, sm80::forward_f32_kernel<Three>}};
}

using Config = sm80::ForwardF32Config;
constinit Kernel kKernels[] = {instance<Config{.dim = 64, .tile_q = 128, .tile_k = 64, .warps = 4}>(),
                               instance<Config{.dim = 128, .tile_q = 128, .tile_k = 32, .warps = 4}>(),
                               instance<Config{.dim = 256, .tile_q = 64, .tile_k = 16, .warps = 4}>()};

int64_t tiles(const Problem& p, const Kernel& k) { return sm80::f32_tiles(p.len_q, p.mask.blocks.q, k.tile_q); }
int64_t heads(const Problem& p) { return int64_t(p.batch) * p.heads_q; }

Status supports(const Problem& p, const Device& d) {
  return sm80::f32_refusal(kWho, Pass::forward, p, d).status();
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  while (kKernels[plan.kernel].dim < std::max(p.dim_qk, p.dim_v)) ++plan.kernel;
  const Kernel& k = kKernels[plan.kernel];
  plan.tile_q = k.tile_q, plan.tile_k = k.tile_k;
  if (const int64_t blocks = tiles(p, k) * heads(p); blocks > sm80::kF32MostBlocks)
    return Status::unsupported(kWho, ": ", blocks, " blocks are over 2^31 - 1");
  Workspace count;
  carve_rotated(count, p);
  plan.workspace_bytes = count.used;
  return Status::good();
}

Status attend(const Plan& plan, const Args& a, Workspace, Stream stream) {
  const Problem& p = plan.problem;
  Kernel& k = kKernels[plan.kernel];
  if (!tiles(p, k)) return Status::good();
  sm80::F32Call call = sm80::f32_call(p, a);
  call.tiles = int(tiles(p, k));
  const cuda::Launcher launcher(kWho, p, a[Role::q].device_index, stream);
  if (!launcher.status.ok()) return launcher.status;
  const int precision = p.precision == Precision::tf32x3;
  return launcher({.kernel = cuda::address(k.function[precision]), .ready = &k.ready[precision],
                   .blocks = call.tiles * heads(p), .threads = k.threads, .shared_bytes = k.shared_bytes},
                  call);
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  return cuda::append_then(attend, plan, a, ws, stream);
}

}  // namespace

extern const Backend sm80_forward_f32{.name = kWho, .supports = supports, .shape = shape, .run = run};

}  // namespace attune
