// SPDX-License-Identifier: Apache-2.0
// sm90_backward: the backend, and runs of the fused kernel (sm90/backward/kernel.h). A run is the preprocessing, the
// kernel that owns keys, then the postprocessing, each of which starts while the one before it ends. If lengths are in
// tensors, another kernel builds the table of key tiles first. If GQA groups have head splits, a combine kernel adds up
// their dK and dV. All other problems go to the next backend in the chain.
#include <algorithm>

#include "attention/gpu/backward_pre_post_host.h"
#include "attention/gpu/refusal.h"
#include "attention/sm90/backward/choose.h"
#include "attention/sm90/backward/general/instances.h"
#include "attention/sm90/backward/tile_table.h"
#include "attention/sm90/backward/two_kernel/instances.h"
#include "attention/sm90/tensor_maps.h"
#include "core/check.h"
#include "core/score.h"
#include "machine/cuda/launcher.h"

namespace attune::sm90 {
namespace {

constexpr std::string_view kWho = "sm90_backward";

Status supports(const Problem& p, const Device& d) {
  const Mask& m = p.mask;
  const auto block = [](int size) { return size == 64 || size == 128; };
  return cuda::Refusal(kWho, p, d)
      .needs_arch(90)
      .pass(Pass::backward)
      .no_variant()
      .without({Option::append, Option::rotary, Option::rotary_half, Option::descale, Option::block_bias})
      .require(p.dtype.bias != DType::f64, "bias dtype f64 is not one of f32, f16, bf16")
      .require(p.keys != KeySource::paged, "keys are linear or ragged, not ", name(p.keys))
      .require(m.k_step == 1 && m.k_phase == 0, "mask ", name(m), " is not full, causal or a window")
      .require(!m.blocks.q || (block(m.blocks.q) && block(m.blocks.k)),
               "blocks of a list have 64 or 128 queries and keys, not ", m.blocks.q, " x ", m.blocks.k)
      .half_inputs()
      .half_gradients()
      .dims(8, 256)
      .require(p.len_q <= kMaxLen && p.len_k <= kMaxLen, "len_q is ", p.len_q, " and len_k is ", p.len_k,
               "; lengths are at most 2^28")
      .status();
}

Status shape(Plan& plan, const Planner&) {
  return path_of(plan.problem) == BackwardPath::fused ? fused_shape(kWho, plan) : general_shape(kWho, plan);
}

Status fits(const Plan& plan, const Args& a) {
  if (plan.problem.mask.blocks.q && !(a.given(Role::block_begin_k) && a.given(Role::block_row_k)))
    return Status::unsupported(kWho, ": requires the list by key block, but block_begin_k or block_row_k is not given");
  if (a.given(Role::cache_index))
    return Status::unsupported(kWho, ": does not support cache_index: sequences may share keys");
  for (const Role r : {Role::q, Role::k, Role::v, Role::out, Role::d_out, Role::dq, Role::dk, Role::dv}) {
    if (!a.given(r)) continue;
    if (Status s = cuda::mappable(kWho, r, a[r]); !s.ok()) return s;
  }
  const bool fused = plan.choice.as<BackwardChoice>().path == BackwardPath::fused;
  return fused ? Status::good() : general_fits(kWho, plan, a);
}

// Kernels with a table serve more lengths, and calls without dk or dv.
bool beyond_plain(const Problem& p, const Args& a) {
  return has_lengths(p, a) || !a.given(Role::dk) || !a.given(Role::dv);
}
sm80::Kept kept_of(const Problem& p, const Args& a) { return sm80::kept(scale_of(p, a), p.dim_qk); }

// The choice of the plan, as far as the arguments of a call allow it.
BackwardChoice adapted(const Plan& plan, const Args& a) {
  const Problem& p = plan.problem;
  const auto planned = plan.choice.as<BackwardChoice>();
  const bool beyond = beyond_plain(p, a), rows = a[Role::q].extent.batch > 0;
  const bool may_keep_one = p.dtype.q == DType::bf16 || kept_of(p, a).in == 1.f;  // bf16 has the range of f32
  const bool walks = planned.listed && planned.persistent && !beyond && rows;
  // These two read no lengths from tensors: only a call without such lengths asks.
  const auto sees_all = [&] { return all_seen(key_tile_of(sequence(p, a, 0), 0), plan.tile_k); };
  const auto has_planned_lengths = [&] {  // and not shorter ones
    const Sequence all = sequence(p, a, 0);
    return all.len_q == p.len_q && all.len_k == p.len_k;
  };
  BackwardChoice c = planned;
  c.deterministic = a.given(Role::dq) && (beyond ? p.reproducible != Reproducible::no : planned.deterministic);
  // d_sinks are computed from all statistics, before the kernel that would prepare ahead.
  c.prepares = planned.prepares && !a.given(Role::d_sinks);
  if (beyond) c.head_splits = 1;
  c.transposed = planned.transposed && !beyond && may_keep_one && (c.head_splits == 1 || sees_all());
  c.tabled = beyond || (needs_table(p) && !walks);
  if (c.tabled || !rows) {
    c.persistent = false;
  } else if (!walks && c.head_splits > 1) {
    c.persistent = c.transposed;
  } else if (!walks) {
    KeyWalk walk = walk_of(p, c, plan.tile_k);
    walk.query_splits = walk.query_splits && has_planned_lengths();
    c.persistent = planned.persistent && may_persist(walk, sms_of(plan)) && sees_all();
  }
  if (!c.persistent || c.head_splits > 1 || c.deterministic || !has_planned_lengths())
    c.query_splits = 1, c.divided = c.first_divided = 0;
  return c;
}

class Run {
 public:
  Run(const cuda::Launcher& launch, const Plan& plan, const Args& a, Workspace ws)
      : launch_(launch), p_(plan.problem), a_(a), beyond_(beyond_plain(p_, a)), sms_(sms_of(plan)),
        choice_(adapted(plan, a)), kernel_(kernel_of(p_, choice_)),
        buffers_(carve(ws, p_, plan.choice.as<BackwardChoice>(), kernel_, choice_.head_splits)),
        place_{launch.device(), plan.device.arch} {
    pre_post_ = {.problem = p_,
                 .args = dense(a),
                 .uniform = !beyond_,
                 .rows = buffers_.stats,
                 .dq = a.given(Role::dq) ? buffers_.dq : nullptr,
                 .tickets = choice_.deterministic ? buffers_.tickets : nullptr,
                 .padded = int(padded_rows(p_, kernel_)),
                 .dq_pitch = kernel_.dq_pitch,
                 .group = p_.heads_q / p_.heads_kv,
                 .scale = scale_of(p_, a),
                 .kept = choice_.transposed ? sm80::Kept{} : kept_of(p_, a),
                 .running = p_.has(Option::accumulate),
                 .large_logits = &buffers_.marks->large_logits,
                 .launch = sm80::next_launch(),
                 .transposed = choice_.transposed,
                 .taken = choice_.persistent ? &buffers_.marks->taken : nullptr,
                 .counts = 1};
    if (!beyond_) pre_post_.seq = sequence(p_, a, 0);
    pre_post_.stores_first =
        choice_.deterministic && !choice_.tabled && every_query_sees(key_tile_of(pre_post_.seq, 0));
    const int heads = p_.batch * p_.heads_q;
    const int before = choice_.persistent && choice_.prepares ? heads_prepared_before() : heads;
    const bool prepares = before < heads && wanted();
    if (prepares) pre_post_.prepared = before;
    if (prepares || choice_.query_splits > 1) {
      pre_post_.taken = buffers_.counts;
      pre_post_.counts = int(counts_before_splits(p_) + choice_.divided * kSplitWarps);
    }
  }

