// sm90_backward: the host side of backward.sm90.h. A run is prepare, the kernel that owns keys, then finish, each of
// which starts while the one before it ends; where lengths are in tensors, a kernel ahead of them finds the key tiles.
// Everything else is the next link's.
#include <algorithm>
#include <atomic>

#include "attention/backward.sm80.host.h"
#include "attention/backward.sm90.any.kernels.h"
#include "attention/backward.sm90.kernels.h"
#include "attention/backward.sm90.table.h"
#include "attention/backward.sm90.wide.kernels.h"
#include "attention/limits.sm90.h"
#include "core/check.h"
#include "core/score.h"
#include "machine/cuda/tensor_map.h"

namespace attune {
namespace {

using sm90::BackwardKernel;
using sm90::TabledParams;

constexpr std::string_view kWho = "sm90_backward";
constexpr int kShort = 512, kShortNarrow = 1024;  // keys up to which blocks stay, at dims over 64 and up to it
constexpr int kLong = 1024;                       // keys from which on a full mask has turned tiles
constexpr int kTurned = 80;                       // queries of such a tile
constexpr int kSectionInOrder = 16;               // heads at most, in a fixed order: blocks of a head begin together
static_assert(sm90::kTurnRows == sm80::kTurnRows);

bool ordered(const Problem& p) { return p.reproducible != Reproducible::no; }

// Every query sees every key, and those are many: steps of 80 queries instead of 64, which take a twentieth less for
// each, but for those that no sequence has.
constexpr bool kTurnedTiles = true;
bool turns(const Problem& p) {
  const int dim = std::max(p.dim_qk, p.dim_v);
  const bool band = sm90::backward_kernel_128_full().tricks & sm90::kTrickBand;
  return kTurnedTiles && dim > 96 && dim <= 128 && (band || p.mask.kind == MaskKind::full) &&
         p.keys == KeySource::linear &&
         p.len_k >= kLong && !ordered(p) && !sm90::needs_table(p) &&
         round_up(p.len_q, kTurned) * 19 <= round_up(p.len_q, 64) * 20;
}

struct Taken { bool lengths, in_order, stays = false, turned = false; };
BackwardKernel& kernel_of(const Problem& p, Taken by) {
  const int dim = std::max(p.dim_qk, p.dim_v);
  if (by.turned) return sm90::backward_kernel_128_full();
  const bool tabled = by.lengths || sm90::needs_table(p);
  if (dim > 64 && dim <= 96 && !tabled && !by.in_order) return sm90::backward_kernel_96();
  sm90::BackwardKernels& all = dim <= 64 ? sm90::backward_kernels_64() : sm90::backward_kernels_128();
  if (p.mask.blocks.q) return all.listed;
  return (by.stays ? all.staying : needs_general(p) ? all.with_options : tabled ? all.tabled : all.plain)[by.in_order];
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
  if (p.len_q > sm90::kFar || p.len_k > sm90::kFar) return no("lengths are at most 2^28");
  return Status::good();
}

int64_t padded(const Problem& p, const BackwardKernel& k) {
  if (k.tricks & sm90::kTrickBand) return round_up(p.len_q + int64_t(k.tile_q), sm80::kRowsOfPrepare);
  return round_up(round_up(p.len_q, k.tile_q), sm80::kRowsOfPrepare);
}

constexpr int kMostLots = 64;
int lots_at_most = 16;  // bench/backward_tricks.cu tries others
struct Room { float2* stats; float* dq; int* turns; KeyTile* table; uint64_t* far; int* counts; };
Room carve(Workspace& ws, const Problem& p, const BackwardKernel& k) {
  const size_t rows = size_t(p.batch) * size_t(p.heads_q) * size_t(padded(p, k));
  Room room{.stats = ws.take<float2>(rows), .dq = ws.take<float>(rows * size_t(k.wide)), .turns = nullptr,
            .table = ws.take<KeyTile>(size_t(sm90::key_table_size(p, k.tile_k))), .far = ws.take<uint64_t>(1),
            .counts = nullptr};
  if (k.tricks & sm90::kTrickLots) room.counts = ws.take<int>(2 * kMostLots);
  if (ordered(p)) room.turns = ws.take<int>(1 + rows / sm80::kTurnRows);
  return room;
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  if (sm90::is_divided(p)) return sm90::any_shape(kWho, plan);
  // A table or a scale may take it back to tiles of 64, whose rows are no more.
  const BackwardKernel& k = kernel_of(p, {.lengths = false, .in_order = ordered(p), .turned = turns(p)});
  plan.tile_q = k.tile_q, plan.tile_k = k.tile_k;
  plan.kernel = k.dim + 1024 * (8 * turns(p) + 4 * (p.mask.blocks.q > 0) + 2 * needs_general(p) + ordered(p));
  const int64_t most = std::max(ceil_div(p.len_k, k.tile_k) * p.batch * p.heads_kv,
                                int64_t(p.batch) * p.heads_q * (padded(p, k) / sm80::kRowsOfPrepare));
  if (most > INT32_MAX) return Status::no(kWho, ": ", most, " blocks are over 2^31 - 1");
  Workspace count;
  carve(count, p, k);
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
  return sm90::is_divided(plan.problem) ? sm90::any_fits(kWho, plan, a) : Status::good();
}

// With a band, blocks differ in length: the longest of a section of heads come first, and what they read and add to
// stays in the second-level cache: q, d_out and dQ in f32; of few blocks, the longest of all. Likewise where each waits
// for the one before it in its head. Otherwise head after head.
int section(const Problem& p, const BackwardKernel& k, int64_t rows) {
  return sm90::section_heads(double(rows) * k.wide * (p.heads_q / p.heads_kv) * 8);
}

// Kernels with a table serve more lengths, and gradients of keys that are not wanted.
bool beyond_plain(const Problem& p, const Args& a) {
  return sm90::has_lengths(p, a) || !a.given(Role::dk) || !a.given(Role::dv);
}

// Where tiles of keys are many, short and all seen: blocks that stay load the next keys while dK and dV leave. From
// some length on they lose, since nobody takes over what another has left. In a fixed order each has whole heads, which
// must share out evenly.
bool stays(const Problem& p, const Args& a, bool in_order, int units) {
  const Tensor &q = a[Role::q], &k = a[Role::k];
  const int dim = std::max(p.dim_qk, p.dim_v), keys = k.extent.seq;
  if (q.extent.seq == 0 || q.extent.batch == 0) return false;
  if (in_order) {
    const int64_t heads = int64_t(p.batch) * p.heads_kv;
    if (dim > 64 || keys > kShort || heads * 10 < round_up(heads, units) * 9) return false;
  }
  if (dim > 64 && dim <= 96) return false;
  if (p.mask.kind == MaskKind::full) return keys <= (dim <= 64 ? kShortNarrow : kShort);
  return p.mask.kind == MaskKind::causal && q.extent.seq == keys && keys <= (dim <= 64 ? kShortNarrow : kShort);
}

class Run {
 public:
  Run(const Plan& plan, const Args& a, Workspace ws, Stream stream)
      : p_(plan.problem), a_(a), lengths_(beyond_plain(p_, a)), in_order_(ordered(p_) && a.given(Role::dq)),
        units_(std::max(plan.device.units, 1)),
        stays_(!tabled() && !(kernel_of(p_, {lengths_, in_order_}).tricks & sm90::kTrickLots) &&
               stays(p_, a, in_order_, units_)),
        turned_(plan.tile_q == kTurned && !lengths_ && !stays_ && may_keep_one()),
        kernel_(kernel_of(p_, {lengths_, in_order_, stays_, turned_})), room_(carve(ws, p_, kernel_)),
        place_{a[Role::q].device_index, plan.device.arch}, stream_(stream) {
    ends_ = {.problem = p_, .args = dense(a), .uniform = !lengths_, .rows = room_.stats,
             .dq = a.given(Role::dq) ? room_.dq : nullptr, .turns = in_order_ ? room_.turns : nullptr,
             .padded = int(padded(p_, kernel_)), .wide = kernel_.wide, .group = p_.heads_q / p_.heads_kv,
             .scale = scale_of(p_, a), .kept = turned_ ? sm80::Kept{} : kept(), .running = p_.has(Option::accumulate),
             .far = room_.far, .launch = next_launch(),
             .turned = !turned_ ? 0 : kernel_.tricks & sm90::kTrickBand ? int(padded(p_, kernel_)) : kTurned,
             .paired = (kernel_.tricks & sm90::kTrickPairs) != 0};
    if (!lengths_) ends_.seq = sequence(p_, a, 0);
  }

