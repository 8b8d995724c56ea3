// SPDX-License-Identifier: Apache-2.0
// General sm90_backward: the host side of general/kernel_dq.h and kernel_dkdv.h. A run is the tile tables, the
// preprocessing, the kernel that owns queries, then the one that owns keys, which starts as soon as the former leaves
// room. CTAs share no sums except that of a broadcast bias, so all other gradients have the same bits in every run.
#include "attention/gpu/backward_pre_post_host.h"
#include "attention/sm90/backward/choice.h"
#include "attention/sm90/backward/general/instances.h"
#include "attention/sm90/backward/tile_table.h"
#include "attention/sm90/backward/two_kernel/instances.h"
#include "attention/sm90/forward/tile_table.h"
#include "attention/sm90/schedule.h"
#include "attention/sm90/tensor_maps.h"
#include "core/check.h"

namespace attune::sm90 {
namespace {

constexpr int kTileRows = 128, kTileKeys = 64;  // what a CTA owns; steps are 64 x 64

GeneralKernel& kernel_of(const Problem& p) { return is_large_head(p) ? general_kernel_256() : general_kernel_128(); }
int64_t padded(const Problem& p) { return round_up(p.len_q, kTileRows); }

struct Buffers { float2* stats; TileTable rows; KeyTile* keys; };
Buffers carve(Workspace& ws, const Problem& p) {
  return {ws.take<float2>(size_t(p.batch) * size_t(p.heads_q) * size_t(padded(p))),
          {ws.take<QueryTile>(size_t(table_bound(p, kTileRows))), ws.take<int>(size_t(p.batch) + 1)},
          ws.take<KeyTile>(size_t(key_table_size(p, kTileKeys)))};
}

class Run {
 public:
  Run(std::string_view who, const cuda::Launcher& launch, const Plan& plan, const Args& a, Workspace ws)
      : who_(who), launch_(launch), p_(plan.problem), a_(a), kernel_(kernel_of(p_)), buffers_(carve(ws, p_)),
        lengths_(has_lengths(p_, a)), place_{launch.device(), plan.device.arch} {
    pre_post_ = {.problem = p_, .args = dense(a), .uniform = !lengths_, .rows = buffers_.stats,
                 .padded = int(padded(p_)), .dq_pitch = kernel_.dim, .group = p_.heads_q / p_.heads_kv,
                 .scale = scale_of(p_, a), .kept = sm80::kept(scale_of(p_, a), p_.dim_qk),
                 .running = p_.has(Option::accumulate)};
    if (!lengths_) pre_post_.seq = sequence(p_, a, 0);
  }

  Status run() {
    const auto any = [&](Role r) { return a_[r].extent.seq > 0 && a_[r].extent.batch > 0; };
    has_rows_ = any(Role::q), has_keys_ = any(Role::k);
    const bool rows = has_rows_ && (a_.given(Role::dq) || a_.given(Role::d_bias));
    const bool keys = has_keys_ && (a_.given(Role::dk) || a_.given(Role::dv));
    if (rows)
      if (Status s = make_table(who_, {p_, pre_post_.args, buffers_.rows, kTileRows, kTileKeys}, place_.device,
                                launch_.stream());
          !s.ok())
        return s;
    if (keys) {
      const KeyTableParams table{.problem = p_, .args = pre_post_.args, .table = buffers_.keys, .tile_q = kTileKeys,
                                 .tile_k = kTileKeys, .deterministic = false};
      if (Status s = make_key_table(launch_, table); !s.ok()) return s;
    }
    // Clears keys outside all sequences, keys that no query sees, and sums.
    for (const Role r : {Role::dk, Role::dv, Role::d_bias})
      if (a_.given(r) && !pre_post_.running && (lengths_ || r == Role::d_bias))
        if (Status s = sm80::backward_clear(who_, p_, a_[r], place_, launch_.stream()); !s.ok()) return s;
    if (Status s = sm80::backward_prepare(who_, pre_post_, place_, launch_.stream()); !s.ok()) return s;
    if (!rows && !keys) return Status::good();
    fill(rows);
    if (Status s = map_tensors(); !s.ok()) return s;
    const int type = p_.dtype.q == DType::bf16;
    if (rows) {
      const int64_t blocks = table_bound(p_, kTileRows) * x_.of_rows.heads;
      if (Status s = launch(kernel_.rows[type], kernel_.rows_ready[type], blocks, kernel_.rows_bytes); !s.ok())
        return s;
    }
    if (!keys) return Status::good();
    const int64_t blocks = int64_t(x_.of_keys.tiles) * x_.of_keys.heads;
    return launch(kernel_.keys[type], kernel_.keys_ready[type], blocks, kernel_.keys_bytes);
  }