  Status run() {
    const bool any = wanted();
    if (any && choice_.tabled) {
      const KeyTableParams table{p_, pre_post_.args, buffers_.table, kernel_.tile_q, kernel_.tile_k,
                                 choice_.deterministic};
      if (Status s = make_key_table(launch_, table); !s.ok()) return s;
    }
    // Clears keys outside all sequences, keys that no query sees, and sums.
    for (const Role r : {Role::dk, Role::dv, Role::d_bias})
      if (a_.given(r) && !pre_post_.running && (beyond_ || r == Role::d_bias))
        if (Status s = sm80::backward_clear(kWho, p_, a_[r], place_, launch_.stream()); !s.ok()) return s;
    if (Status s = sm80::backward_prepare(kWho, pre_post_, place_, launch_.stream()); !s.ok()) return s;
    if (any)
      if (Status s = own_keys(); !s.ok()) return s;
    if (any && choice_.head_splits > 1)
      if (Status s = combine(); !s.ok()) return s;
    return a_.given(Role::dq) ? sm80::backward_finish(kWho, pre_post_, place_, launch_.stream()) : Status::good();
  }

 private:
  bool wanted() const {
    const bool keys = a_[Role::k].extent.seq > 0 && a_[Role::k].extent.batch > 0;
    bool any = false;
    for (const Role r : {Role::dq, Role::dk, Role::dv, Role::d_bias}) any |= keys && a_.given(r);
    return any;
  }
  int heads_of_section(int group, int tiles, int heads_total) const {
    const bool tabled = choice_.tabled;
    const KeyOrder by{.alike = !tabled && p_.mask.kind == MaskKind::full, .deterministic = choice_.deterministic};
    const Tensor& q = a_[Role::q];
    const int64_t rows = tabled ? int64_t(q.extent.seq) * q.extent.batch : p_.len_q;
    const double bytes = bytes_of_head(kernel_, rows) * group;
    if (choice_.head_splits > 1 && choice_.persistent) return section_of_head_splits(bytes, tiles, sms_);
    return section_of(by, bytes, tiles, heads_total, sms_);
  }
  int heads_prepared_before() const {  // when idle warps prepare the rest: no GQA, or head splits
    const int tiles = int(ceil_div(pre_post_.seq.len_k, kernel_.tile_k));
    const int group = pre_post_.group / choice_.head_splits, total = p_.batch * p_.heads_kv * choice_.head_splits;
    const int64_t before = heads_before(heads_of_section(group, tiles, total), tiles, sms_);
    return int(std::min<int64_t>(before, total)) * group;
  }
  AheadParams ahead() const {
    const auto step = [this](Role r) { return a_[r].stride.seq * size_of(p_.dtype.q) * (256 / kernel_.dq_pitch); };
    const int heads = p_.batch * p_.heads_q, ready = pre_post_.prepared ? pre_post_.prepared : heads;
    return {.ready = ready, .jobs = (heads - ready) * (pre_post_.padded / kJobRows), .dim_v = p_.dim_v,
            .out_step = step(Role::out), .d_out_step = step(Role::d_out), .stats = buffers_.stats,
            .out = a_[Role::out], .d_out = a_[Role::d_out], .lse = a_[Role::lse], .d_lse = a_[Role::d_lse]};
  }
  int64_t blocks(const TabledParams& x) const {
    const int64_t tiles = int64_t(x.tiles) * x.heads_total, more = choice_.divided * (choice_.query_splits - 1);
    return choice_.persistent ? std::min<int64_t>(tiles + more, sms_) : tiles;
  }
  // Lists with persistent CTAs: a key tile with more entries is long, over twice the mean and over an eighth of what a
  // CTA has in all. INT32_MAX: none can be.
  int most_entries(const Tensor& list) const {
    const double heads = list.stride.head == 0 ? p_.heads_q : 1, batch = list.stride.batch == 0 ? p_.batch : 1;
    const double tiles = double(ceil_div(p_.len_k, kernel_.tile_k)) * p_.heads_q * p_.batch;
    const double entries = p_.mask.blocks.bound * heads * batch;  // of all lists
    const double most = std::max(entries * std::max(2 / tiles, 0.125 / sms_), 1.);
    return most < double(ceil_div(p_.len_q, p_.mask.blocks.q)) ? int(most) : INT32_MAX;
  }

