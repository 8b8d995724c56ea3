// SPDX-License-Identifier: Apache-2.0
// sm90_forward: the host side of sm90/forward/kernel.h. It serves problems with enough queries to fill the GPU. If
// lengths or block lists are in tensors, another kernel builds the tile table first. All other problems go to the next
// backend in the chain.
#include <algorithm>
#include <bit>

#include "attention/gpu/refusal.h"
#include "attention/sm90/forward/choice.h"
#include "attention/sm90/forward/instances.h"
#include "attention/sm90/forward/split_kv_host.h"
#include "attention/sm90/forward/tile_table.h"
#include "attention/sm90/schedule.h"
#include "attention/sm90/tensor_maps.h"
#include "core/args.h"
#include "core/check.h"
#include "core/score.h"
#include "machine/cuda/launcher.h"
#include "plan/backend.h"

namespace attune {
namespace {

using sm90::ForwardChoice;
using sm90::ForwardKernel;
using sm90::ForwardParams;
using sm90::ForwardSchedule;

constexpr std::string_view kWho = "sm90_forward";
constexpr int kFixedKeys = 1024;  // up to here tiles are static: the counter's latency would show
// Steps, at a value head dim of 128, that stream-K must save. Idle SMs leave their power to the others, the more so the
// more waves came before.
constexpr int64_t saved_steps(int64_t waves) { return std::min<int64_t>(24, 6 + 2 * waves); }
constexpr double kMuchSlower = 1.3;     // than the next backend: then that one serves
constexpr int kDecodeRowsOfHead = 64;  // rows per KV head up to which decode kernels serve

// A plan holds an index into these tables.
constexpr cuda::KernelTable<ForwardKernel> kKernels[] = {
    sm90::forward_kernels_64,          sm90::forward_kernels_96,          sm90::forward_kernels_128,
    sm90::forward_kernels_192,         sm90::forward_kernels_256,         sm90::forward_kernels_64_options,
    sm90::forward_kernels_128_options, sm90::forward_kernels_256_options, sm90::forward_kernels_64_lists,
    sm90::forward_kernels_128_lists,   sm90::forward_kernels_256_lists};

Status supports(const Problem& p, const Device& d) {
  const Mask& m = p.mask;
  const auto is_block = [](int size) { return size == 64 || size == 128; };
  const int longest = std::max(p.len_q, p.len_k);
  return cuda::Refusal(kWho, p, d)
      .needs_arch(90)
      .pass(Pass::forward)
      .no_variant()
      .without({Option::append, Option::rotary, Option::rotary_half, Option::descale, Option::block_bias})
      .require(p.dtype.bias != DType::f64, "bias dtype f64 is not one of f32, f16, bf16")
      .require(p.keys != KeySource::paged, "keys are paged; they must be linear or ragged")
      .require(p.reproducible != Reproducible::batch, "does not support repro=batch: bits may depend on the batch")
      .require(m.k_step == 1 && m.k_phase == 0, "mask ", name(m), " is not full, causal or a window")
      .require(!m.blocks.q || (is_block(m.blocks.q) && is_block(m.blocks.k)), "blocks of a list are ", m.blocks.q,
               " x ", m.blocks.k, "; they must have 64 or 128 queries and keys")
      .half_inputs()
      .out_like_q_or_f32()
      .dims(8, 256)
      .require(longest <= sm90::kMaxLen, "length ", longest, " is over 2^28")
      .status();
}

int64_t tiles_of(const Problem& p, const ForwardKernel& k) {
  return ceil_div(p.len_q, k.tile_q) * p.batch * p.heads_q;
}
// True if lengths and positions are in the arguments, not in tensors, as far as the problem shows.
bool in_arguments(const Problem& p) { return p.keys == KeySource::linear && p.mask.align != Align::absolute; }
bool may_stream_k(const Problem& p, const ForwardKernel& k) {
  return k.stream_k && !p.has(Option::sink) && p.len_k > 0 && in_arguments(p);
}
// Stream-K for the tiles left over after the last full wave, if it saves enough steps to pay for another kernel. Only
// with a full mask, whose tiles are all alike. With less than one wave, all tiles are divided if shape() chose that.
StreamK stream_k_of(const Plan& plan, const ForwardKernel& k) {
  const Problem& p = plan.problem;
  const int64_t sms = plan.device.units, tiles = tiles_of(p, k), steps = ceil_div(p.len_k, k.tile_k);
  const int64_t rest = tiles % sms, share = ceil_div(rest * steps, sms);
  if (!may_stream_k(p, k) || rest == 0) return {};
  if (tiles < sms) {
    const bool all = plan.splits > 1 && plan.tile_q == k.tile_q;
    return all ? sm90::stream_k_of_all(p, k.tile_q, k.tile_k, k.dim_v, int(sms)) : StreamK{};
  }
  if (p.mask.kind != MaskKind::full || steps - share < saved_steps(tiles / sms) * k.dim_v / 128) return {};
  return {int(rest), int(share), int(steps)};
}

// Queries and keys of a sequence. `tabled`: lengths or block lists are in tensors, or there are no keys.
struct Lengths {
  int rows, keys;
  bool tabled;
  bool operator==(const Lengths&) const = default;
};
Lengths planned_lengths(const Problem& p) {
  return {p.len_q, p.len_k, p.mask.blocks.q || !in_arguments(p) || p.len_k == 0};
}

// The schedule of calls with these lengths. With a band, tiles differ in length: the longest of a section of heads
// come first, and its keys stay in L2. Stream-K requires the natural order of tiles.
ForwardSchedule schedule_of(const Plan& plan, const ForwardKernel& k, const Lengths& x) {
  const Problem& p = plan.problem;
  const int packed = x.tabled || k.options ? 1 : sm90::packed_heads(p, x.rows, k.tile_q, plan.device.units);
  const bool whole = !x.tabled && packed == 1 && x.rows == p.len_q && x.keys == p.len_k;
  const StreamK stream_k = whole ? stream_k_of(plan, k) : StreamK{};
  const bool longest_first = p.mask.kind != MaskKind::full && !stream_k.tiles;
  return {.tabled = x.tabled,
          .longest_first = longest_first,
          .fixed = !longest_first && !x.tabled && x.keys <= kFixedKeys,
          .packed = packed,
          .stream_k = stream_k};
}
// The same, from the plan if these are its lengths.
ForwardSchedule schedule_for(const Plan& plan, const ForwardKernel& k, const Lengths& x) {
  return x == planned_lengths(plan.problem) ? plan.choice.as<ForwardChoice>().planned : schedule_of(plan, k, x);
}

// `partial_tiles` does not consider packed heads, with which stream-K is not used.
ForwardChoice choice_of(const Plan& plan, const ForwardKernel& k) {
  const StreamK stream_k = stream_k_of(plan, k);
  return {.split_kv = plan.tile_q == sm90::kSplitKvRows,
          .partial_tiles = stream_k.tiles ? stream_k.tiles + plan.device.units : 0,
          .planned = schedule_of(plan, k, planned_lengths(plan.problem))};
}

struct Buffers { unsigned long long* counters; sm90::TileTable table; float4* partials; };

Buffers carve(Workspace& ws, const Plan& plan, const ForwardKernel& k) {
  const Problem& p = plan.problem;
  const size_t partials = size_t(plan.choice.as<ForwardChoice>().partial_tiles) * size_t(k.tile_q / 16);
  return {ws.take<unsigned long long>(2),
          {ws.take<QueryTile>(size_t(sm90::table_bound(p, k.tile_q))), ws.take<int>(size_t(p.batch) + 1)},
          ws.take<float4>(partials * size_t(sm90::partial_size(k.dim_v)))};
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
bool may_split_kv(const Problem& p) { return !p.options && in_arguments(p); }

Status shape(Plan& plan, const Planner& planner) {
  const Problem& p = plan.problem;
  const int sms = plan.device.units;
  // With few queries, the choice of the fastest tile follows measured times. With many, three warpgroups pay off under
  // three conditions. A tile of 192 queries must have enough keys: 512, with a diagonal 2048. There must be enough
  // tiles that no SM waits long for the last. And the rows missing in the last tile must cost less than the eighth that
  // is gained.
  const bool full = p.mask.kind == MaskKind::full, f32_out = p.dtype.out == DType::f32;
  const bool listed = p.mask.blocks.q, options = needs_general(p);
  const int dim = std::max(p.dim_qk, p.dim_v);
  const bool plain = !f32_out && !listed && !options;
  const bool many = ceil_div(p.len_q, 192) * p.batch * p.heads_q >= 3 * sms;
  const bool often = many && p.len_k >= (full ? 512 : 2048) &&
                     ceil_div(p.len_q, 192) * 192 * 7 < ceil_div(p.len_q, 128) * 128 * 8;
  const sm90::TimeModel* way =
      listed || options ? nullptr : sm90::quickest(p, sms, {.split_kv = may_split_kv(p), .large = plain});
  const bool large = (dim <= 64 && plain && (way ? way->tile_q == 192 : often)) ||
                     (dim > 96 && dim <= 128 && plain && many && banded(p));
  const auto serves = [&](const ForwardKernel& x) {
    return x.dim >= p.dim_qk && x.dim_v >= p.dim_v && x.lists == lists_of(p) && x.options == options &&
           (x.f32_out == f32_out || x.runtime_out_type);
  };
  int divided_kernel = 0;
  const ForwardKernel* const k = cuda::find_kernel(
      kKernels, [&](const ForwardKernel& x) { return serves(x) && (x.tile_q > 128) == large; }, &plan.kernel);
  const ForwardKernel* const divided = cuda::find_kernel(
      kKernels, [&](const ForwardKernel& x) { return serves(x) && may_stream_k(p, x); }, &divided_kernel);
  if (!k) return Status::failure(Code::internal, kWho, ": no kernel of this build serves the problem: ", name(p));
  plan.tile_q = k->tile_q, plan.tile_k = k->tile_k, plan.splits = 1;
  const int64_t tiles = tiles_of(p, *k);
  if (divided && tiles_of(p, *divided) < sms) {
    const StreamK all = sm90::stream_k_of_all(p, divided->tile_q, divided->tile_k, divided->dim_v, sms);
    if (sm90::stream_k_pays(p, all, divided->dim_v, way, sms)) {
      plan.kernel = divided_kernel, plan.splits = int(ceil_div(all.steps, all.share));
      plan.tile_q = divided->tile_q, plan.tile_k = divided->tile_k;
    }
  }
  const bool forced = planner.forced == kWho;  // what would be correct, but slow, is not refused
  if (plan.splits == 1 && way && way->tile_q == sm90::kSplitKvRows) {
    plan.tile_q = way->tile_q, plan.tile_k = way->tile_k, plan.splits = way->splits;
    if (!forced && sm90::time_of(p, *way, sms) > kMuchSlower * sm90::next_link_time(p, dim))
      return Status::unsupported(kWho, ": ", tiles, " query tiles over ", p.len_k,
                                 " keys cannot be split here; sm80_forward is estimated to be faster");
  }
  const int64_t rows_of_head = int64_t(p.len_q) * (p.heads_q / p.heads_kv);
  if (!forced && rows_of_head <= kDecodeRowsOfHead)
    return Status::unsupported(kWho, ": ", rows_of_head, " rows per KV head do not fill a tile of ", k->tile_q,
                               "; sm80_forward is faster");
  if (!forced && plan.splits == 1 && 2 * tiles < sms)
    return Status::unsupported(kWho, ": ", tiles, " query tiles leave most of ", sms,
                               " SMs idle, and their keys cannot be split here");
  if (tiles >= 1 << sm90::kCountBits)
    return Status::unsupported(kWho, ": ", tiles, " query tiles are over 2^24 - 1");
  const ForwardKernel& chosen = cuda::kernel_at(kKernels, plan.kernel);
  plan.choice.set(choice_of(plan, chosen));
  Workspace count;
  carve(count, plan, chosen);
  plan.workspace_bytes = count.used;
  return Status::good();
}

// "stream-K over the last 44 of 176 tiles"
std::string words_of(const ForwardSchedule& s, int64_t tiles) {
  const std::string packed = s.packed > 1 ? join(", ", s.packed, " heads of a GQA group per tile") : "";
  if (s.tabled) return "tile table, longest tiles first";
  if (s.stream_k.tiles == tiles) return join("stream-K over all ", tiles, " tiles");
  if (s.stream_k.tiles) return join("stream-K over the last ", s.stream_k.tiles, " of ", tiles, " tiles");
  if (s.longest_first) return join("longest tiles first", packed);
  return join(s.fixed ? "static tiles" : "tiles from a counter", packed);
}

std::string describe(const Plan& plan) {
  const ForwardKernel& k = cuda::kernel_at(kKernels, plan.kernel);
  const ForwardChoice choice = plan.choice.as<ForwardChoice>();
  const bool listed = k.lists != sm90::Lists::none;
  const std::string dims = k.dim == k.dim_v ? join(k.dim) : join(k.dim, "/", k.dim_v);
  const std::string_view options = !k.options ? "" : listed ? " and options" : " with options";
  const std::string kernel =
      join("kernel d", dims, listed ? " with block lists" : "", options, ", ", k.tile_q, " x ", k.tile_k, " tiles, ",
           k.tile_q / 64, " warpgroups, persistent; ", words_of(choice.planned, tiles_of(plan.problem, k)));
  if (!choice.split_kv) return kernel;
  return join("split-KV kernel, ", plan.splits, " warpgroups share the keys; calls that it does not serve: ", kernel);
}

// True if k and v are broadcast over this axis: one head, or one sequence, for all.
bool is_broadcast(const Args& a, int64_t Strides::*axis) {
  return !(a[Role::k].stride.*axis || a[Role::v].stride.*axis);
}

Status fits(const Plan&, const Args& a) {
  for (const Role r : {Role::q, Role::k, Role::v, Role::out}) {
    Tensor t = a[r];
    const bool of_keys = r == Role::k || r == Role::v;
    if (of_keys && is_broadcast(a, &Strides::batch)) t.extent.batch = std::min(t.extent.batch, 1);
    if (of_keys && is_broadcast(a, &Strides::head)) t.extent.head = std::min(t.extent.head, 1);
    if (Status s = cuda::mappable(kWho, r, t); !s.ok()) return s;
  }
  return Status::good();
}

// A call: its arguments, and what only they show.
struct Call {
  const Args& args;
  Tensor k, v;        // extent 1 where they are broadcast
  bool per_sequence;  // sequences differ: lengths or positions are in tensors, or there are no keys
  Lengths lengths;
  bool plain;         // sm90/forward/split_kv.h serves it
};

Call call_of(const Problem& p, const Args& a, const Buffers& buffers) {
  Tensor k = a[Role::k], v = a[Role::v];
  const int rows = a[Role::q].extent.seq, keys = k.extent.seq;
  const bool empty = keys == 0 || k.extent.batch == 0;
  // A tensor map cannot be empty; with no keys, map one dummy row that is never read.
  if (empty) k = v = {.data = buffers.counters, .dtype = p.dtype.kv, .extent = {1, 1, 1, 64}};
  if (is_broadcast(a, &Strides::head)) k.extent.head = v.extent.head = 1;
  if (is_broadcast(a, &Strides::batch)) k.extent.batch = v.extent.batch = 1;
  const bool per_sequence = empty || has_sequence_tensors(a), tabled = per_sequence || p.mask.blocks.q;
  return {.args = a,
          .k = k,
          .v = v,
          .per_sequence = per_sequence,
          .lengths = {rows, keys, tabled},
          .plain = !tabled && k.extent.head == p.heads_kv && k.extent.batch == p.batch};
}

ForwardParams params_of(const Problem& p, const ForwardKernel& k, const Call& call, const ForwardSchedule& schedule,
                        const Buffers& buffers) {
  const Args& a = call.args;
  const auto [rows, keys, tabled] = call.lengths;
  const Band band = band_of(p.mask, rows, keys, 0, 0);
  const int packed = schedule.packed, packed_rows = k.tile_q / packed, heads_per_key = p.heads_q / p.heads_kv / packed;
  const double keys_of_head = tabled ? double(keys) * a[Role::k].extent.batch : keys;
  const int section = sm90::section_heads(keys_of_head * (p.dim_qk + p.dim_v) * 2) * heads_per_key;
  ForwardParams x{.scale = scale_of(p, a) * kLog2e,
                  .rows = rows,
                  .keys = keys,
                  .heads = p.heads_q / packed,
                  .heads_total = p.mask.blocks.q ? 1 : tabled ? p.heads_q : p.batch * p.heads_q / packed,
                  .heads_per_key = heads_per_key,
                  .packed = packed,
                  .row_mask = packed > 1 ? packed_rows - 1 : sm90::kMaxLen - 1,
                  .row_shift = packed > 1 ? std::countr_zero(unsigned(packed_rows)) : 31,
                  .left = sm90::clamp_len(band.left),
                  .right = sm90::clamp_len(band.right),
                  .offset = sm90::clamp_len(band.q_first - band.k_first),
                  .tiles_of_head = int(ceil_div(rows, k.tile_q)),
                  .section_heads = schedule.longest_first || tabled ? section : 1,
                  .longest_first = schedule.longest_first,
                  .stream_k = schedule.stream_k,
                  .partials = buffers.partials,
                  .fixed = schedule.fixed,
                  .epoch = cuda::launch_tag() >> sm90::kCountBits | 1,  // 0 is what the last CTA leaves
                  .counters = buffers.counters,
                  .table = tabled ? buffers.table.tile : nullptr,
                  .table_tiles = buffers.table.begin + p.batch,
                  .column = a.row<const int32_t>(Role::block_column),
                  .key_tiles_per_block_shift = p.mask.blocks.k > k.tile_k,
                  .one_list = p.mask.blocks.q == k.tile_q,
                  .k_rows = call.k.extent.seq,
                  .k_heads = call.k.extent.head,
                  .k_batches = call.k.extent.batch,
                  .dim_v = p.dim_v,
                  .accumulate = p.has(Option::accumulate),
                  .score = sm90::score_options(p, a)};
  const Tensor &out = a[Role::out], &lse = a[Role::lse];
  if (p.dtype.out == DType::f32) x.f32_out = static_cast<float*>(out.data), x.f32_stride = out.stride;
  if (a.given(Role::lse)) x.lse = static_cast<float*>(lse.data), x.lse_stride = lse.stride;
  if (p.has(Option::sink)) x.sinks = a.row<const float>(Role::sinks), x.sink_stride = a[Role::sinks].stride.head;
  return x;
}

Status map_tensors(const Problem& p, const ForwardKernel& k, const Call& call, ForwardParams& x) {
  const Tensor &q = call.args[Role::q], &out = call.args[Role::out];
  const bool tabled = call.lengths.tabled, stored = p.dtype.out != DType::f32;
  return sm90::make_maps(kWho, p,
                         {{Role::q, q, &x.q, k.tile_q / x.packed, true, x.packed},
                          {Role::k, call.k, &x.k, k.tile_k},
                          {Role::v, call.v, &x.v, k.tile_k},
                          {Role::v, call.v, &x.v_end[0], sm90::end_box_rows(0), tabled},
                          {Role::v, call.v, &x.v_end[1], sm90::end_box_rows(1), tabled},
                          {Role::v, call.v, &x.v_end[2], sm90::end_box_rows(2), tabled},
                          {Role::out, out, &x.out, 16, stored},
                          {Role::out, out, &x.out_row, 1, stored && tabled}});
}

// Builds the tile table for `blocks` CTAs. If only the lists are in tensors, CTAs may find their first tiles alone.
Status build_table(const cuda::Launcher& launcher, const Problem& p, const ForwardKernel& k, const Call& call,
                   const sm90::TileTable& table, int64_t blocks, ForwardParams& x) {
  const Args& a = call.args;
  if (!p.mask.blocks.q || call.per_sequence || p.keys != KeySource::linear)
    return sm90::make_table(launcher, sm90::TableParams{p, dense(a), table, k.tile_q, k.tile_k});
  const ListTiles lists = list_tiles(p, a, k.tile_q, k.tile_k);
  const int ahead = k.ahead ? int(std::min<int64_t>(blocks, lists.count)) : 0;
  if (ahead) x.lists = lists;
  return sm90::make_table(launcher, sm90::ListTableParams{lists, table.tile, table.begin + p.batch, ahead});
}

Status combine_tiles(const cuda::Launcher& launcher, const Problem& p, const ForwardKernel& k, const Tensor& out,
                     const ForwardParams& x) {
  return sm90::combine_partials(launcher, p.dtype.q,
                                {.stream_k = x.stream_k,
                                 .partials = x.partials,
                                 .warps = k.tile_q / 16,
                                 .dim = k.dim_v,
                                 .first = x.tiles_of_head * x.heads_total - x.stream_k.tiles,
                                 .tiles_of_head = x.tiles_of_head,
                                 .heads = p.heads_q,
                                 .rows = x.rows,
                                 .dim_v = p.dim_v,
                                 .out = static_cast<char*>(out.data),
                                 .out_stride = out.stride,
                                 .lse = x.lse,
                                 .lse_stride = x.lse_stride});
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Problem& p = plan.problem;
  if (Status s = fits(plan, a); !s.ok()) return s;
  if (a[Role::q].extent.seq == 0 || a[Role::q].extent.batch == 0) return Status::good();
  ForwardKernel& k = cuda::kernel_at(kKernels, plan.kernel);
  const Buffers buffers = carve(ws, plan, k);
  const Call call = call_of(p, a, buffers);
  if (sm90::is_split_kv(plan) && call.plain) return sm90::split_kv_run(kWho, plan, a, stream);
  const ForwardSchedule schedule = schedule_for(plan, k, call.lengths);
  ForwardParams x = params_of(p, k, call, schedule, buffers);
  if (Status s = map_tensors(p, k, call, x); !s.ok()) return s;
  const cuda::Launcher launcher(kWho, p, a[Role::q].device_index, stream);
  if (!launcher.status.ok()) return launcher.status;
  const int sms = plan.device.units;
  const int64_t tiles = (schedule.tabled ? sm90::table_bound(p, k.tile_q) : int64_t(x.tiles_of_head)) * x.heads_total;
  const int64_t blocks = schedule.stream_k.tiles ? sms : std::min<int64_t>(sms, tiles);
  if (schedule.tabled)
    if (Status s = build_table(launcher, p, k, call, buffers.table, blocks, x); !s.ok()) return s;
  cuda::Launch launch = cuda::launch_of(k, p.dtype.q);
  launch.blocks = blocks, launch.dependent = true;
  if (Status s = launcher(launch, x); !s.ok() || !schedule.stream_k.tiles) return s;
  return combine_tiles(launcher, p, k, a[Role::out], x);
}

}  // namespace

extern const Backend sm90_forward{
    .name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits, .describe = describe};

}  // namespace attune