  Status run() {
    const bool keys = a_[Role::k].extent.seq > 0 && a_[Role::k].extent.batch > 0;
    bool any = false;
    for (const Role r : {Role::dq, Role::dk, Role::dv, Role::d_bias}) any |= keys && a_.given(r);
    if (any && tabled()) {
      const sm90::KeyTableParams table{p_, ends_.args, room_.table, kernel_.tile_q, kernel_.tile_k, in_order_};
      if (Status s = sm90::make_key_table(kWho, table, place_.device, stream_); !s.ok()) return s;
    }
    // Keys that no sequence has, those that nobody sees, and sums.
    for (const Role r : {Role::dk, Role::dv, Role::d_bias})
      if (a_.given(r) && !ends_.running && (lengths_ || r == Role::d_bias))
        if (Status s = sm80::backward_clear(kWho, p_, a_[r], place_, stream_); !s.ok()) return s;
    const Lots lots = kernel_.tricks & sm90::kTrickLots ? cut_lots() : Lots{};
    if (lots.count) {
      ends_.heads_here = std::min(lots.units, p_.batch * p_.heads_kv) * ends_.group;
      ends_.counts = room_.counts, ends_.counts_size = 2 * lots.count;
    }
    if (Status s = sm80::backward_prepare(kWho, ends_, place_, stream_); !s.ok()) return s;
    if (any)
      if (Status s = own_keys(lots); !s.ok()) return s;
    if (lots.count) {
      ends_.first_head = std::max(lots.count - 2, 0) * lots.units * ends_.group;
      ends_.heads_here = p_.batch * p_.heads_q - ends_.first_head;
    }
    return a_.given(Role::dq) ? sm80::backward_finish(kWho, ends_, place_, stream_) : Status::good();
  }