  // What every kernel receives, except for tensor maps and the order of tiles.
  BackwardParams plain_params() const {
    const KeyTile all = beyond_ ? KeyTile{} : key_tile_of(pre_post_.seq, 0);
    const int splits = choice_.head_splits;
    return {.scale2 = pre_post_.scale * kLog2e,
            .kept = pre_post_.kept.in,
            .scale_k = pre_post_.scale * pre_post_.kept.out,
            .rows = all.rows,
            .keys = all.keys,
            .heads = p_.heads_q,
            .heads_kv = p_.heads_kv * splits,
            .group = pre_post_.group / splits,
            .low = all.low,
            .high = all.high,
            .tiles = int(ceil_div(all.keys, kernel_.tile_k)),
            .heads_total = p_.batch * p_.heads_kv * splits,
            .padded = pre_post_.padded,
            .dq = pre_post_.dq,
            .rows_of_dq = !pre_post_.dq ? 0 : beyond_ ? p_.len_q : all.rows,
            .tickets = pre_post_.tickets,
            .large_logits = pre_post_.large_logits,
            .launch = pre_post_.launch,
            .inverse_splits = inverse_splits(splits),
            .sums = buffers_.sums,
            .taken = pre_post_.taken,
            .ahead = ahead()};
  }
  // Lists, tables, f32 gradients and options.
  void add_rest(TabledParams& x) const {
    const Tensor& list = a_[Role::block_begin_k];
    x.has_dk = a_.given(Role::dk), x.has_dv = a_.given(Role::dv);
    x.rows_q = a_[Role::q].extent.seq, x.rows_k = a_[Role::k].extent.seq;
    x.f32_dk = f32_rows(a_[Role::dk]), x.f32_dv = f32_rows(a_[Role::dv]);
    x.dim_qk = p_.dim_qk, x.dim_v = p_.dim_v, x.accumulate = pre_post_.running, x.cleared = beyond_;
    x.list_begin = a_.row<const int32_t>(Role::block_begin_k), x.list_row = a_.row<const int32_t>(Role::block_row_k);
    x.list_batch = list.stride.batch, x.list_head = list.stride.head, x.blocks = p_.mask.blocks;
    if (choice_.listed && choice_.persistent) x.most_entries = most_entries(list);
    x.score = score_options(p_, a_), x.d_bias = a_[Role::d_bias], x.kept_out = pre_post_.kept.out;
    if (!choice_.tabled) return;
    x.table = buffers_.table, x.heads_total = p_.heads_kv;
    int64_t tiles = key_table_size(p_, kernel_.tile_k);
    // Tiles that are not empty come first, and each sequence has at most one partial tile.
    if (p_.keys == KeySource::ragged && !choice_.deterministic)
      tiles = std::min(tiles, x.rows_k / kernel_.tile_k + int64_t(p_.batch));
    x.tiles = int(tiles);
  }
  Status own_keys() const {
    const int type = p_.dtype.q == DType::bf16;
    TabledParams x{};  // a kernel without a table takes the first part
    static_cast<BackwardParams&>(x) = plain_params();
    add_rest(x);
    if (choice_.query_splits > 1)
      x.query_splits = {int(choice_.first_divided), int(choice_.divided), choice_.query_splits, buffers_.sums,
                        buffers_.counts + counts_before_splits(p_)};
    x.section = heads_of_section(x.group, x.tiles, x.heads_total);
    if (Status s = map_tensors(x); !s.ok()) return s;
    return launch_({.kernel = kernel_.function[type](),
                    .ready = &kernel_.ready[type],
                    .blocks = blocks(x),
                    .threads = kernel_.threads,
                    .shared_bytes = kernel_.shared_bytes,
                    .dependent = true},
                   x);
  }
  Status combine() const {
    return combine_dkdv(launch_, p_, {.sums = buffers_.sums,
                                      .head_splits = choice_.head_splits,
                                      .tiles = int(ceil_div(pre_post_.seq.len_k, kernel_.tile_k)),
                                      .heads = p_.heads_kv,
                                      .keys = pre_post_.seq.len_k,
                                      .dim = kernel_.dim,
                                      .dim_qk = p_.dim_qk,
                                      .dim_v = p_.dim_v,
                                      .scale = pre_post_.scale * pre_post_.kept.out,
                                      .dk = a_[Role::dk],
                                      .dv = a_[Role::dv]});
  }

