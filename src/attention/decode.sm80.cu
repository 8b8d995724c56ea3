// The decode kernels of sm80_forward: the compiled ones, the merge of parts, and the host side of decode.sm80.h. Parts
// are merged by a second kernel and not by the last block: counters would have to be cleared before every run, which
// costs more than a kernel that starts while the first one ends.
#include <algorithm>

#include "attention/decode.sm80.kernels.h"

namespace attune::sm80 {

__global__ void __launch_bounds__(kMergeThreads) decode_merge_kernel(const __grid_constant__ DecodeParams x) {
  constexpr int kAtOnce = 8;
  __shared__ float weight[kMostSplits];
  __shared__ float2 factors;
  __shared__ float4 sums[kMergeThreads];
  uint32_t n = blockIdx.x;
  const int query = int(n % x.most_q), splits = int(x.splits.by);
  n /= x.most_q;
  const int head = int(n % x.problem.heads_q), b = int(n / x.problem.heads_q);
  const Sequence s = x.sequence_of(b);
  wait_for_previous();
  if (query >= s.len_q) return;
  const int columns = x.dim_v <= 64 ? 16 : x.dim_v <= 128 ? 32 : 64, slices = kMergeThreads / columns;
  const int column = threadIdx.x % columns * 4, slice = threadIdx.x / columns;
  float4 part[kAtOnce];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int split = first + i * slices;
      if (split < splits && column < x.dim_v)
        part[i] = __ldcg(reinterpret_cast<const float4*>(
            x.partial_out + x.partial_row(split, b, head, query) * x.dim_v + column));
    }
  };
  load(slice);
  if (const int lane = threadIdx.x; lane < 32) {
    float lse[kMostSplits / 32], top = -INFINITY, sum = 0.f;
#pragma unroll
    for (int i = 0; i < kMostSplits / 32; ++i) {
      const int split = i * 32 + lane;
      lse[i] = split < splits ? __ldcg(x.partial_lse + x.partial_row(split, b, head, query)) : -INFINITY;
      top = fmaxf(top, lse[i]);
    }
#pragma unroll
    for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    const float shift = top == -INFINITY ? 0.f : top;
#pragma unroll
    for (int i = 0; i < kMostSplits / 32; ++i) lse[i] = expf(lse[i] - shift), sum += lse[i];
#pragma unroll
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
#pragma unroll
    for (int i = 0; i < kMostSplits / 32; ++i) weight[i * 32 + lane] = sum == 0.f ? 0.f : lse[i] / sum;
    if (lane == 0) {
      const RowEnd end = x.end_row(s, head, query, sum == 0.f ? -INFINITY : top + logf(sum));
      factors = {end.now, end.before};
    }
  }
  __syncthreads();
  float4 y{};
  for (int first = slice; first < splits; first += kAtOnce * slices) {
    if (first != slice) load(first);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int split = first + i * slices;
      if (split >= splits) break;
      const float w = weight[split];
      y = {y.x + w * part[i].x, y.y + w * part[i].y, y.z + w * part[i].z, y.w + w * part[i].w};
    }
  }
  sums[threadIdx.x] = y;
  __syncthreads();
  if (slice || column >= x.dim_v) return;
  for (int i = 1; i < slices; ++i) {
    const float4 z = sums[i * columns + threadIdx.x];
    y = {y.x + z.x, y.y + z.y, y.z + z.z, y.w + z.w};
  }
  x.write(s, head, query, column, y, factors.x, factors.y);
}

std::span<DecodeKernel> decode_kernels() {
  // dim, keys, stages, warps, warps of a team, blocks a multiprocessor: 96 KB a block in all of them
  static constinit DecodeKernel all[] = {
      decode_kernel_row<64, 32, 3, 4, 1, 2>(),
      decode_kernel_row<64, 64, 6, 4, 4, 2>(),
      decode_kernel_row<128, 16, 3, 4, 1, 2>(),
      decode_kernel_row<128, 64, 3, 4, 4, 2>(),
      decode_kernel_row<256, 16, 3, 2, 1, 2>(),
  };
  return all;
}

