// SPDX-License-Identifier: Apache-2.0
// Decode kernels of sm80_forward: the instances and the host side of sm80/decode/kernel.h. The keys are split where the
// grid would leave SMs idle.
#include <algorithm>

#include "attention/sm80/decode/combine.h"
#include "attention/sm80/decode/instances.h"

namespace attune::sm80 {

std::span<DecodeKernel> decode_kernels() {
  // Shared memory: 192 KB per SM for one or two CTAs, or a single CTA of 96 KB.
  static constinit DecodeKernel all[] = {
      instance<DecodeConfig{.dim = 64, .keys = 32, .warps = 8}>(),
      instance<DecodeConfig{.dim = 64, .keys = 32}>(),
      instance<DecodeConfig{.dim = 64, .keys = 64, .stages = 6, .team = 4, .blocks_per_sm = 2}>(),
      instance<DecodeConfig{.dim = 128, .warps = 8}>(),
      instance<DecodeConfig{.dim = 128}>(),
      instance<DecodeConfig{.dim = 128, .keys = 64, .team = 4, .blocks_per_sm = 2}>(),
      instance<DecodeConfig{.dim = 256}>(),
      instance<DecodeConfig{.dim = 256, .stages = 2, .warps = 3}>(),
  };
  return all;
}

namespace {

constexpr std::string_view kWho = "sm80_forward";
// Cost of starting a CTA and of combining splits, in bytes that a CTA could have read meanwhile.
constexpr double kStartBytes = 70e3, kCombineBytes = 120e3, kSplitBytes = 512;
constexpr int kLeastKeys = 128;  // per split

int group_of(const Problem& p) { return p.heads_q / p.heads_kv; }
bool fixed(const Problem& p) { return p.reproducible == Reproducible::batch; }
int64_t rows_of(const Problem& p) { return std::min<int64_t>(int64_t(p.len_q) * group_of(p), kMostDecodeRows); }
int64_t row_blocks(const Problem& p, const DecodeKernel& k) { return ceil_div(rows_of(p), k.rows); }
int most_q(const Problem& p) { return std::min(p.len_q, kMostDecodeRows / group_of(p)); }

// Selects the smallest head dim that fits, then the kernel whose CTA holds all rows, or comes closest. With repro=batch
// the choice must not depend on the batch: 16 rows and the smaller CTA, because short splits are many and CTAs start
// one after another.
DecodeKernel* kernel_for(const Problem& p, const Device& d, int* number = nullptr) {
  DecodeKernel* best = nullptr;
  const auto all = decode_kernels();
  for (DecodeKernel& k : all) {
    if (k.dim < std::max(p.dim_qk, p.dim_v) || k.shared_bytes > cuda::shared_limit(d.arch)) continue;
    if (best && k.dim > best->dim) break;
    const bool more = best && k.rows > best->rows;
    if (!best || (fixed(p) ? !more : more && best->rows < rows_of(p))) best = &k;
  }
  if (best && number) *number = int(best - all.data());
  return best;
}

// Upper bound on the keys that the rows of a sequence see.
int64_t keys_seen(const Problem& p) {
  const Mask& m = p.mask;
  if (m.kind != MaskKind::window || m.left == kNoLimit || m.right == kNoLimit) return p.len_k;
  return std::min<int64_t>(p.len_k, (int64_t(m.left) + m.right + p.len_q) / m.k_step + 2);
}

// Fixed: as many splits as a sequence of maximum length has. Otherwise a time model selects the fastest count. CTAs run
// in waves; an empty slot in the last wave costs a quarter, since the other CTAs get its bandwidth. Each further split
// costs its combine.
int splits_of(const Problem& p, const Device& d, const DecodeKernel& k) {
  const int64_t keys = keys_seen(p);
  if (fixed(p)) {
    constexpr int64_t kKeys = 1 << kFixedBits;
    const int64_t splits = std::min(ceil_div(keys, kKeys) + 1, ceil_div(p.len_k, kKeys));
    return int(std::clamp<int64_t>(splits, 1, kMostFixed));
  }
  const int64_t blocks = int64_t(p.batch) * p.heads_kv * row_blocks(p, k);
  const int64_t at_once = d.units * std::clamp(cuda::shared_limit(d.arch) / k.shared_bytes, 1, k.blocks_per_sm);
  int best = 1;
  double least = INFINITY;
  for (int64_t s = 1; s <= std::clamp<int64_t>(keys / kLeastKeys, 1, kMostSplits); ++s) {
    const double bytes = double(ceil_div(keys, s)) * 2 * (p.dim_qk + p.dim_v) + kStartBytes;
    const double waves = 0.75 * double(blocks * s) / double(at_once) + 0.25 * double(ceil_div(blocks * s, at_once));
    const double cost = waves * bytes + (s > 1 ? kCombineBytes + double(s) * kSplitBytes : 0);
    if (cost < least) least = cost, best = int(s);
  }
  return best;
}

struct Partial { float *out, *lse; };
Partial carve(Workspace& ws, const Problem& p, int splits) {
  if (splits == 1) return {};
  const size_t rows = size_t(splits) * size_t(p.batch) * size_t(p.heads_q) * size_t(most_q(p));
  Partial made;
  made.out = ws.take<float>(rows * size_t(p.dim_v));
  made.lse = ws.take<float>(rows);
  return made;
}

}  // namespace

DecodeShare decode_share(const Problem& p) {
  constexpr int kLongest = INT32_MAX - 4096;  // keeps the end of a tile within int
  if (size_of(p.dtype.q) != 2 || needs_general(p) || p.mask.blocks.q) return DecodeShare::none;
  if (group_of(p) > kMostDecodeRows || p.len_k > kLongest) return DecodeShare::none;
  if (int64_t(p.len_q) * group_of(p) <= kMostDecodeRows) return DecodeShare::all;
  return fixed(p) ? DecodeShare::some : DecodeShare::none;
}

Status decode_shape(Plan& plan, Workspace& count) {
  const Problem& p = plan.problem;
  int number = 0;
  const DecodeKernel* k = kernel_for(p, plan.device, &number);
  if (!k)
    return Status::unsupported(kWho, ": has no decode kernel for dims ", p.dim_qk, " and ", p.dim_v,
                               " within the shared memory of ", plan.device.name);
  const int splits = splits_of(p, plan.device, *k);
  const int64_t blocks = int64_t(p.batch) * p.heads_kv * row_blocks(p, *k) * splits,
                rows = int64_t(p.batch) * p.heads_q * most_q(p);
  if (std::max(blocks, rows) > INT32_MAX)
    return Status::unsupported(kWho, ": ", std::max(blocks, rows), " blocks are over 2^31 - 1");
  if (decode_share(p) == DecodeShare::all) {
    plan.kernel = number, plan.tile_q = k->rows, plan.tile_k = k->keys, plan.splits = splits;
  }
  carve(count, p, splits);
  return Status::good();
}

Status decode_run(const Plan& plan, const Args& a, Workspace& ws, Stream stream) {
  const Problem& p = plan.problem;
  DecodeKernel& k = *kernel_for(p, plan.device);
  const int splits = decode_share(p) == DecodeShare::all ? plan.splits : splits_of(p, plan.device, k);
  const int64_t blocks = int64_t(p.batch) * p.heads_kv * row_blocks(p, k) * splits;
  const Partial partial = carve(ws, p, splits);
  if (!blocks) return Status::good();
  const bool uniform = !has_sequence_tensors(a);
  const Sequence seq = uniform ? sequence(p, a, 0) : Sequence{};
  if (uniform && int64_t(seq.len_q) * group_of(p) > kMostDecodeRows) return Status::good();
  const Divisor group{uint32_t(group_of(p))};
  DecodePlace place{.seq = seq};
  const bool placed = uniform && row_blocks(p, k) == 1, paged = p.keys == KeySource::paged;
  if (placed) place.find_rows(group, 0, k.rows);
  const DecodeParams params{.q = byte_rows(a[Role::q]),
                            .k = byte_rows(a[Role::k]),
                            .v = byte_rows(a[Role::v]),
                            .out = byte_rows(a[Role::out]),
                            .group = group,
                            .row_blocks = Divisor(uint32_t(row_blocks(p, k))),
                            .splits = Divisor(uint32_t(splits)),
                            .heads_kv = Divisor(uint32_t(p.heads_kv)),
                            .page = Divisor(uint32_t(std::max(p.page, 1))),
                            .pages = paged ? a.row<const int32_t>(Role::page_table) : nullptr,
                            .pages_step = a[Role::page_table].stride.batch,
                            .pool = a[Role::k].extent.batch,
                            .dim_qk = p.dim_qk,
                            .dim_v = p.dim_v,
                            .scale = scale_of(p, a) * kLog2e,
                            .uniform = uniform,
                            .placed = placed,
                            .fixed = fixed(p),
                            .most_q = most_q(p),
                            .place = place,
                            .partial_out = partial.out,
                            .partial_lse = partial.lse,
                            .problem = p,
                            .args = dense(a)};
  const cuda::Launcher launcher(kWho, p, a[Role::q].device_index, stream);
  if (!launcher.status.ok()) return launcher.status;
  cuda::Launch launch = cuda::launch_of(k, p.dtype.q);
  launch.blocks = blocks;
  const Status s = launcher(launch, params);
  return !s.ok() || splits == 1 ? s : combine_splits(launcher, params, plan.device.arch);
}

}  // namespace attune::sm80