  Status map_tensors(TabledParams& x) const {
    // With no queries, maps rows of keys, which are never read.
    const bool rows = a_[Role::q].extent.seq > 0 && a_[Role::q].extent.batch > 0;
    const Tensor &q = a_[rows ? Role::q : Role::k], &d_out = a_[rows ? Role::d_out : Role::v];
    const Tensor &k = a_[Role::k], &v = a_[Role::v], &dk = a_[Role::dk], &dv = a_[Role::dv];
    const bool narrow = p_.dtype.grad != DType::f32, dk_here = narrow && x.has_dk, dv_here = narrow && x.has_dv;
    const auto end_rows = end_box_rows;
    if (Status s = make_maps(kWho, p_, {{Role::q, q, &x.q, kernel_.tile_q},
                                        {Role::d_out, d_out, &x.d_out, kernel_.tile_q},
                                        {Role::k, k, &x.k, kernel_.tile_k},
                                        {Role::v, v, &x.v, kernel_.tile_k},
                                        {Role::dk, dk, &x.dk, 16, dk_here},
                                        {Role::dv, dv, &x.dv, 16, dv_here},
                                        {Role::q, q, &x.q_end[0], end_rows(0), beyond_},
                                        {Role::q, q, &x.q_end[1], end_rows(1), beyond_},
                                        {Role::q, q, &x.q_end[2], end_rows(2), beyond_},
                                        {Role::d_out, d_out, &x.d_out_end[0], end_rows(0), beyond_},
                                        {Role::d_out, d_out, &x.d_out_end[1], end_rows(1), beyond_},
                                        {Role::d_out, d_out, &x.d_out_end[2], end_rows(2), beyond_},
                                        {Role::k, k, &x.k_end[0], end_rows(0), beyond_},
                                        {Role::k, k, &x.k_end[1], end_rows(1), beyond_},
                                        {Role::k, k, &x.k_end[2], end_rows(2), beyond_},
                                        {Role::dk, dk, &x.dk_row, 1, beyond_ && dk_here},
                                        {Role::dv, dv, &x.dv_row, 1, beyond_ && dv_here}});
        !s.ok())
      return s;
    return make_stats_map(kWho, p_, buffers_.stats, x.padded, kernel_.tile_q, x.stats);
  }

