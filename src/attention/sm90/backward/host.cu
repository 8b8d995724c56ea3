// sm90_backward: the host side of sm90/backward/kernel.h. A run is the preprocessing, the kernel that owns keys, then
// the postprocessing, each of which starts while the one before it ends. If lengths are in tensors, another kernel
// builds the table of key tiles first. If GQA groups are divided, a combine kernel adds up their dK and dV. All other
// problems go to the next backend in the chain.
#include <algorithm>

#include "attention/gpu/backward_pre_post_host.h"
#include "attention/sm90/backward/general/instances.h"
#include "attention/sm90/backward/instances.h"
#include "attention/sm90/backward/tile_table.h"
#include "attention/sm90/backward/two_kernel/instances.h"
#include "attention/sm90/backward/split_heads.h"
#include "attention/sm90/schedule.h"
#include "core/check.h"
#include "core/work.h"
#include "core/score.h"
#include "machine/cuda/tensor_map.h"

namespace attune {
namespace {

using sm90::BackwardKernel;
using sm90::TabledParams;

constexpr std::string_view kWho = "sm90_backward";
// Longest sequence for which the deterministic kernel is fastest: full and causal mask, over d64 and up to d64.
// Requires kManyTiles tiles of 128 keys and kManyHeads heads.
constexpr int kShort = 512, kShortCausal = 1024, kShortNarrow = 256, kShortCausalNarrow = 512;
constexpr int kManyTiles = 1024, kTileK = 128, kManyHeads = 256;
constexpr int kLong = 1024, kLongCausal = 2048;  // keys from which tiles are transposed: full and causal mask
constexpr double kLongRows = 3072;               // with a window: the mean number of rows that see a key
constexpr int kTransposedTileQ = 80;             // queries of a transposed tile
constexpr int kMostTransposed = 1 << 23;         // queries: offsets into a head's sums are 32 bits
// Bits of Plan::kernel above the head dim.
constexpr int kInOrder = 1 << 10, kWithOptions = 2 << 10, kWithList = 4 << 10, kOfTransposed = 8 << 10,
              kOfParts = 16 << 10;
constexpr int kCounted = 32 << 10;    // persistent CTAs take tiles from a counter
constexpr int kPreparing = 64 << 10;  // their idle warps prepare later heads
constexpr int kWithTable = 128 << 10;
static_assert(sm90::kTicketRows == sm80::kTicketRows);

// For the lengths of the plan; those of a run may be shorter.
KeyTile keys_of(const Problem& p) {
  return key_tile_of({.len_q = p.len_q, .len_k = p.len_k, .band = band_of(p.mask, p.len_q, p.len_k, 0, 0)}, 0);
}

// With few keys, a deterministic order costs less than clearing the sums of dQ.
bool is_quicker_in_order(const Problem& p) {
  const int dim = std::max(p.dim_qk, p.dim_v);
  const bool plain = !sm90::needs_table(p) && p.keys == KeySource::linear && p.heads_q == p.heads_kv &&
                     p.mask.kind != MaskKind::window && p.mask.align != Align::absolute;
  const bool causal = p.mask.kind == MaskKind::causal;
  const int most = dim <= 64 ? (causal ? kShortCausalNarrow : kShortNarrow) : causal ? kShortCausal : kShort;
  const int64_t heads = int64_t(p.batch) * p.heads_q;
  return dim <= 128 && plain && p.len_q <= most && p.len_k <= most &&
         heads >= kManyHeads && ceil_div(p.len_k, kTileK) * heads >= kManyTiles &&
         every_query_sees(keys_of(p));
}
bool ordered(const Problem& p) { return p.reproducible != Reproducible::no || is_quicker_in_order(p); }

// Mean number of rows that see a key.
double rows_of_key(const Problem& p) {
  const Band band = band_of(p.mask, p.len_q, p.len_k, 0, 0);
  return visible_pairs(band, {0, p.len_q}, {0, p.len_k}) / std::max(p.len_k, 1);
}

// With many keys, steps have 80 queries instead of 64. They take a twentieth less time per query, unless rounding up to
// whole steps adds more than that.
bool transposes(const Problem& p) {
  const int dim = std::max(p.dim_qk, p.dim_v);
  const bool full = p.mask.kind == MaskKind::full, causal = p.mask.kind == MaskKind::causal;
  const bool many = full     ? p.len_k >= kLong
                    : causal ? p.len_k >= kLongCausal
                             : rows_of_key(p) >= kLongRows;
  return dim > 96 && dim <= 128 && many && p.len_q <= kMostTransposed && p.keys == KeySource::linear && !ordered(p) &&
         !sm90::needs_table(p) && round_up(p.len_q, kTransposedTileQ) * 19 <= round_up(p.len_q, 64) * 20;
}

// Fraction of the mask in the list, if the list is full and not shared with other heads.
double part_of_list(const Problem& p) {
  const Blocks& size = p.mask.blocks;
  if (!size.q) return 1;
  const double all = double(p.batch) * p.heads_q * double(ceil_div(p.len_q, size.q) * ceil_div(p.len_k, size.k));
  return std::min(size.bound / std::max(all, 1.), 1.);
}
// Lists with persistent CTAs. GQA groups gained nothing from it.
bool persistent_with_list(const Problem& p) {
  const int dim = std::max(p.dim_qk, p.dim_v);
  return p.mask.blocks.q && dim > 64 && dim <= 128 && p.heads_q == p.heads_kv && p.keys == KeySource::linear &&
         p.mask.align != Align::absolute && p.dtype.grad == p.dtype.q && !needs_general(p) && !ordered(p);
}

struct Taken { bool lengths, in_order, persistent = false, transposed = false, parted = false, pieced = false; };
BackwardKernel& kernel_of(const Problem& p, Taken by) {
  const int dim = std::max(p.dim_qk, p.dim_v);
  sm90::TransposedKernels& transposed = sm90::transposed_kernels_128();
  if (by.parted && by.transposed) return transposed.parted;
  if (by.parted) return (dim <= 64 ? sm90::backward_kernels_64() : sm90::backward_kernels_128()).parted[by.in_order];
  if (by.transposed) return by.pieced ? transposed.pieced : by.persistent ? transposed.persistent : transposed.plain;
  const bool tabled = by.lengths || sm90::needs_table(p);
  if (dim > 64 && dim <= 96 && !tabled) return sm90::backward_kernel_96(by.in_order);
  sm90::BackwardKernels& all = dim <= 64 ? sm90::backward_kernels_64() : sm90::backward_kernels_128();
  if (p.mask.blocks.q) return by.persistent ? sm90::persistent_listed_kernel_128() : all.listed;
  if (by.pieced) return all.pieced;
  return (by.persistent      ? all.persistent
          : needs_general(p) ? all.with_options
          : tabled           ? all.tabled
                             : all.plain)[by.in_order];
}

// What a query head reads and adds to: q, d_out and dQ in f32.
double bytes_of_head(const BackwardKernel& k, int64_t rows) { return double(rows) * k.dq_pitch * 8; }

// True if some query sees each key tile. It suffices that the first and the last are seen, whatever the mask.
bool all_seen(KeyTile t, int tile_k) {
  for (const int n : {0, int(ceil_div(t.keys, tile_k)) - 1}) {
    cut_key_tile(t, n, tile_k, tile_k, 1);
    if (t.tiles == 0) return false;
  }
  return true;
}

// Number of head splits of a GQA group: to keep all SMs busy, or with a diagonal to fit into L2 what is in flight. In
// the latter case tiles are transposed and CTAs are persistent, unless deterministic. No splits if bits must not depend
// on the number of sequences.
struct Parts { int parts = 1; bool transposed = false; };
Parts parts_of(const Problem& p, int units) {
  if (p.heads_q == p.heads_kv || sm90::needs_table(p) || p.keys != KeySource::linear ||
      p.mask.align == Align::absolute || p.reproducible == Reproducible::batch)
    return {};
  const BackwardKernel& k = kernel_of(p, {.lengths = false, .in_order = ordered(p), .parted = true});
  const sm90::KeyBlocks blocks{.sequence = keys_of(p),
                               .tile_q = k.tile_q,
                               .tile_k = k.tile_k,
                               .units = int64_t(p.batch) * p.heads_kv,
                               .group = p.heads_q / p.heads_kv,
                               .bytes = bytes_of_head(k, p.len_q),
                               .order = {.alike = p.mask.kind == MaskKind::full, .in_order = ordered(p)}};
  const int busy = sm90::parts_of(blocks, units), dim = std::max(p.dim_qk, p.dim_v);
  const bool may = ordered(p) ? dim <= 64 || dim > 96 : transposes(p);
  if (!may || p.mask.kind != MaskKind::causal || !all_seen(blocks.sequence, k.tile_k)) return {busy};
  const int in_cache = sm90::parts_in_cache(blocks, rows_of_key(p), units);
  if (ordered(p)) return {std::max(busy, in_cache)};
  return in_cache > 1 ? Parts{in_cache, true} : Parts{busy};
}

int64_t tiles_of(const Plan& plan) {
  return ceil_div(plan.problem.len_k, plan.tile_k) * plan.problem.batch * plan.problem.heads_kv;
}
// Persistent CTAs: query splits per divided key tile, number of divided tiles, number of tiles before them.
struct Pieced { int pieces = 1; int64_t divided = 0, begin = 0; };
sm90::KeySteps steps_of(const Plan& plan) {
  const Problem& p = plan.problem;
  return {.tiles = ceil_div(p.len_k, plan.tile_k), .units = int64_t(p.batch) * p.heads_kv,
          .group = p.heads_q / p.heads_kv, .narrow = std::max(p.dim_qk, p.dim_v) <= 64};
}
auto query_tiles_of(const Plan& plan) {
  return [&plan, t = keys_of(plan.problem)](int64_t n) mutable {
    cut_key_tile(t, int(n), plan.tile_q, plan.tile_k, plan.tile_q == kTransposedTileQ ? 16 : plan.tile_q);
    return t.tiles;
  };
}
int pieces_of(const Plan& plan) {
  const Problem& p = plan.problem;
  const sm90::KeySteps steps = steps_of(plan);
  const int units = std::max(plan.device.units, 1);
  if (ordered(p)) return 1;
  if (p.mask.kind == MaskKind::full) {
    const double query_tiles = double(ceil_div(p.len_q, plan.tile_q)) * part_of_list(p);
    return sm90::pieces_alike(steps, std::max(int(query_tiles), 1), units);
  }
  if (p.mask.blocks.q) return 1;
  if (p.mask.kind != MaskKind::causal || steps.tiles * steps.units > 2 * units) return 1;
  const BackwardKernel& k =
      kernel_of(p, {.lengths = false, .in_order = false, .transposed = plan.tile_q == kTransposedTileQ});
  const double bytes = bytes_of_head(k, p.len_q) * steps.group;
  if (sm90::section_of({.alike = false, .in_order = false}, bytes, steps.tiles, int(steps.units), units) < steps.units)
    return 1;
  return sm90::pieces_by_length(steps, query_tiles_of(plan), units);
}
Pieced pieced(const Plan& plan) {
  if (!(plan.kernel & kCounted) || plan.kernel & kOfParts || plan.splits == 1) return {};
  if (plan.problem.mask.kind != MaskKind::full)
    return {plan.splits, sm90::longer_than_pieces(steps_of(plan), query_tiles_of(plan), plan.splits)};
  const int64_t rest = sm90::behind_waves(steps_of(plan), std::max(plan.device.units, 1));
  return {plan.splits, rest, tiles_of(plan) - rest};
}

sm90::KeyWalk walk_of(const Plan& plan, bool prepares) {
  const Problem& p = plan.problem;
  return {.rows = rows_of_key(p) * p.heads_q / p.heads_kv,
          .tiles = tiles_of(plan),
          .transposed = plan.tile_q == kTransposedTileQ,
          .prepares = prepares,
          .in_order = ordered(p),
          .pieced = plan.splits > 1,
          .narrow = std::max(p.dim_qk, p.dim_v) <= 64};
}

// Bits of Plan::kernel: whether a plain run has persistent CTAs, and whether they prepare ahead. There is no such
// kernel for d96.
int counted(const Plan& plan, const BackwardKernel& k, int units) {
  const Problem& p = plan.problem;
  const int dim = std::max(p.dim_qk, p.dim_v);
  if (sm90::needs_table(p) || p.keys != KeySource::linear || p.mask.align == Align::absolute ||
      (dim > 64 && dim <= 96))
    return 0;
  sm90::KeyWalk walk = walk_of(plan, false);
  const int64_t tiles = ceil_div(p.len_k, k.tile_k), heads = int64_t(p.batch) * p.heads_kv;
  const sm90::KeyOrder by{.alike = p.mask.kind == MaskKind::full, .in_order = ordered(p)};
  const int section = sm90::section_of(by, bytes_of_head(k, p.len_q), tiles, int(heads), units);
  walk.prepares = !ordered(p) && p.heads_q == p.heads_kv && walk.rows >= sm90::kRowsOfPreparing &&
                  sm90::heads_before(section, tiles, units) < heads;
  if (!sm90::may_persist(walk, units) || !all_seen(keys_of(p), k.tile_k)) return 0;
  return kCounted + kPreparing * walk.prepares;
}

Status supports(const Problem& p, const Device& d) {
  const auto no = [](const auto&... why) { return Status::no(kWho, ": ", why...); };
  if (d.kind != DeviceKind::cuda) return no("runs on a GPU, not on ", d.name.empty() ? "a CPU" : d.name);
  if (d.arch != 90) return no("needs a GPU of arch 90, ", d.name, " is ", d.arch);
  if (p.pass != Pass::backward) return no("computes a backward, not a ", name(p.pass));
  if (!word(p.variant).empty()) return no("does not know the variant ", word(p.variant));
  for (const Option o : {Option::append, Option::rotary, Option::rotary_half, Option::descale, Option::block_bias})
    if (p.has(o)) return no("does not serve the option ", name(o));
  if (p.dtype.bias == DType::f64) return no("bias dtype f64 is not one of f32, f16, bf16");
  if (p.keys == KeySource::paged) return no("keys are linear or ragged, not ", name(p.keys));
  const Mask& m = p.mask;
  if (m.k_step != 1 || m.k_phase != 0) return no("mask ", name(m), " is not full, causal or a window");
  const auto block = [](int size) { return size == 64 || size == 128; };
  if (m.blocks.q && !(block(m.blocks.q) && block(m.blocks.k)))
    return no("blocks of a list have 64 or 128 queries and keys, not ", m.blocks.q, " x ", m.blocks.k);
  if (p.dtype.q != DType::f16 && p.dtype.q != DType::bf16)
    return no("dtype ", name(p.dtype.q), " is not one of f16, bf16");
  if (p.dtype.kv != p.dtype.q || p.dtype.out != p.dtype.q)
    return no("q is ", name(p.dtype.q), ", kv is ", name(p.dtype.kv), " and out is ", name(p.dtype.out),
              ", they must be the same");
  if (p.dtype.grad != p.dtype.q && p.dtype.grad != DType::f32)
    return no("grad dtype ", name(p.dtype.grad), " is neither ", name(p.dtype.q), " nor f32");
  for (const int dim : {p.dim_qk, p.dim_v})
    if (dim % 8 || dim > 256) return no("dim ", dim, " is not a multiple of 8 up to 256");
  if (p.len_q > sm90::kMaxLen || p.len_k > sm90::kMaxLen) return no("lengths are at most 2^28");
  return Status::good();
}

int64_t padded(const Problem& p, const BackwardKernel& k) {
  const bool transposed = k.tile_q == kTransposedTileQ;  // its tiles start at any multiple of 16
  return round_up(transposed ? p.len_q + int64_t(kTransposedTileQ) : round_up(p.len_q, k.tile_q), sm80::kRowsOfPrepare);
}

struct Marks { uint64_t large_logits; int taken; };  // see sm90/backward/config.h
struct Room {
  float2* stats;
  float* dq;
  int* tickets;
  KeyTile* table;
  Marks* marks;
  float4* sums;    // of head splits, or of query splits
  int* counts;     // tiles and jobs taken, jobs done per head; then pieces that have stored their sums
};
int64_t counts_of(const Problem& p) { return sm90::kJobsDone + int64_t(p.batch) * p.heads_q; }
Room carve(Workspace& ws, const Plan& plan, const BackwardKernel& k, int parts) {
  const Problem& p = plan.problem;
  const size_t rows = size_t(p.batch) * size_t(p.heads_q) * size_t(padded(p, k));
  Room room{.stats = ws.take<float2>(rows), .dq = ws.take<float>(rows * size_t(k.dq_pitch)), .tickets = nullptr,
            .table = ws.take<KeyTile>(size_t(sm90::key_table_size(p, k.tile_k))), .marks = ws.take<Marks>(1),
            .sums = nullptr, .counts = nullptr};
  if (ordered(p)) room.tickets = ws.take<int>(1 + rows / sm80::kTicketRows);
  const size_t tiles = size_t(p.batch) * size_t(p.heads_kv) * size_t(ceil_div(p.len_k, k.tile_k));
  if (parts > 1) room.sums = ws.take<float4>(size_t(sm90::key_part(k.dim, int64_t(tiles) * parts, 0, false)));
  const Pieced by = pieced(plan);
  const int64_t pieces = by.divided * by.pieces;
  if (pieces > 0) room.sums = ws.take<float4>(size_t(sm90::key_part(k.dim, pieces, 0, false)));
  if (plan.kernel & kPreparing || pieces > 0)
    room.counts = ws.take<int>(size_t(counts_of(p) + by.divided * sm90::kPartWarps));
  return room;
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  if (sm90::is_divided(p)) return sm90::general_shape(kWho, plan);
  const auto [parts, transposed_parts] = parts_of(p, std::max(plan.device.units, 1));
  const bool parted = parts > 1, transposed = parted ? transposed_parts : transposes(p);
  // A table or a scale may force a run back to tiles of 64, which need no more rows, and to whole GQA groups.
  const BackwardKernel& k =
      kernel_of(p, {.lengths = false, .in_order = ordered(p), .transposed = transposed, .parted = parted});
  const int64_t most = std::max(ceil_div(p.len_k, k.tile_k) * p.batch * p.heads_kv * parts,
                                int64_t(p.batch) * p.heads_q * (padded(p, k) / sm80::kRowsOfPrepare));
  if (most > INT32_MAX) return Status::no(kWho, ": ", most, " blocks are over 2^31 - 1");
  plan.tile_q = k.tile_q, plan.tile_k = k.tile_k, plan.splits = parts;
  plan.kernel = k.dim + kInOrder * ordered(p) + kWithOptions * needs_general(p) + kWithList * (p.mask.blocks.q > 0) +
                kOfTransposed * transposed + kOfParts * parted + kWithTable * sm90::needs_table(p);
  if (parted && transposed) {
    plan.kernel += kCounted + kPreparing * (rows_of_key(p) >= sm90::kRowsOfPreparing);
  } else if (!parted) {
    plan.splits = pieces_of(plan);
    const bool prepares = rows_of_key(p) * part_of_list(p) >= sm90::kRowsOfPreparing;
    const int persistent = persistent_with_list(p) ? kCounted + kPreparing * prepares
                                         : counted(plan, k, std::max(plan.device.units, 1));
    plan.kernel += persistent;
    if (!persistent) plan.splits = 1;
  }
  Workspace count;
  carve(count, plan, k, parts);
  plan.workspace_bytes = count.used;
  return Status::good();
}

Status fits(const Plan& plan, const Args& a) {
  if (plan.problem.mask.blocks.q && !(a.given(Role::block_begin_k) && a.given(Role::block_row_k)))
    return Status::no(kWho, ": wants a list by key block too: block_begin_k and block_row_k");
  if (a.given(Role::cache_index)) return Status::no(kWho, ": does not serve cache_index: sequences may share keys");
  for (const Role r : {Role::q, Role::k, Role::v, Role::out, Role::d_out, Role::dq, Role::dk, Role::dv}) {
    if (!a.given(r)) continue;
    if (Status s = cuda::mappable(kWho, r, a[r]); !s.ok()) return s;
  }
  return sm90::is_divided(plan.problem) ? sm90::general_fits(kWho, plan, a) : Status::good();
}

// Kernels with a table serve more lengths, and calls without dk or dv.
bool beyond_plain(const Problem& p, const Args& a) {
  return sm90::has_lengths(p, a) || !a.given(Role::dk) || !a.given(Role::dv);
}

class Run {
 public:
  Run(const Plan& plan, const Args& a, Workspace ws, Stream stream)
      : p_(plan.problem), a_(a), lengths_(beyond_plain(p_, a)), in_order_(in_order()),
        units_(std::max(plan.device.units, 1)), parts_(!lengths_ && plan.kernel & kOfParts ? plan.splits : 1),
        transposed_(plan.tile_q == kTransposedTileQ && !lengths_ && may_keep_one() && (parts_ == 1 || sees_all(plan))),
        walks_(p_.mask.blocks.q && plan.kernel & kCounted && !lengths_ && a[Role::q].extent.batch > 0),
        persistent_(persistent(plan)), pieced_(pieces(plan)),
        kernel_(kernel_of(p_, {lengths_, in_order_, persistent_, transposed_, parts_ > 1, pieced_.pieces > 1})),
        room_(carve(ws, plan, kernel_, parts_)),
        place_{a[Role::q].device_index, plan.device.arch}, stream_(stream) {
    pre_post_ = {.problem = p_,
                 .args = dense(a),
                 .uniform = !lengths_,
                 .rows = room_.stats,
                 .dq = a.given(Role::dq) ? room_.dq : nullptr,
                 .tickets = in_order_ ? room_.tickets : nullptr,
                 .padded = int(padded(p_, kernel_)),
                 .dq_pitch = kernel_.dq_pitch,
                 .group = p_.heads_q / p_.heads_kv,
                 .scale = scale_of(p_, a),
                 .kept = transposed_ ? sm80::Kept{} : kept(),
                 .running = p_.has(Option::accumulate),
                 .large_logits = &room_.marks->large_logits,
                 .launch = sm80::next_launch(),
                 .transposed = transposed_,
                 .taken = persistent_ ? &room_.marks->taken : nullptr,
                 .counts = 1};
    if (!lengths_) pre_post_.seq = sequence(p_, a, 0);
    pre_post_.stores_first = in_order_ && !tabled() && every_query_sees(key_tile_of(pre_post_.seq, 0));
    // d_sinks are computed from all statistics, before the kernel that would prepare ahead.
    const int heads = p_.batch * p_.heads_q, before = persistent_ && plan.kernel & kPreparing ? heads_before() : heads;
    const bool prepares = before < heads && wanted() && !a.given(Role::d_sinks);
    if (prepares) pre_post_.prepared = before;
    if (prepares || pieced_.pieces > 1) {
      pre_post_.taken = room_.counts, pre_post_.counts = int(counts_of(p_) + pieced_.divided * sm90::kPartWarps);
    }
  }

