// SPDX-License-Identifier: Apache-2.0
// sm80_forward: host side of sm80/forward/kernel.h. It selects a compiled kernel, packs the query heads of a GQA group
// into one CTA where queries are few, and splits the keys where the grid would leave SMs idle.
#include <algorithm>
#include <cmath>

#include "attention/gpu/append.h"
#include "attention/gpu/list_order.h"
#include "attention/gpu/refusal.h"
#include "attention/sm80/decode/host.h"
#include "attention/sm80/forward/instances.h"
#include "core/check.h"
#include "plan/backend.h"

namespace attune {
namespace {

using sm80::ForwardKernel;

struct OrderParams {
  Problem problem;
  DenseArgs args;
  sm80::ListOrder order;
};
__global__ void __launch_bounds__(1024) order_kernel(const __grid_constant__ OrderParams x) {
  sm80::find_order<1024>(x.order, x.problem, x.args);
}

constexpr std::string_view kWho = "sm80_forward";
constexpr int kLeastKeysOfSplit = 256;  // below, the combine costs more than the split saves
constexpr int64_t kMostBlocks = INT32_MAX;
constexpr double kMostWasted = 1.3;              // below, the larger tile is still faster
constexpr int64_t kShortDiagonal = 1 << 15;      // keys * dim: 512 keys at d64
constexpr int64_t kShort = 512, kNarrow = 2048;  // keys
constexpr int kSmallTileQ = 64;                  // of the kernels for few rows, short masks and small blocks

// Plan::kernel is an index into these tables.
constexpr cuda::KernelTable<ForwardKernel> kKernels[] = {sm80::forward_kernels_64, sm80::forward_kernels_96,
                                                         sm80::forward_kernels_128, sm80::forward_kernels_192,
                                                         sm80::forward_kernels_256};

ForwardKernel& kernel_of(const Plan& plan) { return cuda::kernel_at(kKernels, plan.kernel); }

int heads_per_key(const Problem& p) { return p.heads_q / p.heads_kv; }

// Query heads packed into one CTA: 1 with options and lists, which differ by head. The bits of a row do not depend on
// the other rows of its CTA.
int group_of(const Problem& p, const ForwardKernel& k) {
  return k.with_options || p.mask.blocks.q || p.len_q >= k.tile_q ? 1 : heads_per_key(p);
}

// Query tiles per query block of the list.
int64_t query_tiles_per_block(const Problem& p, const ForwardKernel& k) {
  return p.mask.blocks.q ? ceil_div(p.mask.blocks.q, k.tile_q) : 1;
}

int64_t row_blocks(const Problem& p, const ForwardKernel& k) {
  if (const int size = p.mask.blocks.q) return ceil_div(p.len_q, size) * query_tiles_per_block(p, k);
  return ceil_div(int64_t(p.len_q) * group_of(p, k), k.tile_q);
}

// Key tiles per key block of the list.
int64_t key_tiles_per_block(const Problem& p, const ForwardKernel& k) {
  return p.mask.blocks.k ? ceil_div(p.mask.blocks.k, k.tile_k) : 1;
}

// Packed heads of all sequences.
int64_t heads_total(const Problem& p, const ForwardKernel& k) {
  return int64_t(p.batch) * (p.heads_q / group_of(p, k));
}

// Upper bound on the keys that one query tile sees.
int64_t keys_seen(const Problem& p, const ForwardKernel& k) {
  const Mask& m = p.mask;
  if (m.kind != MaskKind::window || m.left == kNoLimit || m.right == kNoLimit) return p.len_k;
  return std::min<int64_t>(p.len_k, (int64_t(m.left) + m.right + k.tile_q) / m.k_step + 2);
}

// Tiles are computed whole at both edges of a mask, so with a narrow window much of a large tile is masked.
bool is_narrow(const Mask& m) {
  return m.kind == MaskKind::window && m.left != kNoLimit && m.right != kNoLimit &&
         (int64_t(m.left) + m.right + 1) / m.k_step <= kNarrow;
}

// Ratio of the area of a kernel's tiles to the area of the list's blocks that they cover.
double wasted(const Problem& p, const ForwardKernel& k) {
  const Blocks size = p.mask.blocks;
  if (!size.q) return 1;
  return double(round_up(size.q, k.tile_q)) * double(round_up(size.k, k.tile_k)) / (double(size.q) * size.k);
}

int blocks_at_once(const ForwardKernel& k, const Device& d) {
  return d.units * std::clamp(cuda::shared_limit(d.arch) / k.shared_bytes, 1, k.blocks_per_sm);
}

// One CTA combines all splits. A split takes it about half as long as a key tile, so the number of splits is bounded
// where both take the same time.
int most_splits(int64_t keys, int tile_k, int64_t free) {
  const auto even = int64_t(std::sqrt(2. * double(keys) / tile_k));
  return int(std::clamp<int64_t>(std::min({free, keys / kLeastKeysOfSplit, even}), 1, sm80::kMostForwardSplits));
}

struct Partial { float *out, *lse; uint32_t* arrived; int32_t* order; };

Partial carve(Workspace& ws, const Plan& plan) {
  const Problem& p = plan.problem;
  const ForwardKernel& k = kernel_of(plan);
  const int64_t blocks = heads_total(p, k) * row_blocks(p, k);
  Partial made{};
  // Row lengths of a list vary, which matters when not all CTAs are resident at once.
  if (plan.splits == 1 && p.mask.blocks.q && blocks > blocks_at_once(k, plan.device))
    made.order = ws.take<int32_t>(size_t(blocks));
  if (plan.splits == 1) return made;
  const size_t rows = size_t(plan.splits) * size_t(p.batch) * size_t(p.heads_q) * size_t(p.len_q);
  made.out = ws.take<float>(rows * size_t(p.dim_v));
  made.lse = ws.take<float>(rows);
  made.arrived = ws.take<uint32_t>(size_t(blocks));
  return made;
}

Status supports(const Problem& p, const Device& d) {
  return cuda::Refusal(kWho, p, d).needs_arch_from(80).pass(Pass::forward).no_variant().without({Option::descale})
      .half_inputs().out_like_q_or_f32().dims(8, 256).status();
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  Workspace count;
  carve_rotated(count, p);
  const sm80::DecodeShare decoded = sm80::decode_share(p);
  if (decoded != sm80::DecodeShare::none)
    if (Status s = sm80::decode_shape(plan, count); !s.ok()) return s;
  plan.workspace_bytes = count.used;
  if (decoded == sm80::DecodeShare::all) return Status::good();
  const bool options = needs_general(p);
  const bool one_tile = int64_t(p.len_q) * (options ? 1 : heads_per_key(p)) <= kSmallTileQ;
  const auto fits = [&](const ForwardKernel& k) {
    return k.with_options == options && k.dim >= p.dim_qk && k.dim_v >= p.dim_v &&
           k.shared_bytes <= cuda::shared_limit(plan.device.arch);
  };
  // The smaller tile serves few queries and short causal masks, where the diagonal wastes half of a large tile. Not
  // with repro=batch: the choice depends on length bounds, which depend on the batch.
  const bool diagonal = p.mask.kind == MaskKind::causal && int64_t(p.len_k) * p.dim_qk <= kShortDiagonal;
  const bool bounds = p.reproducible != Reproducible::batch, small = bounds && (one_tile || diagonal);
  const ForwardKernel *k = nullptr, *plain = cuda::find_kernel(kKernels, fits);
  if (plain) {  // other kernels of the same head dim
    const auto other = [&](int tile_k, int threads) {
      const auto wanted = [&](const ForwardKernel& x) {
        return fits(x) && x.dim == plain->dim && x.tile_q <= kSmallTileQ && x.tile_k == tile_k && x.threads == threads;
      };
      if (!k) k = cuda::find_kernel(kKernels, wanted, &plan.kernel);
    };
    // Kernels of two warps give each warp 32 rows, so products wait less for shared memory. With four CTAs per SM, one
    // runs its prologue or epilogue beside the products of the other three.
    const bool list = p.mask.blocks.q > 0, lower = small || wasted(p, *plain) > kMostWasted;
    if (list ? lower : is_narrow(p.mask)) other(64, 64);
    if (lower) other(64, 128);
    if (!list && bounds && p.mask.kind == MaskKind::full && p.len_k <= kShort) other(128, 64);
  }
  if (!k) k = cuda::find_kernel(kKernels, fits, &plan.kernel);
  if (!k)
    return Status::unsupported(kWho, ": has no kernel for dims ", p.dim_qk, " and ", p.dim_v,
                               " within the shared memory of ", plan.device.name);
  plan.tile_q = k->tile_q, plan.tile_k = k->tile_k, plan.splits = 1;
  const int64_t blocks = heads_total(p, *k) * row_blocks(p, *k), at_once = blocks_at_once(*k, plan.device);
  if (blocks > kMostBlocks) return Status::unsupported(kWho, ": ", blocks, " blocks are over 2^31 - 1");
  if (p.reproducible != Reproducible::batch && blocks > 0 && blocks * 5 < at_once * 4)
    plan.splits = most_splits(keys_seen(p, *k), k->tile_k, at_once / blocks);
  carve(count, plan);
  plan.workspace_bytes = count.used;
  return Status::good();
}

// Loads and stores are 16 bytes wide.
Status fits(const Plan&, const Args& a) { return check_aligned16(kWho, a, {Role::q, Role::k, Role::v, Role::out}); }

Status attend(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Problem& p = plan.problem;
  const sm80::DecodeShare decoded = sm80::decode_share(p);
  if (decoded != sm80::DecodeShare::none)
    if (Status s = sm80::decode_run(plan, a, ws, stream); !s.ok() || decoded == sm80::DecodeShare::all) return s;
  ForwardKernel& k = kernel_of(plan);
  const int64_t counters = heads_total(p, k) * row_blocks(p, k), blocks = counters * plan.splits;
  if (!blocks) return Status::good();
  const Partial partial = carve(ws, plan);
  const bool uniform = !has_sequence_tensors(a), paged = p.keys == KeySource::paged;
  const sm80::ForwardParams params{.q = sm80::byte_rows(a[Role::q]),
                                   .k = paged ? sm80::ByteRows{} : sm80::byte_rows(a[Role::k]),
                                   .v = paged ? sm80::ByteRows{} : sm80::byte_rows(a[Role::v]),
                                   .out = sm80::byte_rows(a[Role::out]),
                                   .group = Divisor(uint32_t(group_of(p, k))),
                                   .row_blocks = Divisor(uint32_t(row_blocks(p, k))),
                                   .splits = Divisor(uint32_t(plan.splits)),
                                   .packed_heads = Divisor(uint32_t(p.heads_q / group_of(p, k))),
                                   .batch = Divisor(uint32_t(p.batch)),
                                   .heads_per_key = Divisor(uint32_t(heads_per_key(p))),
                                   .tiles_per_block = Divisor(uint32_t(key_tiles_per_block(p, k))),
                                   .order = partial.order,
                                   .decode_rows = decoded == sm80::DecodeShare::some ? sm80::kMostDecodeRows : 0u,
                                   .uniform = uniform,
                                   .seq = uniform ? sequence(p, a, 0) : Sequence{},
                                   .problem = p,
                                   .args = dense(a),
                                   .partial_out = partial.out,
                                   .partial_lse = partial.lse,
                                   .arrived = partial.arrived};
  const cuda::Launcher launcher(kWho, p, a[Role::q].device_index, stream);
  if (!launcher.status.ok()) return launcher.status;
  if (plan.splits > 1)
    if (Status s = launcher.zero(partial.arrived, size_t(counters) * sizeof(uint32_t)); !s.ok()) return s;
  if (partial.order) {
    static constinit cuda::SharedMemoryOptIn ready;
    const OrderParams order{p, params.args,
                            {.place = partial.order, .begin = Role::block_begin, .tiles = params.row_blocks,
                             .heads = params.packed_heads,
                             .tiles_per_block = Divisor(uint32_t(query_tiles_per_block(p, k))),
                             .batch = uint32_t(p.batch), .group = 1, .falling = true, .by_tile = !uniform}};
    if (Status s = launcher({.kernel = cuda::address(order_kernel), .ready = &ready, .blocks = 1, .threads = 1024},
                            order);
        !s.ok())
      return s;
  }
  cuda::Launch launch = cuda::launch_of(k, p.dtype.q);
  launch.blocks = blocks;
  return launcher(launch, params);
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  if (Status s = fits(plan, a); !s.ok()) return s;
  return cuda::append_then(attend, plan, a, ws, stream);
}

}  // namespace

extern const Backend sm80_forward{.name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