 private:
  void fill(bool rows) {
    const Tensor &q = a_[Role::q], &k = a_[Role::k], &list = a_[Role::block_begin_k];
    const double row_bytes = 2. * (p_.dim_qk + p_.dim_v), all_q = double(q.extent.seq) * q.extent.batch,
                 all_k = double(k.extent.seq) * k.extent.batch;
    const bool listed = p_.mask.blocks.q;
    int64_t tiles = key_table_size(p_, kTileKeys);
    // Tiles that are not empty come first, and each sequence has at most one partial tile.
    if (p_.keys == KeySource::ragged) tiles = std::min(tiles, k.extent.seq / kTileKeys + int64_t(p_.batch));
    x_.row_stats = buffers_.stats, x_.scale2 = pre_post_.scale * kLog2e, x_.kept = pre_post_.kept.in;
    x_.scale = pre_post_.scale * pre_post_.kept.out;
    x_.heads = p_.heads_q, x_.heads_kv = p_.heads_kv, x_.group = pre_post_.group, x_.padded = pre_post_.padded;
    x_.wants_dq = a_.given(Role::dq), x_.wants_dk = a_.given(Role::dk), x_.wants_dv = a_.given(Role::dv);
    x_.alone = !rows;
    x_.of_rows = {0, listed ? 1 : p_.heads_q, listed ? 1 : section_heads(row_bytes * all_k / pre_post_.group)};
    x_.of_keys = {int(tiles), p_.heads_kv, section_heads(row_bytes * all_q * pre_post_.group)};
    x_.row_table = buffers_.rows.tile, x_.row_tiles = buffers_.rows.begin + p_.batch, x_.key_table = buffers_.keys;
    x_.rows_q = q.extent.seq, x_.rows_k = k.extent.seq, x_.dim_qk = p_.dim_qk, x_.dim_v = p_.dim_v;
    x_.f32_dq = f32_rows(a_[Role::dq]), x_.f32_dk = f32_rows(a_[Role::dk]), x_.f32_dv = f32_rows(a_[Role::dv]);
    x_.accumulate = pre_post_.running, x_.cleared = lengths_;
    x_.column = a_.row<const int32_t>(Role::block_column), x_.list_begin = a_.row<const int32_t>(Role::block_begin_k);
    x_.list_row = a_.row<const int32_t>(Role::block_row_k);
    x_.list_batch = list.stride.batch, x_.list_head = list.stride.head, x_.blocks = p_.mask.blocks;
    x_.options = needs_general(p_), x_.score = score_options(p_, a_);
    x_.d_bias = a_[Role::d_bias], x_.kept_out = pre_post_.kept.out;
  }
  Status map_tensors() {
    // With no queries or no keys, maps other rows, which are never read.
    const Tensor &q = a_[has_rows_ ? Role::q : Role::k], &d_out = a_[has_rows_ ? Role::d_out : Role::v];
    const Tensor &k = a_[has_keys_ ? Role::k : Role::q], &v = a_[has_keys_ ? Role::v : Role::d_out];
    const auto end_rows = end_box_rows;
    const bool narrow = p_.dtype.grad != DType::f32;
    const auto gradient = [&](Role r, CUtensorMap* to, int rows) {
      const bool there = a_.given(r) && (r == Role::dq ? has_rows_ : has_keys_);
      return MapRequest{r, a_[r], to, rows, narrow && there};
    };
    if (Status s = make_maps(who_, p_, {{Role::q, q, &x_.q, 64},
                                        {Role::d_out, d_out, &x_.d_out, 64},
                                        {Role::k, k, &x_.k, 64},
                                        {Role::v, v, &x_.v, 64},
                                        {Role::q, q, &x_.q_end[0], end_rows(0), lengths_},
                                        {Role::q, q, &x_.q_end[1], end_rows(1), lengths_},
                                        {Role::q, q, &x_.q_end[2], end_rows(2), lengths_},
                                        {Role::d_out, d_out, &x_.d_out_end[0], end_rows(0), lengths_},
                                        {Role::d_out, d_out, &x_.d_out_end[1], end_rows(1), lengths_},
                                        {Role::d_out, d_out, &x_.d_out_end[2], end_rows(2), lengths_},
                                        {Role::k, k, &x_.k_end[0], end_rows(0), lengths_},
                                        {Role::k, k, &x_.k_end[1], end_rows(1), lengths_},
                                        {Role::k, k, &x_.k_end[2], end_rows(2), lengths_},
                                        gradient(Role::dq, &x_.dq, 16),
                                        gradient(Role::dk, &x_.dk, 16),
                                        gradient(Role::dv, &x_.dv, 16),
                                        gradient(Role::dq, &x_.dq_row, 1),
                                        gradient(Role::dk, &x_.dk_row, 1),
                                        gradient(Role::dv, &x_.dv_row, 1)});
        !s.ok())
      return s;
    return make_stats_map(who_, p_, buffers_.stats, x_.padded, kTileKeys, x_.stats);
  }
  Status launch(void (*kernel)(GeneralParams), cuda::SharedMemoryOptIn& ready, int64_t blocks, int shared_bytes) const {
    return launch_({.kernel = cuda::address(kernel),
                    .ready = &ready,
                    .blocks = blocks,
                    .threads = kernel_.threads,
                    .shared_bytes = shared_bytes,
                    .dependent = true},
                   x_);
  }

