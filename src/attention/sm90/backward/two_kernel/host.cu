// sm90_backward at head dims over 128: the host side of two_kernel/kernel_dq.h and kernel_dkdv.h. A run is the
// preprocessing, the kernel that owns queries, then the one that owns keys, which starts as soon as the former leaves
// room. CTAs share no sums, so the gradients have the same bits in every run.
#include <algorithm>

#include "attention/gpu/backward_pre_post_host.h"
#include "attention/sm90/backward/two_kernel/instances.h"
#include "attention/sm90/schedule.h"
#include "core/check.h"
#include "core/score.h"
#include "machine/cuda/tensor_map.h"

namespace attune::sm90 {
namespace {

constexpr int kTileRows = 128, kTileKeys = 64, kMostSectionHeads = 64;
constexpr int kShort = 1024;  // keys up to which CTAs that own queries are persistent
constexpr double kSectionBytes = 32 << 20;

int64_t padded(const Problem& p) { return round_up(p.len_q, kTileRows); }

float2* carve(Workspace& ws, const Problem& p) {
  return ws.take<float2>(size_t(p.batch) * size_t(p.heads_q) * size_t(padded(p)));
}

// With a band, CTAs differ in length: the longest of a section of heads come first, and what they walk, `rows` rows per
// head, stays in L2. Without one, head after head.
int section(const Problem& p, const TwoKernel& k, int64_t rows) {
  if (p.mask.kind == MaskKind::full) return 1;
  const double bytes = double(rows) * (k.dim_qk + k.dim_v) * 2;
  int heads = 1;
  while (heads < kMostSectionHeads && 2 * heads * bytes <= kSectionBytes) heads *= 2;
  return heads;
}

struct Map {
  Role role;
  const Tensor& of;
  CUtensorMap* map;
  int rows;
};
Status make(std::string_view who, const Problem& p, std::initializer_list<Map> maps) {
  for (const auto& [role, of, map, rows] : maps)
    if (Status s = cuda::tensor_map(of, rows, *map); !s.ok())
      return Status::no(who, ": ", name(role), ": ", s.message, ", in: ", name(p));
  return Status::good();
}

}  // namespace

TwoKernel& two_kernel_of(const Problem& p) {
  if (p.dim_qk > 192 || p.dim_v > 192) return two_kernel_256();
  return p.dim_v > 128 ? two_kernel_192() : two_kernel_192_128();
}

Status two_kernel_run(std::string_view who, const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Problem& p = plan.problem;
  TwoKernel& kernel = two_kernel_of(p);
  const int rows = a[Role::q].extent.seq, keys = a[Role::k].extent.seq, device = a[Role::q].device_index;
  const int type = p.dtype.q == DType::bf16;
  const cuda::DeviceGuard use(device);
  if (!use.status.ok()) return Status::no(who, ": ", use.status.message, ", in: ", name(p));
  float2* const stats = carve(ws, p);
  const sm80::BackwardParams pre_post{.problem = p, .args = dense(a), .uniform = true, .seq = sequence(p, a, 0),
                                  .rows = stats, .dq = nullptr, .padded = int(padded(p)), .dq_pitch = kernel.dim_qk,
                                  .group = p.heads_q / p.heads_kv, .scale = scale_of(p, a),
                                  .kept = sm80::kept(scale_of(p, a), p.dim_qk)};
  if (Status s = sm80::backward_prepare(who, pre_post, {device, plan.device.arch}, stream); !s.ok()) return s;
  const Band& band = pre_post.seq.band;
  const bool has_keys = keys > 0 && a[Role::k].extent.batch > 0;
  TwoKernelParams x{.row_stats = stats,
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
  // A tensor map cannot be empty; with no queries or no keys, map other rows, which are never read.
  const Tensor &q = a[rows ? Role::q : Role::k], &d_out = a[rows ? Role::d_out : Role::v];
  const Tensor &k = a[has_keys ? Role::k : Role::q], &v = a[has_keys ? Role::v : Role::d_out];
  cuda::Launch launch{.who = who, .threads = kernel.threads, .device = device, .stream = stream, .early = true};
  if (rows == 0 && !has_keys) return Status::good();
  const auto make_maps = [&](int rows_q, int rows_k) {
    return make(who, p, {{Role::q, q, &x.q, rows_q}, {Role::d_out, d_out, &x.d_out, rows_q},
                         {Role::k, k, &x.k, rows_k}, {Role::v, v, &x.v, rows_k}});
  };
  if (!x.alone) {
    if (Status s = make_maps(64, kernel.keys_of_rows); !s.ok()) return s;
    if (Status s = make(who, p, {{Role::dq, a[Role::dq], &x.dq, 16}}); !s.ok()) return s;
    launch.kernel = reinterpret_cast<const void*>(kernel.rows[type]), launch.ready = &kernel.rows_ready[type];
    launch.blocks = int64_t(x.of_rows.tiles) * x.of_rows.heads, launch.shared_bytes = kernel.rows_bytes;
    if (p.mask.kind == MaskKind::full && has_keys && keys <= kShort)
      launch.blocks = std::min<int64_t>(launch.blocks, plan.device.units);
    if (Status s = cuda::launch(launch, p, &x); !s.ok()) return s;
  }
  if (!has_keys || !(x.wants_dk || x.wants_dv)) return Status::good();
  if (x.wants_dk)
    if (Status s = make(who, p, {{Role::dk, a[Role::dk], &x.dk, 16}}); !s.ok()) return s;
  if (x.wants_dv)
    if (Status s = make(who, p, {{Role::dv, a[Role::dv], &x.dv, 16}}); !s.ok()) return s;
  if (x.alone || kernel.queries != 64 || kernel.keys_of_rows != kTileKeys)  // else they exist already
    if (Status s = make_maps(kernel.queries, kTileKeys); !s.ok()) return s;
  // Not by plain bulk copies: racecheck treats those as writes of the issuing thread.
  if (Status s = cuda::line_map(&stats->x, 2 * int64_t(x.padded), x.heads, p.batch, 2 * kernel.queries, x.stats);
      !s.ok())
    return Status::no(who, ": statistics: ", s.message, ", in: ", name(p));
  launch.kernel = reinterpret_cast<const void*>(kernel.keys[type]), launch.ready = &kernel.keys_ready[type];
  launch.blocks = int64_t(x.of_keys.tiles) * x.of_keys.heads, launch.shared_bytes = kernel.keys_bytes;
  return cuda::launch(launch, p, &x);
}

}  // namespace attune::sm90