  Status run() {
    const bool any = wanted();
    if (any && tabled()) {
      const sm90::KeyTableParams table{p_, pre_post_.args, room_.table, kernel_.tile_q, kernel_.tile_k, in_order_};
      if (Status s = sm90::make_key_table(kWho, table, place_.device, stream_); !s.ok()) return s;
    }
    // Clears keys outside all sequences, keys that no query sees, and sums.
    for (const Role r : {Role::dk, Role::dv, Role::d_bias})
      if (a_.given(r) && !pre_post_.running && (lengths_ || r == Role::d_bias))
        if (Status s = sm80::backward_clear(kWho, p_, a_[r], place_, stream_); !s.ok()) return s;
    if (Status s = sm80::backward_prepare(kWho, pre_post_, place_, stream_); !s.ok()) return s;
    if (any)
      if (Status s = own_keys(); !s.ok()) return s;
    if (any && parts_ > 1)
      if (Status s = join(); !s.ok()) return s;
    return a_.given(Role::dq) ? sm80::backward_finish(kWho, pre_post_, place_, stream_) : Status::good();
  }

 private:
  bool wanted() const {
    const bool keys = a_[Role::k].extent.seq > 0 && a_[Role::k].extent.batch > 0;
    bool any = false;
    for (const Role r : {Role::dq, Role::dk, Role::dv, Role::d_bias}) any |= keys && a_.given(r);
    return any;
  }
  bool in_order() const {
    return a_.given(Role::dq) && (lengths_ ? p_.reproducible != Reproducible::no : ordered(p_));
  }
  sm80::Kept kept() const { return sm80::kept(scale_of(p_, a_), p_.dim_qk); }
  bool may_keep_one() const { return p_.dtype.q == DType::bf16 || kept().in == 1.f; }  // bf16 has the range of f32
  bool tabled() const { return lengths_ || (sm90::needs_table(p_) && !walks_); }
  bool persistent(const Plan& plan) const {
    if (tabled() || a_[Role::q].extent.batch == 0) return false;
    if (walks_) return true;
    if (parts_ > 1) return transposed_;
    // The plan does not include d_sinks, nor whether tiles are transposed in this run.
    sm90::KeyWalk walk = walk_of(plan, plan.kernel & kPreparing && !a_.given(Role::d_sinks));
    walk.transposed = transposed_, walk.in_order = in_order_, walk.pieced &= has_planned_lengths();
    return plan.kernel & kCounted && sm90::may_persist(walk, units_) && sees_all(plan);
  }
  bool sees_all(const Plan& plan) const {
    return all_seen(key_tile_of(sequence(p_, a_, 0), 0), plan.tile_k);
  }
  bool has_planned_lengths() const {  // and not shorter ones
    const Sequence all = sequence(p_, a_, 0);
    return all.len_q == p_.len_q && all.len_k == p_.len_k;
  }
  Pieced pieces(const Plan& plan) const {
    return persistent_ && parts_ == 1 && !in_order_ && has_planned_lengths() ? pieced(plan) : Pieced{};
  }
  int heads_of_section(int group, int tiles, int units) const {
    const sm90::KeyOrder by{.alike = !tabled() && p_.mask.kind == MaskKind::full, .in_order = in_order_};
    const Tensor& q = a_[Role::q];
    const int64_t rows = tabled() ? int64_t(q.extent.seq) * q.extent.batch : p_.len_q;
    if (parts_ > 1 && persistent_) return sm90::section_of_parts(bytes_of_head(kernel_, rows) * group, tiles, units_);
    return sm90::section_of(by, bytes_of_head(kernel_, rows) * group, tiles, units, units_);
  }
  int heads_before() const {  // when idle warps prepare the rest: no GQA, or head splits
    const int tiles = int(ceil_div(pre_post_.seq.len_k, kernel_.tile_k)), group = pre_post_.group / parts_;
    const int units = p_.batch * p_.heads_kv * parts_;
    const int64_t before = sm90::heads_before(heads_of_section(group, tiles, units), tiles, units_);
    return int(std::min<int64_t>(before, units)) * group;
  }
  sm90::AheadParams ahead() const {
    const auto step = [this](Role r) { return a_[r].stride.seq * size_of(p_.dtype.q) * (256 / kernel_.dq_pitch); };
    const int heads = p_.batch * p_.heads_q, ready = pre_post_.prepared ? pre_post_.prepared : heads;
    return {.ready = ready, .jobs = (heads - ready) * (pre_post_.padded / sm90::kJobRows), .dim_v = p_.dim_v,
            .out_step = step(Role::out), .d_out_step = step(Role::d_out), .stats = room_.stats,
            .out = a_[Role::out], .d_out = a_[Role::d_out], .lse = a_[Role::lse], .d_lse = a_[Role::d_lse]};
  }
  int64_t blocks(const TabledParams& x) const {
    const int64_t all = int64_t(x.tiles) * x.units;
    return persistent_ ? std::min<int64_t>(all + pieced_.divided * (pieced_.pieces - 1), units_) : all;
  }
  // Lists with persistent CTAs: a key tile with more entries is long, over twice the mean and over an eighth of what a
  // CTA has in all. INT32_MAX: none can be.
  int most_entries(const Tensor& list) const {
    const double heads = list.stride.head == 0 ? p_.heads_q : 1, batch = list.stride.batch == 0 ? p_.batch : 1;
    const double tiles = double(ceil_div(p_.len_k, kernel_.tile_k)) * p_.heads_q * p_.batch;
    const double entries = p_.mask.blocks.bound * heads * batch;  // of all lists
    const double most = std::max(entries * std::max(2 / tiles, 0.125 / units_), 1.);
    return most < double(ceil_div(p_.len_q, p_.mask.blocks.q)) ? int(most) : INT32_MAX;
  }
  Status own_keys() {
    const Tensor &q = a_[Role::q], &k = a_[Role::k];
    const int type = p_.dtype.q == DType::bf16;
    const KeyTile all = lengths_ ? KeyTile{} : key_tile_of(pre_post_.seq, 0);
    TabledParams x{};  // a kernel without a table takes the first part
    static_cast<sm90::BackwardParams&>(x) = {.scale2 = pre_post_.scale * kLog2e,
                                             .kept = pre_post_.kept.in,
                                             .scale_k = pre_post_.scale * pre_post_.kept.out,
                                             .rows = all.rows,
                                             .keys = all.keys,
                                             .heads = p_.heads_q,
                                             .heads_kv = p_.heads_kv * parts_,
                                             .group = pre_post_.group / parts_,
                                             .low = all.low,
                                             .high = all.high,
                                             .tiles = int(ceil_div(all.keys, kernel_.tile_k)),
                                             .units = p_.batch * p_.heads_kv * parts_,
                                             .padded = pre_post_.padded,
                                             .dq = pre_post_.dq,
                                             .rows_of_dq = !pre_post_.dq ? 0 : lengths_ ? p_.len_q : all.rows,
                                             .tickets = pre_post_.tickets,
                                             .large_logits = pre_post_.large_logits,
                                             .launch = pre_post_.launch,
                                             .of_part = sm90::of_part(parts_),
                                             .sums = room_.sums,
                                             .taken = pre_post_.taken,
                                             .ahead = ahead()};
    x.has_dk = a_.given(Role::dk), x.has_dv = a_.given(Role::dv);
    x.rows_q = q.extent.seq, x.rows_k = k.extent.seq;
    x.f32_dk = sm90::f32_rows(a_[Role::dk]), x.f32_dv = sm90::f32_rows(a_[Role::dv]);
    x.dim_qk = p_.dim_qk, x.dim_v = p_.dim_v, x.accumulate = pre_post_.running, x.cleared = lengths_;
    const Tensor& list = a_[Role::block_begin_k];
    x.list_begin = a_.row<const int32_t>(Role::block_begin_k), x.list_row = a_.row<const int32_t>(Role::block_row_k);
    x.list_batch = list.stride.batch, x.list_head = list.stride.head, x.blocks = p_.mask.blocks;
    if (walks_) x.most_entries = most_entries(list);
    x.score = sm90::score_options(p_, a_), x.d_bias = a_[Role::d_bias], x.kept_out = pre_post_.kept.out;
    if (tabled()) {
      x.table = room_.table, x.units = p_.heads_kv;
      int64_t tiles = sm90::key_table_size(p_, kernel_.tile_k);
      // Tiles that are not empty come first, and each sequence has at most one partial tile.
      if (p_.keys == KeySource::ragged && !in_order_)
        tiles = std::min(tiles, k.extent.seq / kernel_.tile_k + int64_t(p_.batch));
      x.tiles = int(tiles);
    }
    if (pieced_.pieces > 1)
      x.pieces = {int(pieced_.begin), int(pieced_.divided), pieced_.pieces, room_.sums,
                  room_.counts + counts_of(p_)};
    x.section = heads_of_section(x.group, x.tiles, x.units);
    if (Status s = make_maps(x); !s.ok()) return s;
    return cuda::launch({.who = kWho,
                         .kernel = kernel_.function[type](),
                         .ready = &kernel_.ready[type],
                         .blocks = blocks(x),
                         .threads = kernel_.threads,
                         .shared_bytes = kernel_.shared_bytes,
                         .device = place_.device,
                         .stream = stream_,
                         .early = true},
                        p_, &x);
  }

