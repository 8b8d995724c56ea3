// SPDX-License-Identifier: Apache-2.0
// sm90_backward: the decisions of a plan of the fused kernel, and their words. They follow from times on an H200
// (docs/notes/sm90.md).
#include "attention/sm90/backward/choose.h"

#include "attention/gpu/backward_pre_post_host.h"
#include "attention/sm90/backward/split_heads.h"
#include "attention/sm90/backward/tile_table.h"
#include "core/check.h"
#include "core/work.h"

namespace attune::sm90 {
namespace {

// Longest sequence for which the deterministic kernel is fastest: full and causal mask, over d64 and up to d64.
// Requires kManyTiles tiles of 128 keys and kManyHeads heads.
constexpr int kShort = 512, kShortCausal = 1024, kShortNarrow = 256, kShortCausalNarrow = 512;
constexpr int kManyTiles = 1024, kTileK = 128, kManyHeads = 256;
constexpr int kLong = 1024, kLongCausal = 2048;  // keys from which tiles are transposed: full and causal mask
constexpr double kLongRows = 3072;               // with a window: the mean number of rows that see a key
constexpr int kTransposedTileQ = 80;             // queries of a transposed tile
constexpr int kMostTransposed = 1 << 23;         // queries: offsets into a head's sums are 32 bits
static_assert(kTicketRows == sm80::kTicketRows);

int dim_of(const Problem& p) { return std::max(p.dim_qk, p.dim_v); }
bool is_narrow(const Problem& p) { return dim_of(p) <= 64; }
int64_t kv_heads(const Problem& p) { return int64_t(p.batch) * p.heads_kv; }

// For the lengths of the plan; those of a run may be shorter.
KeyTile planned_keys(const Problem& p) {
  return key_tile_of({.len_q = p.len_q, .len_k = p.len_k, .band = band_of(p.mask, p.len_q, p.len_k, 0, 0)}, 0);
}

// With few keys, a deterministic order costs less than clearing the sums of dQ.
bool is_faster_deterministic(const Problem& p) {
  const bool plain = !needs_table(p) && p.keys == KeySource::linear && p.heads_q == p.heads_kv &&
                     p.mask.kind != MaskKind::window && p.mask.align != Align::absolute;
  const bool causal = p.mask.kind == MaskKind::causal;
  const int most = is_narrow(p) ? (causal ? kShortCausalNarrow : kShortNarrow) : causal ? kShortCausal : kShort;
  const int64_t heads = int64_t(p.batch) * p.heads_q;
  return dim_of(p) <= 128 && plain && p.len_q <= most && p.len_k <= most &&
         heads >= kManyHeads && ceil_div(p.len_k, kTileK) * heads >= kManyTiles &&
         every_query_sees(planned_keys(p));
}
bool is_deterministic(const Problem& p) {
  return p.reproducible != Reproducible::no || is_faster_deterministic(p);
}

// Mean number of rows that see a key.
double rows_of_key(const Problem& p) {
  const Band band = band_of(p.mask, p.len_q, p.len_k, 0, 0);
  return visible_pairs(band, {0, p.len_q}, {0, p.len_k}) / std::max(p.len_k, 1);
}

// With many keys, steps have 80 queries instead of 64. They take a twentieth less time per query, unless rounding up to
// whole steps adds more than that.
bool transposes(const Problem& p) {
  const int dim = dim_of(p);
  const bool full = p.mask.kind == MaskKind::full, causal = p.mask.kind == MaskKind::causal;
  const bool many = full     ? p.len_k >= kLong
                    : causal ? p.len_k >= kLongCausal
                             : rows_of_key(p) >= kLongRows;
  return dim > 96 && dim <= 128 && many && p.len_q <= kMostTransposed && p.keys == KeySource::linear &&
         !is_deterministic(p) && !needs_table(p) &&
         round_up(p.len_q, kTransposedTileQ) * 19 <= round_up(p.len_q, 64) * 20;
}

// Fraction of the mask in the list, if the list is full and not shared with other heads.
double fraction_of_list(const Problem& p) {
  const Blocks& size = p.mask.blocks;
  if (!size.q) return 1;
  const double all = double(p.batch) * p.heads_q * double(ceil_div(p.len_q, size.q) * ceil_div(p.len_k, size.k));
  return std::min(size.bound / std::max(all, 1.), 1.);
}
// Lists with persistent CTAs. GQA groups gained nothing from it.
bool persists_with_list(const Problem& p) {
  const int dim = dim_of(p);
  return p.mask.blocks.q && dim > 64 && dim <= 128 && p.heads_q == p.heads_kv && p.keys == KeySource::linear &&
         p.mask.align != Align::absolute && p.dtype.grad == p.dtype.q && !needs_general(p) && !is_deterministic(p);
}

// Sets the head splits of a GQA group: to keep all SMs busy, or with a diagonal to fit into L2 what is in flight. In
// the latter case tiles are transposed and CTAs are persistent, unless deterministic. No splits if bits must not depend
// on the number of sequences.
void split_heads(const Problem& p, int sms, BackwardChoice& c) {
  c.transposed = transposes(p);
  if (p.heads_q == p.heads_kv || needs_table(p) || p.keys != KeySource::linear ||
      p.mask.align == Align::absolute || p.reproducible == Reproducible::batch)
    return;
  const BackwardKernel& k = kernel_of(p, {.deterministic = c.deterministic, .head_splits = 2});
  const KeyBlocks blocks{.sequence = planned_keys(p),
                         .tile_q = k.tile_q,
                         .tile_k = k.tile_k,
                         .heads_total = kv_heads(p),
                         .group = p.heads_q / p.heads_kv,
                         .bytes = bytes_of_head(k, p.len_q),
                         .order = {.alike = p.mask.kind == MaskKind::full, .deterministic = c.deterministic}};
  c.head_splits = head_splits_of(blocks, sms);
  const int dim = dim_of(p);
  const bool may = c.deterministic ? dim <= 64 || dim > 96 : c.transposed;
  const bool fit = may && p.mask.kind == MaskKind::causal && all_seen(blocks.sequence, k.tile_k);
  const int in_cache = fit ? head_splits_in_cache(blocks, rows_of_key(p), sms) : 1;
  const bool transposed_split = !c.deterministic && in_cache > 1;
  if (c.deterministic) c.head_splits = std::max(c.head_splits, in_cache);
  else if (in_cache > 1) c.head_splits = in_cache;
  if (c.head_splits > 1) c.transposed = transposed_split;
}

KeySteps steps_of(const Problem& p, const BackwardKernel& k) {
  return {.tiles = ceil_div(p.len_k, k.tile_k), .heads_total = kv_heads(p), .group = p.heads_q / p.heads_kv,
          .narrow = is_narrow(p)};
}
// The query tiles that see key tile n of a head.
auto query_tiles_of(const Problem& p, const BackwardKernel& k) {
  return [&k, t = planned_keys(p)](int64_t n) mutable {
    cut_key_tile(t, int(n), k.tile_q, k.tile_k, k.tile_q == kTransposedTileQ ? 16 : k.tile_q);
    return t.tiles;
  };
}
// Query splits of the key tiles that leave SMs idle, if CTAs are persistent.
int query_splits_of(const Problem& p, const BackwardKernel& k, int sms) {
  const KeySteps steps = steps_of(p, k);
  if (is_deterministic(p)) return 1;
  if (p.mask.kind == MaskKind::full) {
    const double query_tiles = double(ceil_div(p.len_q, k.tile_q)) * fraction_of_list(p);
    return query_splits_alike(steps, std::max(int(query_tiles), 1), sms);
  }
  if (p.mask.blocks.q) return 1;
  if (p.mask.kind != MaskKind::causal || steps.tiles * steps.heads_total > 2 * sms) return 1;
  const double bytes = bytes_of_head(k, p.len_q) * steps.group;
  const int section =
      section_of({.alike = false, .deterministic = false}, bytes, steps.tiles, int(steps.heads_total), sms);
  return section < steps.heads_total ? 1 : query_splits_by_length(steps, query_tiles_of(p, k), sms);
}
// Sets which key tiles have query splits: those after the last full wave; with a diagonal, the longest.
void divide_tiles(const Problem& p, const BackwardKernel& k, int sms, BackwardChoice& c) {
  const KeySteps steps = steps_of(p, k);
  if (c.query_splits == 1) return;
  if (p.mask.kind != MaskKind::full) {
    c.divided = tiles_to_divide(steps, query_tiles_of(p, k), c.query_splits);
  } else {
    c.divided = behind_waves(steps, sms);
    c.first_divided = steps.tiles * steps.heads_total - c.divided;
  }
}

// Sets whether a run has persistent CTAs, and whether they prepare ahead. There is no such kernel for d96.
void choose_persistent(const Problem& p, const BackwardKernel& k, int sms, BackwardChoice& c) {
  const int dim = dim_of(p);
  if (persists_with_list(p)) {
    c.persistent = true, c.tabled = false;
    c.prepares = rows_of_key(p) * fraction_of_list(p) >= kRowsOfPreparing;
    return;
  }
  if (needs_table(p) || p.keys != KeySource::linear || p.mask.align == Align::absolute || (dim > 64 && dim <= 96))
    return;
  KeyWalk walk = walk_of(p, c, k.tile_k);
  const int64_t tiles = ceil_div(p.len_k, k.tile_k), heads = kv_heads(p);
  const KeyOrder by{.alike = p.mask.kind == MaskKind::full, .deterministic = c.deterministic};
  const int section = section_of(by, bytes_of_head(k, p.len_q), tiles, int(heads), sms);
  walk.prepares = !c.deterministic && p.heads_q == p.heads_kv && walk.rows >= kRowsOfPreparing &&
                  heads_before(section, tiles, sms) < heads;
  if (!may_persist(walk, sms) || !all_seen(planned_keys(p), k.tile_k)) return;
  c.persistent = true, c.prepares = walk.prepares;
}

}  // namespace

BackwardKernel& kernel_of(const Problem& p, const BackwardChoice& c) {
  const int dim = dim_of(p);
  TransposedKernels& transposed = transposed_kernels_128();
  BackwardKernels& all = is_narrow(p) ? backward_kernels_64() : backward_kernels_128();
  if (c.head_splits > 1) return c.transposed ? transposed.head_splits : all.head_splits[c.deterministic];
  if (c.transposed)
    return c.query_splits > 1 ? transposed.query_splits : c.persistent ? transposed.persistent : transposed.plain;
  if (c.listed) return c.persistent ? persistent_listed_kernel_128() : all.listed;
  if (dim > 64 && dim <= 96 && !c.tabled) return backward_kernels_96()[c.deterministic];
  if (c.query_splits > 1) return all.query_splits;
  return (c.persistent ? all.persistent
          : c.options  ? all.with_options
          : c.tabled   ? all.tabled
                       : all.plain)[c.deterministic];
}

// It suffices that the first and the last tile are seen, whatever the mask.
bool all_seen(KeyTile sequence, int tile_k) {
  for (const int n : {0, int(ceil_div(sequence.keys, tile_k)) - 1}) {
    cut_key_tile(sequence, n, tile_k, tile_k, 1);
    if (sequence.tiles == 0) return false;
  }
  return true;
}

KeyWalk walk_of(const Problem& p, const BackwardChoice& c, int tile_k) {
  return {.rows = c.rows,
          .tiles = ceil_div(p.len_k, tile_k) * p.batch * p.heads_kv,
          .transposed = c.transposed,
          .prepares = c.prepares,
          .deterministic = c.deterministic,
          .query_splits = c.query_splits > 1,
          .narrow = is_narrow(p)};
}

int64_t padded_rows(const Problem& p, const BackwardKernel& k) {
  const bool transposed = k.tile_q == kTransposedTileQ;  // its tiles start at any multiple of 16
  return round_up(transposed ? p.len_q + int64_t(kTransposedTileQ) : round_up(p.len_q, k.tile_q), sm80::kRowsOfPrepare);
}

Buffers carve(Workspace& ws, const Problem& p, const BackwardChoice& planned, const BackwardKernel& k,
              int head_splits) {
  const size_t rows = size_t(p.batch) * size_t(p.heads_q) * size_t(padded_rows(p, k));
  Buffers to{.stats = ws.take<float2>(rows), .dq = ws.take<float>(rows * size_t(k.dq_pitch)), .tickets = nullptr,
             .table = ws.take<KeyTile>(size_t(key_table_size(p, k.tile_k))), .marks = ws.take<Marks>(1),
             .sums = nullptr, .counts = nullptr};
  if (planned.deterministic) to.tickets = ws.take<int>(1 + rows / sm80::kTicketRows);
  const int64_t tiles = kv_heads(p) * ceil_div(p.len_k, k.tile_k), splits = planned.divided * planned.query_splits;
  if (head_splits > 1) to.sums = ws.take<float4>(size_t(sums_offset(k.dim, tiles * head_splits, 0, false)));
  if (splits > 0) to.sums = ws.take<float4>(size_t(sums_offset(k.dim, splits, 0, false)));
  if (planned.prepares || splits > 0)
    to.counts = ws.take<int>(size_t(counts_before_splits(p) + planned.divided * kSplitWarps));
  return to;
}

Status fused_shape(std::string_view who, Plan& plan) {
  const Problem& p = plan.problem;
  const int sms = sms_of(plan);
  BackwardChoice c{.deterministic = is_deterministic(p),
                   .options = needs_general(p),
                   .listed = p.mask.blocks.q > 0,
                   .tabled = needs_table(p),
                   .rows = rows_of_key(p) * p.heads_q / p.heads_kv};
  split_heads(p, sms, c);
  // A table or a scale may force a run back to tiles of 64, which need no more rows, and to whole GQA groups.
  const BackwardKernel& k = kernel_of(p, c);
  const int64_t most = std::max(ceil_div(p.len_k, k.tile_k) * p.batch * p.heads_kv * c.head_splits,
                                int64_t(p.batch) * p.heads_q * (padded_rows(p, k) / sm80::kRowsOfPrepare));
  if (most > INT32_MAX) return Status::unsupported(who, ": needs ", most, " CTAs; a launch has at most 2^31 - 1");
  if (c.head_splits > 1) {
    c.persistent = c.transposed;
    c.prepares = c.persistent && rows_of_key(p) >= kRowsOfPreparing;
  } else {
    c.query_splits = query_splits_of(p, k, sms);
    choose_persistent(p, k, sms, c);
    if (!c.persistent) c.query_splits = 1;
    divide_tiles(p, k, sms, c);
  }
  c.dim_qk = c.dim_v = k.dim;
  plan.tile_q = k.tile_q, plan.tile_k = k.tile_k, plan.splits = std::max(c.head_splits, c.query_splits);
  plan.kernel = number_of(c);
  plan.choice.set(c);
  Workspace count;
  carve(count, p, c, k, c.head_splits);
  plan.workspace_bytes = count.used;
  return Status::good();
}

std::string describe_backward(const Plan& plan) {
  const auto c = plan.choice.as<BackwardChoice>();
  std::string words(c.path == BackwardPath::fused        ? "fused kernel d"
                    : c.path == BackwardPath::two_kernel ? "two kernels, dQ and dK/dV, d"
                                                         : "general kernels, dQ and dK/dV, d");
  words += join(c.dim_qk, c.dim_v != c.dim_qk ? join("/", c.dim_v) : "");
  words += join(", ", plan.tile_q, " x ", plan.tile_k, c.transposed ? " transposed tiles" : " tiles");
  const struct { bool has; std::string_view name; } properties[] = {{c.deterministic, "deterministic"},
                                                                    {c.options, "options that change scores"},
                                                                    {c.listed, "block lists"},
                                                                    {c.tabled, "tile table"},
                                                                    {c.persistent, "persistent CTAs"},
                                                                    {c.prepares, "preprocessing ahead"}};
  for (const auto& [has, property] : properties)
    if (has) words += join(", ", property);
  if (c.head_splits > 1) words += join("; ", c.head_splits, " head splits of each GQA group");
  if (c.query_splits > 1)
    words += join("; ", c.query_splits, " query splits for ", c.divided, " key tile", c.divided == 1 ? "" : "s");
  return words;
}

}  // namespace attune::sm90