namespace {

constexpr std::string_view kWho = "sm80_forward";
// What starting a block and merging parts cost, as bytes that a block could have read meanwhile.
constexpr int64_t kStartBytes = 25'000, kMergeBytes = 50'000, kPartBytes = 256;
constexpr int kLeastKeys = 128;  // of a part
constexpr Role kLengths[] = {Role::cu_q,     Role::cu_k,        Role::used_q,     Role::used_k,
                             Role::left_pad, Role::cache_index, Role::page_table, Role::positions};

int group_of(const Problem& p) { return p.heads_q / p.heads_kv; }
bool fixed(const Problem& p) { return p.reproducible == Reproducible::batch; }
int64_t rows_of(const Problem& p) { return std::min<int64_t>(int64_t(p.len_q) * group_of(p), kMostRows); }
int64_t row_blocks(const Problem& p, const DecodeKernel& k) { return ceil_div(rows_of(p), k.rows); }
int most_q(const Problem& p) { return std::min(p.len_q, kMostRows / group_of(p)); }

// The narrowest that holds the dims; of those the one whose block has all rows, or comes nearest. Where a row's bits
// may not depend on the batch, the choice may not either.
DecodeKernel* kernel_for(const Problem& p, int* number = nullptr) {
  DecodeKernel* best = nullptr;
  const auto all = decode_kernels();
  for (DecodeKernel& k : all) {
    if (k.dim < std::max(p.dim_qk, p.dim_v)) continue;
    if (best && (k.dim > best->dim || fixed(p) || best->rows >= rows_of(p))) break;
    best = &k;
  }
  if (best && number) *number = int(best - all.data());
  return best;
}

// The most keys that the rows of a sequence can see.
int64_t keys_seen(const Problem& p) {
  const Mask& m = p.mask;
  if (m.kind != MaskKind::window || m.left == kNoLimit || m.right == kNoLimit) return p.len_k;
  return std::min<int64_t>(p.len_k, (int64_t(m.left) + m.right + p.len_q) / m.k_step + 2);
}

// Fixed: as many parts as a sequence of the greatest length has. Else what a model of time says is shortest: blocks
// come in waves, a part more costs its merge, and where lengths differ the last block ends half a block late.
int splits_of(const Problem& p, const Device& d, const DecodeKernel& k) {
  const int64_t keys = keys_seen(p);
  if (fixed(p)) {
    constexpr int64_t kPart = 1 << kFixedBits;
    const int64_t parts = std::min(ceil_div(keys, kPart) + 1, ceil_div(p.len_k, kPart));
    return int(std::clamp<int64_t>(parts, 1, kMostFixed));
  }
  const int64_t blocks = int64_t(p.batch) * p.heads_kv * row_blocks(p, k), key_bytes = 2 * (p.dim_qk + p.dim_v);
  const int64_t room = d.units * std::clamp(cuda::shared_limit(d.arch) / k.shared_bytes, 1, k.blocks_per_sm);
  int best = 1;
  int64_t least = INT64_MAX;
  for (int64_t s = 1; s <= std::clamp<int64_t>(keys / kLeastKeys, 1, kMostSplits); ++s) {
    const int64_t wave = ceil_div(keys, s) * key_bytes + kStartBytes;
    const int64_t late = p.keys == KeySource::linear ? 0 : wave / 2;
    const int64_t cost = ceil_div(blocks * s, room) * wave + late + (s > 1 ? kMergeBytes + s * kPartBytes : 0);
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

// Whether the code that runs on this GPU is that of sm_90 or later: this build's own, or PTX of it.
constexpr bool starts_early(int arch) {
  for (const int built : {__CUDA_ARCH_LIST__})
    if (built >= 900 && built / 10 <= arch) return true;
  return false;
}

}  // namespace

Few few_queries(const Problem& p) {
  constexpr int kLongest = INT32_MAX - 4096;  // so that the end of a tile is an int
  if (size_of(p.dtype.q) != 2 || needs_general(p) || p.mask.blocks.q) return Few::none;
  if (group_of(p) > kMostRows || p.len_k > kLongest) return Few::none;
  if (int64_t(p.len_q) * group_of(p) <= kMostRows) return Few::all;
  return fixed(p) ? Few::some : Few::none;
}

Status decode_shape(Plan& plan, Workspace& count) {
  const Problem& p = plan.problem;
  int number = 0;
  const DecodeKernel* k = kernel_for(p, &number);
  if (!k || k->shared_bytes > cuda::shared_limit(plan.device.arch))
    return Status::no(kWho, ": has no decode kernel for dims ", p.dim_qk, " and ", p.dim_v,
                      " within the shared memory of ", plan.device.name);
  const int splits = splits_of(p, plan.device, *k);
  const int64_t blocks = int64_t(p.batch) * p.heads_kv * row_blocks(p, *k) * splits,
                rows = int64_t(p.batch) * p.heads_q * most_q(p);
  if (std::max(blocks, rows) > INT32_MAX)
    return Status::no(kWho, ": ", std::max(blocks, rows), " blocks are over 2^31 - 1");
  if (few_queries(p) == Few::all) {
    plan.kernel = number, plan.tile_q = k->rows, plan.tile_k = k->keys, plan.splits = splits;
  }
  carve(count, p, splits);
  return Status::good();
}

Status decode_run(const Plan& plan, const Args& a, Workspace& ws, Stream stream) {
  const Problem& p = plan.problem;
  DecodeKernel& k = *kernel_for(p);
  const int splits = few_queries(p) == Few::all ? plan.splits : splits_of(p, plan.device, k);
  const int64_t blocks = int64_t(p.batch) * p.heads_kv * row_blocks(p, k) * splits;
  const Partial partial = carve(ws, p, splits);
  if (!blocks) return Status::good();
  const bool uniform = std::none_of(std::begin(kLengths), std::end(kLengths), [&](Role r) { return a.given(r); });
  const Sequence seq = uniform ? sequence(p, a, 0) : Sequence{};
  if (uniform && int64_t(seq.len_q) * group_of(p) > kMostRows) return Status::good();
  const bool paged = p.keys == KeySource::paged;
  const DecodeParams params{.q = byte_rows(a[Role::q]),
                            .k = byte_rows(a[Role::k]),
                            .v = byte_rows(a[Role::v]),
                            .out = byte_rows(a[Role::out]),
                            .group = Divisor(uint32_t(group_of(p))),
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
                            .fixed = fixed(p),
                            .most_q = most_q(p),
                            .seq = seq,
                            .partial_out = partial.out,
                            .partial_lse = partial.lse,
                            .problem = p,
                            .args = dense(a)};
  const int device = a[Role::q].device_index, type = p.dtype.q == DType::bf16;
  const cuda::Use use(device);
  if (!use.status.ok()) return Status::no(kWho, ": ", use.status.message, ", in: ", name(p));
  const Status first = cuda::launch({.who = kWho,
                                     .kernel = reinterpret_cast<const void*>(k.function[type]),
                                     .ready = &k.ready[type],
                                     .blocks = blocks,
                                     .threads = k.threads,
                                     .shared_bytes = k.shared_bytes,
                                     .device = device,
                                     .stream = stream},
                                    p, &params);
  if (!first.ok() || splits == 1) return first;
  static constinit cuda::Ready ready;
  return cuda::launch({.who = kWho,
                       .kernel = reinterpret_cast<const void*>(decode_merge_kernel),
                       .ready = &ready,
                       .blocks = int64_t(p.batch) * p.heads_q * most_q(p),
                       .threads = kMergeThreads,
                       .device = device,
                       .stream = stream,
                       .early = starts_early(plan.device.arch)},
                      p, &params);
}

}  // namespace attune::sm80