 private:
  struct Lots { int count = 0, units = 0, chunk = 0, chunks = 0; };
  // Of about as many blocks as there are multiprocessors, or a sixteenth of all.
  Lots cut_lots() const {
    const int all = p_.batch * p_.heads_kv, tiles = int(ceil_div(a_[Role::k].extent.seq, kernel_.tile_k));
    const int64_t least = std::max<int64_t>(units_, ceil_div(int64_t(all) * tiles, lots_at_most));
    Lots lots{.units = int(std::min<int64_t>(ceil_div(least, tiles), all)), .chunk = 131072 / kernel_.wide};
    lots.count = int(ceil_div(all, lots.units));
    lots.chunks = int(ceil_div(int64_t(lots.units) * ends_.group * ends_.padded, lots.chunk));
    return lots;
  }
  // Memory of any content has it by chance only, and is then slower.
  static uint64_t next_launch() {
    static std::atomic<uint64_t> launches{0};
    return ++launches;
  }
  sm80::Kept kept() const { return sm80::kept(scale_of(p_, a_), p_.dim_qk); }
  bool may_keep_one() const { return p_.dtype.q == DType::bf16 || kept().in == 1.f; }  // bf16 reaches as far as f32
  bool tabled() const { return lengths_ || sm90::needs_table(p_); }
  int heads_of_section(const TabledParams& x) const {
    if (!tabled() && !in_order_ && p_.mask.kind == MaskKind::full) return 1;
    if (stays_) return std::max(units_ / 2, 1);  // of two tiles a head, one round of all blocks
    const Tensor& q = a_[Role::q];
    const int heads = section(p_, kernel_, tabled() ? int64_t(q.extent.seq) * q.extent.batch : p_.len_q);
    return in_order_ ? std::min(kSectionInOrder, heads) : sm90::joined_section(heads, x.tiles, x.units, units_);
  }
  int64_t blocks(const TabledParams& x) const {
    const int64_t all = in_order_ && stays_ ? x.units : int64_t(x.tiles) * x.units;
    return stays_ ? std::min<int64_t>(all, units_) : all;
  }
  Status own_keys(const Lots& lots) {
    const Tensor &q = a_[Role::q], &k = a_[Role::k];
    const int type = p_.dtype.q == DType::bf16;
    const KeyTile all = lengths_ ? KeyTile{} : key_tile_of(ends_.seq, 0);
    TabledParams x{};  // of which a kernel without a table takes the first part
    static_cast<sm90::BackwardParams&>(x) = {.scale2 = ends_.scale * kLog2e,
                                             .kept = ends_.kept.in,
                                             .scale_k = ends_.scale * ends_.kept.out,
                                             .rows = all.rows,
                                             .keys = all.keys,
                                             .heads = p_.heads_q,
                                             .heads_kv = p_.heads_kv,
                                             .group = ends_.group,
                                             .low = all.low,
                                             .high = all.high,
                                             .tiles = int(ceil_div(all.keys, kernel_.tile_k)),
                                             .units = p_.batch * p_.heads_kv,
                                             .padded = ends_.padded,
                                             .dq = ends_.dq,
                                             .rows_of_dq = !ends_.dq ? 0 : lengths_ ? p_.len_q : all.rows,
                                             .turns = ends_.turns,
                                             .far = ends_.far,
                                             .launch = ends_.launch};
    x.has_dk = a_.given(Role::dk), x.has_dv = a_.given(Role::dv);
    x.rows_q = q.extent.seq, x.rows_k = k.extent.seq;
    x.wide_dk = sm90::wide_rows(a_[Role::dk]), x.wide_dv = sm90::wide_rows(a_[Role::dv]);
    x.dim_qk = p_.dim_qk, x.dim_v = p_.dim_v, x.accumulate = ends_.running, x.cleared = lengths_;
    const Tensor& list = a_[Role::block_begin_k];
    x.list_begin = a_.row<const int32_t>(Role::block_begin_k), x.list_row = a_.row<const int32_t>(Role::block_row_k);
    x.list_batch = list.stride.batch, x.list_head = list.stride.head, x.blocks = p_.mask.blocks;
    x.score = sm90::score_options(p_, a_), x.d_bias = a_[Role::d_bias], x.kept_out = ends_.kept.out;
    if (tabled()) {
      x.table = room_.table, x.units = p_.heads_kv;
      int64_t tiles = sm90::key_table_size(p_, kernel_.tile_k);
      // All that are not empty come first, and each sequence has at most one that is not whole.
      if (p_.keys == KeySource::ragged && !in_order_)
        tiles = std::min(tiles, k.extent.seq / kernel_.tile_k + int64_t(p_.batch));
      x.tiles = int(tiles);
    }
    x.section = heads_of_section(x);
    if (lots.count && x.section > 1) x.section = lots.units;
    if (Status s = make_maps(x); !s.ok()) return s;
    const uint32_t span = lots.count ? uint32_t(lots.units * x.tiles + 2 * lots.chunks) : 1;
    const sm90::LotParams y{x, lots.count, lots.units, lots.chunks, lots.chunk,
                            span, uint32_t(ceil_div(int64_t(1) << 32, int64_t(span))),
                            uint32_t(ceil_div(int64_t(2 * lots.chunks) << 16, int64_t(span))), room_.counts,
                            sm90::strided_rows(a_[Role::out]), sm90::strided_rows(a_[Role::d_out]),
                            sm90::strided_rows(a_[Role::lse]), sm90::strided_rows(a_[Role::dq]), room_.stats,
                            ends_.scale * ends_.kept.out, p_.dim_qk, p_.dim_v, room_.far};
    return cuda::launch({.who = kWho,
                         .kernel = kernel_.function[type](),
                         .ready = &kernel_.ready[type],
                         .blocks = lots.count ? int64_t(lots.count) * span : blocks(x),
                         .threads = kernel_.threads,
                         .shared_bytes = kernel_.shared_bytes,
                         .device = place_.device,
                         .stream = stream_,
                         .early = true},
                        p_, lots.count ? static_cast<const void*>(&y) : &x);
  }

