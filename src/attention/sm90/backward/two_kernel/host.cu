// SPDX-License-Identifier: Apache-2.0
// sm90_backward at head dims over 128: the host side of two_kernel/kernel_dq.h and kernel_dkdv.h. A run is the
// preprocessing, the kernel that owns queries, then the one that owns keys, which starts as soon as the former leaves
// room. CTAs share no sums, so the gradients have the same bits in every run.
#include <algorithm>

#include "attention/gpu/backward_pre_post_host.h"
#include "attention/sm90/backward/two_kernel/instances.h"
#include "attention/sm90/schedule.h"
#include "attention/sm90/tensor_maps.h"
#include "core/check.h"
#include "core/score.h"

namespace attune::sm90 {
namespace {

constexpr int kTileRows = 128, kTileKeys = 64;
constexpr int kShort = 1024;  // keys up to which CTAs that own queries are persistent

int64_t padded(const Problem& p) { return round_up(p.len_q, kTileRows); }

float2* carve(Workspace& ws, const Problem& p) {
  return ws.take<float2>(size_t(p.batch) * size_t(p.heads_q) * size_t(padded(p)));
}

// With a band, CTAs differ in length: the longest of a section of heads come first, and what they walk, `rows` rows per
// head, stays in L2. Without one, head after head.
int section(const Problem& p, const TwoKernel& k, int64_t rows) {
  return p.mask.kind == MaskKind::full ? 1 : section_heads(double(rows) * (k.dim_qk + k.dim_v) * 2);
}

TwoKernelParams params_of(const Problem& p, const Args& a, const TwoKernel& kernel,
                          const sm80::BackwardParams& pre_post) {
  const int rows = a[Role::q].extent.seq, keys = a[Role::k].extent.seq;
  const Band& band = pre_post.seq.band;
  return {.row_stats = pre_post.rows,
          .scale2 = pre_post.scale * kLog2e,
          .kept = pre_post.kept.in,
          .scale = pre_post.scale * pre_post.kept.out,
          .rows = rows,
          .keys = keys,
          .heads = p.heads_q,
          .heads_kv = p.heads_kv,
          .group = pre_post.group,
          .left = clamp_len(band.left),
          .right = clamp_len(band.right),
          .offset = clamp_len(band.q_first - band.k_first),
          .padded = pre_post.padded,
          .wants_dk = a.given(Role::dk),
          .wants_dv = a.given(Role::dv),
          .alone = rows == 0 || !a.given(Role::dq),
          .of_rows = {int(ceil_div(rows, kTileRows)), p.batch * p.heads_q, section(p, kernel, keys)},
          .of_keys = {int(ceil_div(keys, kTileKeys)), p.batch * p.heads_kv,
                      section(p, kernel, int64_t(rows) * pre_post.group)}};
}

}  // namespace

TwoKernel& two_kernel_of(const Problem& p) {
  if (p.dim_qk > 192 || p.dim_v > 192) return two_kernel_256();
  return p.dim_v > 128 ? two_kernel_192() : two_kernel_192_128();
}

Status two_kernel_run(std::string_view who, const cuda::Launcher& launch, const Plan& plan, const Args& a,
                      Workspace ws) {
  const Problem& p = plan.problem;
  TwoKernel& kernel = two_kernel_of(p);
  const int rows = a[Role::q].extent.seq, keys = a[Role::k].extent.seq, type = p.dtype.q == DType::bf16;
  float2* const stats = carve(ws, p);
  const sm80::BackwardParams pre_post{.problem = p, .args = dense(a), .uniform = true, .seq = sequence(p, a, 0),
                                      .rows = stats, .dq = nullptr, .padded = int(padded(p)),
                                      .dq_pitch = kernel.dim_qk, .group = p.heads_q / p.heads_kv,
                                      .scale = scale_of(p, a), .kept = sm80::kept(scale_of(p, a), p.dim_qk)};
  const sm80::Place place{launch.device(), plan.device.arch};
  if (Status s = sm80::backward_prepare(who, pre_post, place, launch.stream()); !s.ok()) return s;
  const bool has_keys = keys > 0 && a[Role::k].extent.batch > 0;
  if (rows == 0 && !has_keys) return Status::good();
  TwoKernelParams x = params_of(p, a, kernel, pre_post);
  // With no queries or no keys, maps other rows, which are never read.
  const Tensor &q = a[rows ? Role::q : Role::k], &d_out = a[rows ? Role::d_out : Role::v];
  const Tensor &k = a[has_keys ? Role::k : Role::q], &v = a[has_keys ? Role::v : Role::d_out];
  const auto map_inputs = [&](int rows_q, int rows_k) {
    return make_maps(who, p, {{Role::q, q, &x.q, rows_q}, {Role::d_out, d_out, &x.d_out, rows_q},
                              {Role::k, k, &x.k, rows_k}, {Role::v, v, &x.v, rows_k}});
  };
  if (!x.alone) {
    if (Status s = map_inputs(64, kernel.keys_of_rows); !s.ok()) return s;
    if (Status s = make_maps(who, p, {{Role::dq, a[Role::dq], &x.dq, 16}}); !s.ok()) return s;
    int64_t blocks = int64_t(x.of_rows.tiles) * x.of_rows.heads;
    if (p.mask.kind == MaskKind::full && has_keys && keys <= kShort)
      blocks = std::min<int64_t>(blocks, plan.device.units);
    if (Status s = launch({.kernel = cuda::address(kernel.rows[type]), .ready = &kernel.rows_ready[type],
                           .blocks = blocks, .threads = kernel.threads, .shared_bytes = kernel.rows_bytes,
                           .dependent = true},
                          x);
        !s.ok())
      return s;
  }
  if (!has_keys || !(x.wants_dk || x.wants_dv)) return Status::good();
  if (Status s = make_maps(who, p, {{Role::dk, a[Role::dk], &x.dk, 16, x.wants_dk},
                                    {Role::dv, a[Role::dv], &x.dv, 16, x.wants_dv}});
      !s.ok())
    return s;
  if (x.alone || kernel.queries != 64 || kernel.keys_of_rows != kTileKeys)  // else they exist already
    if (Status s = map_inputs(kernel.queries, kTileKeys); !s.ok()) return s;
  if (Status s = make_stats_map(who, p, stats, x.padded, kernel.queries, x.stats); !s.ok()) return s;
  return launch({.kernel = cuda::address(kernel.keys[type]), .ready = &kernel.keys_ready[type],
                 .blocks = int64_t(x.of_keys.tiles) * x.of_keys.heads, .threads = kernel.threads,
                 .shared_bytes = kernel.keys_bytes, .dependent = true},
                x);
}

}  // namespace attune::sm90