  const cuda::Launcher& launch_;
  const Problem& p_;
  const Args& a_;
  const bool beyond_;  // beyond what kernels without a table serve
  const int sms_;
  const BackwardChoice choice_;  // of this run
  BackwardKernel& kernel_;
  const Buffers buffers_;
  const sm80::Place place_;
  sm80::BackwardParams pre_post_{};
};

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  if (Status s = fits(plan, a); !s.ok()) return s;
  const Problem& p = plan.problem;
  const cuda::Launcher launch(kWho, p, a[Role::q].device_index, stream);
  if (!launch.status.ok()) return launch.status;
  switch (plan.choice.as<BackwardChoice>().path) {
    case BackwardPath::fused: return Run(launch, plan, a, ws).run();
    case BackwardPath::two_kernel:
      if (!has_lengths(p, a)) return two_kernel_run(kWho, launch, plan, a, ws);
      break;
    case BackwardPath::general: break;
  }
  return general_run(kWho, launch, plan, a, ws);
}

}  // namespace
}  // namespace attune::sm90

namespace attune {

extern const Backend sm90_backward{.name = sm90::kWho,
                                   .supports = sm90::supports,
                                   .shape = sm90::shape,
                                   .run = sm90::run,
                                   .fits = sm90::fits,
                                   .describe = sm90::describe_backward};

}  // namespace attune