  Status make_maps(TabledParams& x) const {
    // A map is of something: where there are no queries, of a row of keys that nobody looks at.
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
    // Not by plain bulk copies: racecheck takes those for writes of the thread that asks.
    const int64_t line = 2 * int64_t(x.padded);
    if (Status s = cuda::line_map(&room_.stats->x, line, x.heads, p_.batch, 2 * kernel_.tile_q, x.stats); !s.ok())
      return Status::no(kWho, ": statistics: ", s.message, ", in: ", name(p_));
    return Status::good();
  }

  const Problem& p_;
  const Args& a_;
  const bool lengths_, in_order_;
  const int units_;  // multiprocessors
  const bool stays_;
  const bool turned_;
  BackwardKernel& kernel_;
  const Room room_;
  const sm80::Place place_;
  const Stream stream_;
  sm80::BackwardParams ends_{};
};

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  if (Status s = fits(plan, a); !s.ok()) return s;
  if (const Problem& p = plan.problem; sm90::is_divided(p)) {
    const bool plain = sm90::is_wide(p) && !sm90::needs_table(p) && !sm90::has_lengths(p, a);
    return plain ? sm90::wide_run(kWho, plan, a, ws, stream) : sm90::any_run(kWho, plan, a, ws, stream);
  }
  const cuda::Use use(a[Role::q].device_index);
  if (!use.status.ok()) return Status::no(kWho, ": ", use.status.message, ", in: ", name(plan.problem));
  return Run(plan, a, ws, stream).run();
}

}  // namespace

extern const Backend sm90_backward{.name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
