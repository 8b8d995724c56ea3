// sm90_forward: the host side of sm90/forward/kernel.h. It serves problems with enough queries to fill the GPU. If
// lengths or block lists are in tensors, another kernel builds the tile table first. All other problems go to the next
// backend in the chain.
#include <algorithm>
#include <bit>

#include "attention/sm90/forward/split_kv_host.h"
#include "attention/sm90/forward/instances.h"
#include "attention/sm90/forward/tile_table.h"
#include "attention/sm90/schedule.h"
#include "core/args.h"
#include "core/check.h"
#include "core/score.h"
#include "machine/cuda/tensor_map.h"
#include "plan/backend.h"

namespace attune {
namespace {

using sm90::ForwardKernel;
using sm90::ForwardParams;

constexpr std::string_view kWho = "sm90_forward";
constexpr int kFixedKeys = 1024;  // up to here tiles are static: the counter's latency would show
// Steps, at a value head dim of 128, that stream-K must save. Idle SMs leave their power to the others, the more so the
// more waves came before.
constexpr int64_t shared_steps(int64_t waves) { return std::min<int64_t>(24, 6 + 2 * waves); }
constexpr double kMuchSlower = 1.3;     // than the next backend: then that one serves
constexpr int kDecodeRowsOfHead = 64;  // rows per KV head up to which decode kernels serve
// The roles that sequence() reads on the GPU.
constexpr Role kLengths[] = {Role::cu_q,     Role::cu_k,        Role::used_q,   Role::used_k,
                             Role::left_pad, Role::cache_index, Role::positions};

// A plan holds an index into these tables.
constexpr cuda::KernelTable<ForwardKernel> kKernels[] = {
    sm90::forward_kernels_64,          sm90::forward_kernels_96,          sm90::forward_kernels_128,
    sm90::forward_kernels_192,         sm90::forward_kernels_256,         sm90::forward_kernels_64_options,
    sm90::forward_kernels_128_options, sm90::forward_kernels_256_options, sm90::forward_kernels_64_lists,
    sm90::forward_kernels_128_lists,   sm90::forward_kernels_256_lists};

Status supports(const Problem& p, const Device& d) {
  const auto no = [](const auto&... why) { return Status::no(kWho, ": ", why...); };
  if (d.kind != DeviceKind::cuda) return no("runs on a GPU, not on ", d.name.empty() ? "a CPU" : d.name);
  if (d.arch != 90) return no("needs a GPU of arch 90, ", d.name, " is ", d.arch);
  if (p.pass != Pass::forward) return no("computes a forward, not a ", name(p.pass));
  if (!word(p.variant).empty()) return no("does not know the variant ", word(p.variant));
  for (const Option o : {Option::append, Option::rotary, Option::rotary_half, Option::descale, Option::block_bias})
    if (p.has(o)) return no("does not serve the option ", name(o));
  if (p.dtype.bias == DType::f64) return no("bias dtype f64 is not one of f32, f16, bf16");
  if (p.keys == KeySource::paged) return no("keys are linear or ragged, not ", name(p.keys));
  if (p.reproducible == Reproducible::batch) return no("does not promise a row's bits whatever the batch");
  const Mask& m = p.mask;
  if (m.k_step != 1 || m.k_phase != 0) return no("mask ", name(m), " is not full, causal or a window");
  const auto block = [](int size) { return size == 64 || size == 128; };
  if (m.blocks.q && !(block(m.blocks.q) && block(m.blocks.k)))
    return no("blocks of a list have 64 or 128 queries and keys, not ", m.blocks.q, " x ", m.blocks.k);
  if (p.dtype.q != DType::f16 && p.dtype.q != DType::bf16)
    return no("dtype ", name(p.dtype.q), " is not one of f16, bf16");
  if (p.dtype.kv != p.dtype.q) return no("q is ", name(p.dtype.q), " and kv is ", name(p.dtype.kv));
  if (p.dtype.out != p.dtype.q && p.dtype.out != DType::f32)
    return no("out dtype ", name(p.dtype.out), " is neither ", name(p.dtype.q), " nor f32");
  for (const int dim : {p.dim_qk, p.dim_v})
    if (dim % 8 || dim > 256) return no("dim ", dim, " is not a multiple of 8 up to 256");
  if (p.len_q > sm90::kMaxLen || p.len_k > sm90::kMaxLen) return no("lengths are at most 2^28");
  return Status::good();
}

int64_t tiles_of(const Problem& p, const ForwardKernel& k) {
  return ceil_div(p.len_q, k.tile_q) * p.batch * p.heads_q;
}
// True if lengths and positions are in the arguments, not in tensors, as far as the problem shows.
bool in_arguments(const Problem& p) { return p.keys == KeySource::linear && p.mask.align != Align::absolute; }
bool may_share(const Problem& p, const ForwardKernel& k) {
  return k.stream_k && !p.has(Option::sink) && p.len_k > 0 && in_arguments(p);
}
// Stream-K for the tiles left over after the last full wave, if it saves enough steps to pay for another kernel. Only
// with a full mask, whose tiles are all alike. With less than one wave, all tiles are divided if shape() chose that.
StreamK stream_k_of(const Plan& plan, const ForwardKernel& k) {
  const Problem& p = plan.problem;
  const int64_t units = plan.device.units, tiles = tiles_of(p, k), steps = ceil_div(p.len_k, k.tile_k);
  const int64_t rest = tiles % units, share = ceil_div(rest * steps, units);
  if (!may_share(p, k) || rest == 0) return {};
  if (tiles < units) {
    const bool all = plan.splits > 1 && plan.tile_q == k.tile_q;
    return all ? sm90::shared_by_all(p, k.tile_q, k.tile_k, k.dim_v, int(units)) : StreamK{};
  }
  if (p.mask.kind != MaskKind::full || steps - share < shared_steps(tiles / units) * k.dim_v / 128) return {};
  return {int(rest), int(share), int(steps)};
}

struct Room { unsigned long long* counters; sm90::TileTable table; float4* parts; };

Room carve(Workspace& ws, const Plan& plan, const ForwardKernel& k) {
  const Problem& p = plan.problem;
  const StreamK stream_k = stream_k_of(plan, k);
  const size_t parts = stream_k.tiles ? size_t(stream_k.tiles + plan.device.units) * size_t(k.tile_q / 16) : 0;
  return {ws.take<unsigned long long>(2),
          {ws.take<QueryTile>(size_t(sm90::table_bound(p, k.tile_q))), ws.take<int>(size_t(p.batch) + 1)},
          ws.take<float4>(parts * size_t(sm90::partial_size(k.dim_v)))};
}

sm90::Lists lists_of(const Problem& p) {
  const Blocks& size = p.mask.blocks;
  if (!size.q) return sm90::Lists::none;
  return size.q == sm90::kListBlock && size.k == sm90::kListBlock && !needs_general(p) ? sm90::Lists::one
                                                                                      : sm90::Lists::each;
}

// A window of some hundred keys in longer sequences: at d128 three warpgroups with their own key tiles pay off.
bool banded(const Problem& p) {
  const Mask& m = p.mask;
  if (m.kind != MaskKind::window || m.left == kNoLimit || m.right == kNoLimit || p.len_k < 2048) return false;
  const int64_t seen = int64_t(m.left) + m.right + 1;
  return seen > 256 && seen <= 1536;
}

// True if the kernels of sm90/forward/split_kv.h serve the problem.
bool shares_queries(const Problem& p) { return !p.options && in_arguments(p); }

Status shape(Plan& plan, const Planner& planner) {
  const Problem& p = plan.problem;
  // With few queries, the choice of the fastest tile follows measured times. With many, three warpgroups pay off under
  // three conditions. A tile of 192 queries must have enough keys: 512, with a diagonal 2048. There must be enough
  // tiles that no SM waits long for the last. And the rows missing in the last tile must cost less than the eighth that
  // is gained.
  const bool full = p.mask.kind == MaskKind::full, f32_out = p.dtype.out == DType::f32;
  const bool listed = p.mask.blocks.q, options = needs_general(p);
  const int dim = std::max(p.dim_qk, p.dim_v);
  const bool plain = !f32_out && !listed && !options;
  const bool many = ceil_div(p.len_q, 192) * p.batch * p.heads_q >= 3 * plan.device.units;
  const bool often = many && p.len_k >= (full ? 512 : 2048) &&
                     ceil_div(p.len_q, 192) * 192 * 7 < ceil_div(p.len_q, 128) * 128 * 8;
  const sm90::TimeModel* way =
      listed || options ? nullptr : sm90::quickest(p, plan.device.units, shares_queries(p), plain);
  const bool large = (dim <= 64 && plain && (way ? way->tile_q == 192 : often)) ||
                     (dim > 96 && dim <= 128 && plain && many && banded(p));
  const auto serves = [&](const ForwardKernel& x) {
    return x.dim >= p.dim_qk && x.dim_v >= p.dim_v && x.lists == lists_of(p) && x.options == options &&
           (x.f32_out == f32_out || x.runtime_out_type);
  };
  int sharing = 0;
  const ForwardKernel& k = *cuda::find_kernel(
      kKernels, [&](const ForwardKernel& x) { return serves(x) && (x.tile_q > 128) == large; }, &plan.kernel);
  const ForwardKernel* const parts = cuda::find_kernel(
      kKernels, [&](const ForwardKernel& x) { return serves(x) && may_share(p, x); }, &sharing);
  plan.tile_q = k.tile_q, plan.tile_k = k.tile_k, plan.splits = 1;
  const int64_t tiles = tiles_of(p, k);
  if (parts && tiles_of(p, *parts) < plan.device.units) {
    const StreamK all = sm90::shared_by_all(p, parts->tile_q, parts->tile_k, parts->dim_v, plan.device.units);
    if (sm90::sharing_pays(p, all, parts->dim_v, way, plan.device.units)) {
      plan.kernel = sharing, plan.splits = int(ceil_div(all.steps, all.share));
      plan.tile_q = parts->tile_q, plan.tile_k = parts->tile_k;
    }
  }
  if (plan.splits == 1 && way && way->tile_q == sm90::kSplitKvRows) {
    plan.tile_q = way->tile_q, plan.tile_k = way->tile_k, plan.splits = way->splits;
    if (planner.forced != kWho &&
        sm90::time_of(p, *way, plan.device.units) > kMuchSlower * sm90::next_link_time(p, dim))
      return Status::no(kWho, ": keys of ", tiles, " tiles of queries are not split, and ", p.len_k, " are many");
  }
  // Both would be correct, but slow.
  if (planner.forced != kWho && int64_t(p.len_q) * (p.heads_q / p.heads_kv) <= kDecodeRowsOfHead)
    return Status::no(kWho, ": ", p.len_q, " queries are few, and a tile has ", k.tile_q);
  if (planner.forced != kWho && plan.splits == 1 && 2 * tiles < plan.device.units)
    return Status::no(kWho, ": ", tiles, " tiles of queries leave most of ", plan.device.units,
                      " multiprocessors idle, and keys are not split");
  if (tiles >= 1 << sm90::kCountBits) return Status::no(kWho, ": ", tiles, " tiles of queries are over 2^24 - 1");
  Workspace count;
  carve(count, plan, cuda::kernel_at(kKernels, plan.kernel));
  plan.workspace_bytes = count.used;
  return Status::good();
}

// True if k and v are broadcast over this axis: one head, or one sequence, for all.
bool shared(const Args& a, int64_t Strides::*axis) { return !(a[Role::k].stride.*axis || a[Role::v].stride.*axis); }

Status fits(const Plan&, const Args& a) {
  for (const Role r : {Role::q, Role::k, Role::v, Role::out}) {
    Tensor t = a[r];
    if ((r == Role::k || r == Role::v) && shared(a, &Strides::batch)) t.extent.batch = std::min(t.extent.batch, 1);
    if ((r == Role::k || r == Role::v) && shared(a, &Strides::head)) t.extent.head = std::min(t.extent.head, 1);
    if (Status s = cuda::mappable(kWho, r, t); !s.ok()) return s;
  }
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Problem& p = plan.problem;
  if (Status s = fits(plan, a); !s.ok()) return s;
  const int rows = a[Role::q].extent.seq, keys = a[Role::k].extent.seq;
  if (rows == 0 || a[Role::q].extent.batch == 0) return Status::good();
  ForwardKernel& k = cuda::kernel_at(kKernels, plan.kernel);
  const Room room = carve(ws, plan, k);
  Tensor k_all = a[Role::k], v_all = a[Role::v];
  const bool empty = keys == 0 || k_all.extent.batch == 0;
  // A tensor map cannot be empty; with no keys, map one dummy row that is never read.
  if (empty) k_all = v_all = {.data = room.counters, .dtype = p.dtype.kv, .extent = {1, 1, 1, 64}};
  if (shared(a, &Strides::head)) k_all.extent.head = v_all.extent.head = 1;
  if (shared(a, &Strides::batch)) k_all.extent.batch = v_all.extent.batch = 1;
  const bool listed = p.mask.blocks.q;
  const auto given = [&](Role r) { return a.given(r); };
  const bool lengths = empty || std::any_of(std::begin(kLengths), std::end(kLengths), given);
  const bool tabled = lengths || listed;
  const bool plain = !tabled && k_all.extent.head == p.heads_kv && k_all.extent.batch == p.batch;
  if (sm90::is_split_kv(plan) && plain) return sm90::split_kv_run(kWho, plan, a, stream);
  const Band band = band_of(p.mask, rows, keys, 0, 0);
  const int packed = tabled || k.options ? 1 : sm90::packed_heads(p, rows, k.tile_q, plan.device.units);
  const int packed_rows = k.tile_q / packed;
  const bool whole = !tabled && packed == 1 && rows == p.len_q && keys == p.len_k;
  const StreamK stream_k = whole ? stream_k_of(plan, k) : StreamK{};
  ForwardParams x{.scale = scale_of(p, a) * kLog2e,
                  .rows = rows,
                  .keys = keys,
                  .heads = p.heads_q / packed,
                  .units = listed ? 1 : tabled ? p.heads_q : p.batch * p.heads_q / packed,
                  .heads_per_key = p.heads_q / p.heads_kv / packed,
                  .packed = packed,
                  .row_mask = packed > 1 ? packed_rows - 1 : sm90::kMaxLen - 1,
                  .row_shift = packed > 1 ? std::countr_zero(unsigned(packed_rows)) : 31,
                  .left = sm90::clamp_len(band.left),
                  .right = sm90::clamp_len(band.right),
                  .offset = sm90::clamp_len(band.q_first - band.k_first),
                  .stream_k = stream_k,
                  .parts = room.parts,
                  .epoch = cuda::launch_tag() >> sm90::kCountBits | 1,  // 0 is what the last CTA leaves
                  .counters = room.counters,
                  .table = tabled ? room.table.tile : nullptr,
                  .table_tiles = room.table.begin + p.batch,
                  .column = a.row<const int32_t>(Role::block_column),
                  .key_tiles_per_block_shift = p.mask.blocks.k > k.tile_k,
                  .one_list = p.mask.blocks.q == k.tile_q,
                  .k_rows = k_all.extent.seq,
                  .k_heads = k_all.extent.head,
                  .k_batches = k_all.extent.batch,
                  .dim_v = p.dim_v,
                  .accumulate = p.has(Option::accumulate),
                  .score = sm90::score_options(p, a)};
  const Tensor &q = a[Role::q], &out = a[Role::out];
  const struct { Role role; const Tensor& of; CUtensorMap* map; int tile; bool always; int heads = 1; } maps[] = {
      {Role::q, q, &x.q, packed_rows, true, packed},
      {Role::k, k_all, &x.k, k.tile_k, true},
      {Role::v, v_all, &x.v, k.tile_k, true},
      {Role::v, v_all, &x.v_end[0], sm90::end_box_rows(0), false},
      {Role::v, v_all, &x.v_end[1], sm90::end_box_rows(1), false},
      {Role::v, v_all, &x.v_end[2], sm90::end_box_rows(2), false},
      {Role::out, out, &x.out, 16, true},
      {Role::out, out, &x.out_row, 1, false}};
  const bool f32_out = p.dtype.out == DType::f32;
  if (f32_out) x.f32_out = static_cast<float*>(a[Role::out].data), x.f32_stride = a[Role::out].stride;
  for (const auto& [role, of, map, tile, always, heads] : maps) {
    if ((f32_out && role == Role::out) || !(always || tabled)) continue;
    if (Status s = cuda::tensor_map(of, tile, *map, heads); !s.ok())
      return Status::no(kWho, ": ", name(role), ": ", s.message, ", in: ", name(p));
  }
  x.tiles_of_head = int(ceil_div(rows, k.tile_q));
  const int64_t tiles = tabled ? sm90::table_bound(p, k.tile_q) * x.units : int64_t(x.tiles_of_head) * x.units;
  // With a band, tiles differ in length: the longest of a section of heads come first, and its keys stay in L2.
  // Stream-K requires the natural order of tiles.
  x.longest_first = p.mask.kind != MaskKind::full && !stream_k.tiles;
  x.fixed = !x.longest_first && !tabled && keys <= kFixedKeys;
  const double keys_of_unit = tabled ? double(keys) * a[Role::k].extent.batch : keys;
  const int heads = sm90::section_heads(keys_of_unit * (p.dim_qk + p.dim_v) * 2);
  x.section_heads = x.longest_first || tabled ? heads * x.heads_per_key : 1;
  if (a.given(Role::lse)) {
    x.lse = static_cast<float*>(a[Role::lse].data), x.lse_stride = a[Role::lse].stride;
  }
  if (p.has(Option::sink)) x.sinks = a.row<const float>(Role::sinks), x.sink_stride = a[Role::sinks].stride.head;
  const cuda::DeviceGuard use(a[Role::q].device_index);
  if (!use.status.ok()) return Status::no(kWho, ": ", use.status.message, ", in: ", name(p));
  const int64_t blocks = stream_k.tiles ? plan.device.units : std::min<int64_t>(plan.device.units, tiles);
  if (tabled) {
    const int device = a[Role::q].device_index;
    const auto make = [&] {
      if (!listed || lengths || p.keys != KeySource::linear)
        return sm90::make_table(kWho, {p, dense(a), room.table, k.tile_q, k.tile_k}, device, stream);
      const ListTiles lists = list_tiles(p, a, k.tile_q, k.tile_k);
      const int ahead = k.ahead ? int(std::min<int64_t>(blocks, lists.count)) : 0;
      if (ahead) x.lists = lists;
      return sm90::make_table(kWho, p, {lists, room.table.tile, room.table.begin + p.batch, ahead}, device, stream);
    };
    if (Status s = make(); !s.ok()) return s;
  }
  cuda::Launch launch = cuda::launch_of(k, p.dtype.q);
  launch.who = kWho, launch.early = true;
  launch.blocks = blocks, launch.device = a[Role::q].device_index, launch.stream = stream;
  if (Status s = cuda::launch(launch, p, &x); !s.ok() || !stream_k.tiles) return s;
  const sm90::CombineParams parts{.stream_k = stream_k,
                                .parts = room.parts,
                                .warps = k.tile_q / 16,
                                .dim = k.dim_v,
                                .first = int(tiles) - stream_k.tiles,
                                .tiles_of_head = x.tiles_of_head,
                                .heads = p.heads_q,
                                .rows = rows,
                                .dim_v = p.dim_v,
                                .out = static_cast<char*>(out.data),
                                .out_stride = out.stride,
                                .lse = x.lse,
                                .lse_stride = x.lse_stride};
  return sm90::join_parts(kWho, p, parts, launch.device, stream);
}

}  // namespace

extern const Backend sm90_forward{.name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