  const std::string_view who_;
  const cuda::Launcher& launch_;
  const Problem& p_;
  const Args& a_;
  GeneralKernel& kernel_;
  const Buffers buffers_;
  const bool lengths_;
  const sm80::Place place_;
  bool has_rows_ = false, has_keys_ = false;
  sm80::BackwardParams pre_post_{};
  GeneralParams x_{};
};

}  // namespace

Status general_shape(std::string_view who, Plan& plan) {
  const Problem& p = plan.problem;
  BackwardChoice c{.path = path_of(p),
                   .deterministic = p.reproducible != Reproducible::no,
                   .options = needs_general(p),
                   .listed = p.mask.blocks.q > 0};
  c.tabled = c.path == BackwardPath::general;
  if (c.path == BackwardPath::general) c.dim_qk = c.dim_v = kernel_of(p).dim;
  else c.dim_qk = two_kernel_of(p).dim_qk, c.dim_v = two_kernel_of(p).dim_v;
  plan.tile_q = kTileRows, plan.tile_k = kTileKeys, plan.kernel = number_of(c);
  plan.choice.set(c);
  const int64_t most = std::max({ceil_div(p.len_k, kTileKeys) * p.batch * p.heads_kv,
                                 ceil_div(p.len_q, kTileRows) * p.batch * p.heads_q,
                                 int64_t(p.batch) * p.heads_q * (padded(p) / sm80::kRowsOfPrepare)});
  if (most > INT32_MAX) return Status::unsupported(who, ": needs ", most, " CTAs; a launch has at most 2^31 - 1");
  Workspace count;
  carve(count, p);
  plan.workspace_bytes = count.used;
  return Status::good();
}

Status general_fits(std::string_view who, const Plan& plan, const Args& a) {
  const Problem& p = plan.problem;
  const Extents& e = a[Role::bias].extent;
  const bool whole = e.batch == p.batch && e.head == p.heads_q && e.seq >= p.len_q && e.dim >= p.len_k;
  if (p.reproducible != Reproducible::no && a.given(Role::d_bias) && !whole)
    return Status::unsupported(who, ": a reproducible d_bias requires a bias that is not broadcast, but this one is ",
                               e.batch, " x ", e.seq, " x ", e.head, " x ", e.dim);
  return Status::good();
}

Status general_run(std::string_view who, const cuda::Launcher& launch, const Plan& plan, const Args& a, Workspace ws) {
  return Run(who, launch, plan, a, ws).run();
}

}  // namespace attune::sm90