  Status join() const {
    const sm90::KeyPartsParams x{.sums = room_.sums,
                                 .parts = parts_,
                                 .tiles = int(ceil_div(pre_post_.seq.len_k, kernel_.tile_k)),
                                 .heads = p_.heads_kv,
                                 .keys = pre_post_.seq.len_k,
                                 .dim = kernel_.dim,
                                 .dim_qk = p_.dim_qk,
                                 .dim_v = p_.dim_v,
                                 .scale = pre_post_.scale * pre_post_.kept.out,
                                 .dk = a_[Role::dk],
                                 .dv = a_[Role::dv]};
    return sm90::join_key_parts(kWho, p_, x, place_.device, stream_);
  }

  Status make_maps(TabledParams& x) const {
    // A tensor map cannot be empty; with no queries, map rows of keys that are never read.
    const bool rows = a_[Role::q].extent.seq > 0 && a_[Role::q].extent.batch > 0;
    const Tensor &q = a_[rows ? Role::q : Role::k], &d_out = a_[rows ? Role::d_out : Role::v];
    const Tensor &k = a_[Role::k], &v = a_[Role::v], &dk = a_[Role::dk], &dv = a_[Role::dv];
    const bool narrow = p_.dtype.grad != DType::f32, dk_here = narrow && x.has_dk, dv_here = narrow && x.has_dv;
    const auto part = sm90::rows_of_end_part;
    const struct { Role role; const Tensor& of; CUtensorMap* map; int tile; bool wanted; } maps[] = {
        {Role::q, q, &x.q, kernel_.tile_q, true},
        {Role::d_out, d_out, &x.d_out, kernel_.tile_q, true},
        {Role::k, k, &x.k, kernel_.tile_k, true},
        {Role::v, v, &x.v, kernel_.tile_k, true},
        {Role::dk, dk, &x.dk, 16, dk_here},
        {Role::dv, dv, &x.dv, 16, dv_here},
        {Role::q, q, &x.q_part[0], part(0), lengths_},
        {Role::q, q, &x.q_part[1], part(1), lengths_},
        {Role::q, q, &x.q_part[2], part(2), lengths_},
        {Role::d_out, d_out, &x.d_out_part[0], part(0), lengths_},
        {Role::d_out, d_out, &x.d_out_part[1], part(1), lengths_},
        {Role::d_out, d_out, &x.d_out_part[2], part(2), lengths_},
        {Role::k, k, &x.k_part[0], part(0), lengths_},
        {Role::k, k, &x.k_part[1], part(1), lengths_},
        {Role::k, k, &x.k_part[2], part(2), lengths_},
        {Role::dk, dk, &x.dk_row, 1, lengths_ && dk_here},
        {Role::dv, dv, &x.dv_row, 1, lengths_ && dv_here}};
    for (const auto& [role, of, map, tile, wanted] : maps)
      if (wanted)
        if (Status s = cuda::tensor_map(of, tile, *map); !s.ok())
          return Status::no(kWho, ": ", name(role), ": ", s.message, ", in: ", name(p_));
    // Not by plain bulk copies: racecheck treats those as writes of the issuing thread.
    const int64_t line = 2 * int64_t(x.padded);
    if (Status s = cuda::line_map(&room_.stats->x, line, x.heads, p_.batch, 2 * kernel_.tile_q, x.stats); !s.ok())
      return Status::no(kWho, ": statistics: ", s.message, ", in: ", name(p_));
    return Status::good();
  }

  const Problem& p_;
  const Args& a_;
  const bool lengths_, in_order_;
  const int units_;  // SMs
  const int parts_;  // head splits of a KV head
  const bool transposed_;
  const bool walks_;  // lists, with persistent CTAs
  const bool persistent_;
  const Pieced pieced_;
  BackwardKernel& kernel_;
  const Room room_;
  const sm80::Place place_;
  const Stream stream_;
  sm80::BackwardParams pre_post_{};
};

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  if (Status s = fits(plan, a); !s.ok()) return s;
  if (const Problem& p = plan.problem; sm90::is_divided(p)) {
    const bool plain = sm90::is_large_head(p) && !sm90::needs_table(p) && !sm90::has_lengths(p, a);
    return plain ? sm90::two_kernel_run(kWho, plan, a, ws, stream) : sm90::general_run(kWho, plan, a, ws, stream);
  }
  const cuda::DeviceGuard use(a[Role::q].device_index);
  if (!use.status.ok()) return Status::no(kWho, ": ", use.status.message, ", in: ", name(plan.problem));
  return Run(plan, a, ws, stream).run();
}

}  // namespace

extern const Backend sm90_backward{.name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
