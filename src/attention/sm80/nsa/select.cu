// SPDX-License-Identifier: Apache-2.0
// sm80_select: host side of sm80/nsa/select.h. Where queries are few, the keys are split over the SMs. If the arguments
// contain no log-sum-exp, it is computed first (sm80/nsa/select_lse.h).
#include <algorithm>
#include <bit>

#include "attention/gpu/refusal.h"
#include "attention/sm80/nsa/select.h"
#include "attention/sm80/nsa/select_f32.h"
#include "attention/sm80/nsa/select_lse.h"
#include "core/check.h"
#include "core/score.h"
#include "machine/cuda/launcher.h"
#include "plan/backend.h"

namespace attune {
namespace {

using sm80::kSelectKeys, sm80::kSelectRows;

constexpr std::string_view kWho = "sm80_select";
constexpr int kLseChunk = sm80::kLseTiles * kSelectKeys;
constexpr int kLeastTilesOfSplit = 2, kBlocksPerSm = 2;

using SelectFunction = void (*)(sm80::SelectParams);
struct SelectKernel {
  int dim;
  SelectFunction select[2], lse[2];  // f16, bf16
  cuda::SharedMemoryOptIn ready[2][2]{};
};

template <int Dim>
constexpr SelectKernel kernel_row() {
  return {Dim,
          {sm80::select_kernel<F16, Dim>, sm80::select_kernel<Bf16, Dim>},
          {sm80::select_lse_kernel<F16, Dim>, sm80::select_lse_kernel<Bf16, Dim>}};
}
SelectKernel& kernel_of(const Problem& p) {
  static constinit SelectKernel all[] = {kernel_row<64>(), kernel_row<128>(), kernel_row<192>(), kernel_row<256>()};
  static constinit SelectKernel f32{
      0, {sm80::select_kernel<float, 0>, nullptr}, {sm80::select_lse_kernel<float, 0>, nullptr}};
  return p.dtype.q == DType::f32 ? f32 : all[(p.dim_qk + 63) / 64 - 1];
}

// The parameters that follow from the problem alone; tensors and lengths come with a call. `tokens` bounds the tokens
// of a CTA, since each has a list in shared memory.
sm80::SelectParams params_of(const Problem& p, int tokens) {
  const Nsa nsa = nsa_of(p);
  sm80::SelectParams x{};
  x.nsa = nsa, x.problem = p;
  x.group = p.heads_q / p.heads_kv;
  x.shift = std::max(std::bit_width(uint32_t(x.group - 1)), std::bit_width(uint32_t(kSelectRows / tokens - 1)));
  x.token_blocks = Divisor(uint32_t(std::max<int64_t>(1, ceil_div(p.len_q, x.tokens()))));
  const int columns = nsa.s / nsa.d;
  x.groups = Divisor(uint32_t(p.heads_kv)), x.columns = Divisor(uint32_t(columns));
  x.d = Divisor(uint32_t(nsa.d)), x.s = Divisor(uint32_t(nsa.s));
  if (kSelectKeys % columns == 0) x.each = Divisor(uint32_t(kSelectKeys / columns));
  else x.each.by = 0;
  x.taps = nsa.taps(), x.most_tap = std::min(nsa.s, nsa.l) / nsa.d, x.first_tap = 1 - nsa.l / nsa.d;
  x.ring = int32_t(std::bit_ceil(uint32_t(kSelectKeys + nsa.taps() - 1)));
  x.kept = x.tokens() <= 8 ? 512 : x.tokens() <= 32 ? 128 : kSelectKeys;
  x.capacity = std::max(1, std::min(nsa.n - 3, (p.len_k - 1) / nsa.s - 2));
  x.chunks = int32_t(ceil_div(std::max<int64_t>(1, nsa.compressed(p.len_k)), kLseChunk));
  return x;
}
int64_t shared_of(const sm80::SelectParams& x) {
  const int64_t tiles = x.problem.dtype.q == DType::f32 ? sm80::SelectRows<float, 0>::tile_bytes(x)
                                                        : kSelectRows * kernel_of(x.problem).dim * 2;
  return tiles + sm80::select_list_bytes(x);
}
int64_t blocks_of(const sm80::SelectParams& x) {
  return int64_t(x.problem.batch) * x.problem.heads_kv * x.token_blocks.by;
}

struct Carved { float* lse; uint64_t* candidates; float2* partial_lse; uint32_t* arrived; };

Carved carve(Workspace& ws, const Plan& plan, const sm80::SelectParams& x) {
  const Problem& p = plan.problem;
  const size_t tokens = size_t(p.batch) * size_t(p.len_q), rows = tokens * size_t(p.heads_q);
  Carved c{};
  c.lse = ws.take<float>(rows);
  if (plan.splits == 1) return c;
  c.candidates = ws.take<uint64_t>(tokens * size_t(p.heads_kv) * size_t(plan.splits) * size_t(x.capacity));
  c.partial_lse = ws.take<float2>(rows * size_t(x.chunks));
  c.arrived = ws.take<uint32_t>(size_t(blocks_of(x)));
  return c;
}

Status supports(const Problem& p, const Device& d) {
  const bool f32 = p.dtype.q == DType::f32;
  const int group = p.heads_q / p.heads_kv;
  return cuda::Refusal(kWho, p, d).needs_arch_from(80).variant("select").pass(Pass::forward).f32_or_half(p.dtype.q)
      .kv_like_q()
      .require(p.dim_qk <= 256 && (f32 || p.dim_qk % 8 == 0), "dim ", p.dim_qk, " of ", name(p.dtype.q), " is not ",
               f32 ? "" : "a multiple of 8 ", "up to 256")
      .require(group <= kSelectRows, group, " heads in a group are over ", kSelectRows)
      .status();
}

Status shape(Plan& plan, const Planner&) {
  sm80::SelectParams x = params_of(plan.problem, kSelectRows);
  while (x.tokens() > 1 && shared_of(x) > cuda::shared_limit(plan.device.arch))
    x = params_of(plan.problem, x.tokens() / 2);
  if (const int64_t bytes = shared_of(x); bytes > cuda::shared_limit(plan.device.arch))
    return Status::unsupported(kWho, ": lists of ", x.capacity, " blocks and filters of ", x.nsa.taps(),
                               " taps need ", bytes, " bytes of shared memory, but ", plan.device.name, " has ",
                               cuda::shared_limit(plan.device.arch));
  plan.tile_q = x.tokens(), plan.tile_k = kSelectKeys, plan.splits = 1;
  const int64_t blocks = blocks_of(x), at_once = int64_t(plan.device.units) * kBlocksPerSm;
  if (blocks > INT32_MAX) return Status::unsupported(kWho, ": ", blocks, " blocks are over 2^31 - 1");
  const int64_t tiles = ceil_div(x.nsa.compressed(plan.problem.len_k), kSelectKeys);
  if (blocks > 0 && blocks * 2 <= at_once)
    plan.splits = int(std::clamp<int64_t>(std::min(at_once / blocks, tiles / kLeastTilesOfSplit), 1, INT16_MAX));
  Workspace count;
  carve(count, plan, x);
  plan.workspace_bytes = count.used;
  return Status::good();
}

bool aligned(const Tensor& t) {
  const int64_t strides = t.stride.batch | t.stride.seq | t.stride.head;
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && strides * size_of(t.dtype) % 16 == 0;
}
// Loads are 16 bytes wide, except for f32, which accepts any alignment.
Status fits(const Plan& plan, const Args& a) {
  if (plan.problem.dtype.q == DType::f32) return Status::good();
  return check_aligned16(kWho, a, {Role::q, Role::k});
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Problem& p = plan.problem;
  if (Status s = fits(plan, a); !s.ok()) return s;
  sm80::SelectParams x = params_of(p, plan.tile_q);
  const Carved c = carve(ws, plan, x);
  x.q = sm80::byte_rows(a[Role::q]), x.k = sm80::byte_rows(a[Role::k]);
  x.blocks = sm80::byte_rows(a[variant_tensor(0)]);
  x.scale = scale_of(p, a) * kLog2e, x.args = dense(a);
  x.candidates = c.candidates, x.partial_lse = c.partial_lse, x.arrived = c.arrived;
  x.own_lse = !a.given(Role::lse), x.aligned16 = p.dim_qk % 4 == 0 && aligned(a[Role::q]) && aligned(a[Role::k]);
  const int64_t row = int64_t(p.heads_q) * 4;
  x.lse = x.own_lse ? sm80::ByteRows{reinterpret_cast<char*>(c.lse), p.len_q * row, row, 4}
                    : sm80::byte_rows(a[Role::lse]);
  const int64_t blocks = blocks_of(x);
  if (!blocks || !p.len_q) return Status::good();
  const cuda::Launcher launcher(kWho, p, a[Role::q].device_index, stream);
  if (!launcher.status.ok()) return launcher.status;
  if (plan.splits > 1)
    if (Status s = launcher.zero(c.arrived, size_t(blocks) * sizeof(uint32_t)); !s.ok()) return s;
  SelectKernel& kernel = kernel_of(p);
  const int type = p.dtype.q == DType::bf16;
  const auto launch = [&](SelectFunction (&function)[2], cuda::SharedMemoryOptIn (&ready)[2], int splits) {
    x.splits = Divisor(uint32_t(splits));
    return launcher({.kernel = cuda::address(function[type]), .ready = &ready[type], .blocks = blocks * splits,
                     .threads = sm80::kSelectThreads, .shared_bytes = int(shared_of(x)),
                     .shared_most = cuda::shared_limit(plan.device.arch)},
                    x);
  };
  if (x.own_lse)
    if (Status s = launch(kernel.lse, kernel.ready[0], std::min(plan.splits, x.chunks)); !s.ok()) return s;
  return launch(kernel.select, kernel.ready[1], plan.splits);
}

}  // namespace

extern const Backend sm80_select{.name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
