// sm90_backward: the host side of backward.sm90.h. A run is prepare, the kernel that owns keys, then finish, each of
// which starts while the one before it ends. Serves plain problems; everything else is the next link's.
#include <algorithm>

#include "attention/backward.sm80.host.h"
#include "attention/backward.sm90.kernels.h"
#include "attention/backward.sm90.wide.kernels.h"
#include "core/check.h"
#include "core/score.h"
#include "machine/cuda/tensor_map.h"

namespace attune {
namespace {

using sm90::BackwardKernel;
using sm90::BackwardParams;

constexpr std::string_view kWho = "sm90_backward";
constexpr int kFar = 1 << 28;  // a side without end; also the longest sequence
constexpr double kSectionBytes = 32 << 20;
constexpr int kMostSectionHeads = 64;
constexpr Role kLengths[] = {Role::cu_q,     Role::cu_k,        Role::used_q,   Role::used_k,
                             Role::left_pad, Role::cache_index, Role::positions};

BackwardKernel& kernel_of(const Problem& p) {
  return std::max(p.dim_qk, p.dim_v) <= 64 ? sm90::backward_kernel_64() : sm90::backward_kernel_128();
}

Status supports(const Problem& p, const Device& d) {
  const auto no = [](const auto&... why) { return Status::no(kWho, ": ", why...); };
  if (d.kind != DeviceKind::cuda) return no("runs on a GPU, not on ", d.name.empty() ? "a CPU" : d.name);
  if (d.arch != 90) return no("needs a GPU of arch 90, ", d.name, " is ", d.arch);
  if (p.pass != Pass::backward) return no("computes a backward, not a ", name(p.pass));
  if (!word(p.variant).empty()) return no("does not know the variant ", word(p.variant));
  for (const Option o : {Option::append, Option::rotary, Option::rotary_half, Option::descale, Option::block_bias,
                         Option::softcap, Option::alibi, Option::bias, Option::dropout, Option::accumulate})
    if (p.has(o)) return no("does not serve the option ", name(o));
  if (sm90::is_wide(p)) return sm90::wide_supports(kWho, p);
  if (p.keys != KeySource::linear) return no("keys are linear, not ", name(p.keys));
  if (p.reproducible != Reproducible::no) return no("adds to dQ in no fixed order");
  const Mask& m = p.mask;
  if (m.k_step != 1 || m.k_phase != 0 || m.blocks.q) return no("mask ", name(m), " is not full, causal or a window");
  if (m.align == Align::absolute) return no("does not serve absolute positions");
  if (p.dtype.q != DType::f16 && p.dtype.q != DType::bf16)
    return no("dtype ", name(p.dtype.q), " is not one of f16, bf16");
  if (p.dtype.kv != p.dtype.q || p.dtype.out != p.dtype.q || p.dtype.grad != p.dtype.q)
    return no("q is ", name(p.dtype.q), ", kv ", name(p.dtype.kv), ", out ", name(p.dtype.out), " and grad ",
              name(p.dtype.grad), ", they must be the same");
  for (const int dim : {p.dim_qk, p.dim_v})
    if (dim % 8) return no("dim ", dim, " is not a multiple of 8 up to 256");
  if (p.len_q > kFar || p.len_k > kFar) return no("lengths are at most 2^28");
  return Status::good();
}

int64_t padded(const Problem& p, const BackwardKernel& k) { return round_up(p.len_q, k.tile_q); }

struct Room { float2* stats; float* dq; };
Room carve(Workspace& ws, const Problem& p, const BackwardKernel& k) {
  const size_t rows = size_t(p.batch) * size_t(p.heads_q) * size_t(padded(p, k));
  return {ws.take<float2>(rows), ws.take<float>(rows * size_t(k.dim))};
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  if (sm90::is_wide(p)) return sm90::wide_shape(kWho, plan);
  const BackwardKernel& k = kernel_of(p);
  plan.tile_q = k.tile_q, plan.tile_k = k.tile_k, plan.kernel = k.dim;
  const int64_t most = std::max(ceil_div(p.len_k, k.tile_k) * p.batch * p.heads_kv,
                                int64_t(p.batch) * p.heads_q * (padded(p, k) / sm80::kRowsOfPrepare));
  if (most > INT32_MAX) return Status::no(kWho, ": ", most, " blocks are over 2^31 - 1");
  Workspace count;
  carve(count, p, k);
  plan.workspace_bytes = count.used;
  return Status::good();
}

Status fits(const Plan& plan, const Args& a) {
  const Problem& p = plan.problem;
  for (const Role r : kLengths)
    if (a.given(r)) return Status::no(kWho, ": does not serve lengths in tensors, such as ", name(r));
  if (a[Role::q].extent.seq > p.len_q || a[Role::k].extent.seq > p.len_k)
    return Status::no(kWho, ": q and k are ", a[Role::q].extent.seq, " and ", a[Role::k].extent.seq,
                      " rows long, over ", p.len_q, " and ", p.len_k);
  for (const Role r : {Role::q, Role::k, Role::v, Role::out, Role::d_out, Role::dq, Role::dk, Role::dv}) {
    if (!a.given(r) && sm90::is_wide(p)) continue;
    if (!a.given(r)) return Status::no(kWho, ": ", name(r), " is missing: computes all three gradients");
    const Tensor& t = a[r];
    if (t.extent.seq == 0 || t.extent.batch == 0) continue;  // nothing to address
    if (reinterpret_cast<uintptr_t>(t.data) % 16)
      return Status::no(kWho, ": ", name(r), " does not begin at a multiple of 16 bytes");
    const struct { int64_t step; int32_t extent; } axes[] = {
        {t.stride.batch, t.extent.batch}, {t.stride.seq, t.extent.seq}, {t.stride.head, t.extent.head}};
    for (const auto& [step, extent] : axes)
      if (step * size_of(t.dtype) % 16 || (step == 0 && extent > 1))
        return Status::no(kWho, ": ", name(r), " has a stride of ", step, " elements: not a multiple of 16 bytes");
  }
  return sm90::is_wide(p) ? sm90::wide_fits(kWho, plan, a) : Status::good();
}

// With a band, blocks differ in length: the longest of a section of heads come first, and what they read and add to
// stays in the second-level cache: q, d_out and dQ in f32. Without one, head after head.
int section(const Problem& p, const BackwardKernel& k) {
  if (p.mask.kind == MaskKind::full) return 1;
  const double bytes = double(p.len_q) * k.dim * (p.heads_q / p.heads_kv) * 8;
  int heads = 1;
  while (heads < kMostSectionHeads && 2 * heads * bytes <= kSectionBytes) heads *= 2;
  return heads;
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Problem& p = plan.problem;
  if (Status s = fits(plan, a); !s.ok()) return s;
  if (sm90::is_wide(p)) return sm90::wide_run(kWho, plan, a, ws, stream);
  BackwardKernel& k = kernel_of(p);
  const int rows = a[Role::q].extent.seq, keys = a[Role::k].extent.seq, device = a[Role::q].device_index;
  const int type = p.dtype.q == DType::bf16;
  const sm80::Place place{device, plan.device.arch};
  const cuda::Use use(device);
  if (!use.status.ok()) return Status::no(kWho, ": ", use.status.message, ", in: ", name(p));
  const Room room = carve(ws, p, k);
  const sm80::BackwardParams ends{.problem = p, .args = dense(a), .uniform = true, .seq = sequence(p, a, 0),
                                  .rows = room.stats, .dq = room.dq, .padded = int(padded(p, k)), .wide = k.dim,
                                  .group = p.heads_q / p.heads_kv, .scale = scale_of(p, a),
                                  .kept = sm80::kept(scale_of(p, a), p.dim_qk)};
  if (Status s = sm80::backward_prepare(kWho, ends, place, stream); !s.ok()) return s;
  if (keys > 0 && a[Role::k].extent.batch > 0) {
    const auto far = [](int64_t x) { return int(std::clamp<int64_t>(x, -kFar, kFar)); };
    const Band& band = ends.seq.band;
    BackwardParams x{.scale2 = ends.scale * kLog2e,
                     .kept = ends.kept.in,
                     .scale_k = ends.scale * ends.kept.out,
                     .rows = rows,
                     .keys = keys,
                     .heads = p.heads_q,
                     .heads_kv = p.heads_kv,
                     .group = ends.group,
                     .left = far(band.left),
                     .right = far(band.right),
                     .offset = far(band.q_first - band.k_first),
                     .tiles = int(ceil_div(keys, k.tile_k)),
                     .units = p.batch * p.heads_kv,
                     .section = section(p, k),
                     .padded = ends.padded,
                     .dq = room.dq};
    // A map is of something: where there are no queries, of a row of keys that nobody looks at.
    const Tensor &q = a[rows ? Role::q : Role::k], &d_out = a[rows ? Role::d_out : Role::v];
    const struct { Role role; const Tensor& of; CUtensorMap* map; int tile; } maps[] = {
        {Role::q, q, &x.q, k.tile_q},        {Role::d_out, d_out, &x.d_out, k.tile_q},
        {Role::k, a[Role::k], &x.k, k.tile_k}, {Role::v, a[Role::v], &x.v, k.tile_k},
        {Role::dk, a[Role::dk], &x.dk, 16},  {Role::dv, a[Role::dv], &x.dv, 16}};
    for (const auto& [role, of, map, tile] : maps)
      if (Status s = cuda::tensor_map(of, tile, *map); !s.ok())
        return Status::no(kWho, ": ", name(role), ": ", s.message, ", in: ", name(p));
    // Not by plain bulk copies: racecheck takes those for writes of the thread that asks.
    const int64_t line = 2 * int64_t(x.padded);
    if (Status s = cuda::line_map(&room.stats->x, line, x.heads, p.batch, 2 * k.tile_q, x.stats); !s.ok())
      return Status::no(kWho, ": statistics: ", s.message, ", in: ", name(p));
    const Status s = cuda::launch({.who = kWho,
                                   .kernel = reinterpret_cast<const void*>(k.function[type]),
                                   .ready = &k.ready[type],
                                   .blocks = int64_t(x.tiles) * p.batch * p.heads_kv,
                                   .threads = k.threads,
                                   .shared_bytes = k.shared_bytes,
                                   .device = device,
                                   .stream = stream,
                                   .early = true},
                                  p, &x);
    if (!s.ok()) return s;
  }
  return sm80::backward_finish(kWho, ends, place, stream);
}

}  // namespace

extern const Backend sm90_backward{.name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
