// SPDX-License-Identifier: Apache-2.0
// Gradients on the CPU, in linear memory and a fixed order:
//   delta and lse of every row -> for each key tile: for each query tile: S, dP, then P and dS, dV += P^T dO,
//   dK += dS^T Q, and dS transposed, dQ += dS K
// The five products use the two forms of an instruction set. A panel's rows are keys and its "keys" are queries, so P
// and dS come out as operands of dV and dK; only dS is transposed, once, for dQ. The dQ of a unit stays with its
// worker, in f32. Where units are fewer than threads, each is split by keys, and the partial dQ are added in order.
#pragma once
#include <atomic>
#include <cfloat>
#include <cmath>

#include "attention/cpu/backward_scratch.h"
#include "attention/cpu/formula/gradients.h"
#include "attention/cpu/gradients.h"
#include "attention/cpu/large_logits.h"
#include "attention/cpu/unit.h"

namespace attune::cpu {

inline constexpr int kMaxRows = 64;  // per panel, for all instruction sets
inline constexpr int kAhead = 48;    // rows of dQ to prefetch before they are stored

// The gradients of one KV head in one sequence, for its key tiles [first, last).
class Task {
 public:
  Task(const Plan& plan, const Args& a, const CpuKernels& m, const Scratch& scratch, const RowState& rows,
       const PackedQueries& queries, const FormulaCall& formula, int b, int head_kv)
      : plan_(plan), p_(plan.problem), a_(a), m_(m), x_(scratch), rows_(rows), queries_(queries), formula_(formula),
        lanes_(formula, scratch.formula, FormulaLanes::kQ | FormulaLanes::kH),
        dim_qk_(padded(m, p_.dim_qk)), dim_v_(padded(m, p_.dim_v)),
        numbers_(only_numbers(p_) && !formula_ ? a.row<const float>(Role::bias) : nullptr),
        general_((needs_general(p_) && !numbers_) || lanes_.scores()), f32_(p_.dtype.grad == DType::f32),
        scale_(scale_of(p_, a)) {
    for (int n = 0; n < units_of_keys(p_); ++n)
      x_.units[n] = unit_of(p_, a, b, head_kv * units_of_keys(p_) + n, x_.scores + n * group(p_));
    for (int n = 0; n < units_of_keys(p_); ++n)
      std::fill_n(dq_of(n, 0), rows_of_dq(plan, m, queries) * dim_qk_, 0.f);
  }

  void run(const KeyTiles& tiles, int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) key_tile(tiles.keys(n, x_.units[0].seq.len_k));
  }

  // Stores dQ to the tensor, or to a split's partial result.
  void store_dq(float* partial) {
    if (!a_.given(Role::dq)) return;
    for (int n = 0; n < units_of_keys(p_); ++n) {
      const Unit& u = x_.units[n];
      if (!by_head(p_)) store_dq(u, {0, u.rows()}, Panels(m_, u.rows(), false), dq_of(n, 0), partial);
      for (int64_t slot = 0; slot < queries_.slots; ++slot)
        if (const Rows rows = queries_.rows(plan_, u, slot); rows.first < rows.last)
          store_dq(u, rows, panels_of(rows), dq_of(n, slot * plan_.tile_q), partial);
    }
  }

 private:
  int64_t row_index(const Unit& u, int row) const {
    return (int64_t(u.b) * p_.heads_q + u.head(row)) * p_.len_q + u.position(row);
  }
  float* dq_of(int unit, int64_t row) const {
    return x_.dq + (unit * rows_of_dq(plan_, m_, queries_) + row) * dim_qk_;
  }
  Panels panels_of(Rows rows) const { return {m_, int(round_up(rows.last - rows.first, m_.keys))}; }

  void store_dq(const Unit& u, Rows rows, const Panels& panels, const float* dq, float* partial) {
    for (int panel = 0; panel < panels.count(); ++panel) {
      const int first = rows.first + panels.first(panel), count = std::min(panels[panel].rows, rows.last - first);
      if (count <= 0) break;
      for (int r = first + kAhead; f32_ && r < std::min(first + kAhead + count, rows.last); ++r)
        fetch(u.address(Role::dq, r), p_.dim_qk * int64_t(sizeof(float)));
      const float* from = dq + int64_t(panels.first(panel)) * dim_qk_;
      char* to[kMaxRows];
      if (!partial) {
        u.addresses(Role::dq, first, count, to);
        write_panel(panels[panel], p_, from, p_.dim_qk, scale_, count, x_.row, to);
        continue;
      }
      float factor[kMaxRows];
      std::fill_n(factor, count, scale_);
      panels[panel].unpack(from, p_.dim_qk, factor, count, x_.row, p_.dim_qk);
      for (int r = 0; r < count; ++r)
        std::copy_n(x_.row + r * p_.dim_qk, p_.dim_qk, partial + row_index(u, first + r) * p_.dim_qk);
    }
  }

  void key_tile(Rows keys) {
    const int count = keys.last - keys.first;
    if (count <= 0) return;
    const Panels panels = panels_of(keys);
    fetched_ = false, searched_ = false;
    keys_ = keys;
    pack_keys(panels, false);
    std::fill_n(x_.dk, int64_t(panels.rows()) * dim_qk_, 0.f);
    std::fill_n(x_.dv, int64_t(panels.rows()) * dim_v_, 0.f);
    for (int n = 0; n < units_of_keys(p_); ++n) visit_queries(n, keys, panels);
    store_keys(Role::dk, keys, panels, x_.dk, p_.dim_qk, dim_qk_, scale_);
    store_keys(Role::dv, keys, panels, x_.dv, p_.dim_v, dim_v_, 1.f);
  }

  // Packs the key tile, `leaves_out`: without rows that are not finite.
  void pack_keys(const Panels& panels, bool leaves_out) {
    const int count = keys_.last - keys_.first;
    leaves_out_ = leaves_out;
    const float scale_k = m_.scale_in_q && !general_ ? scale_ * kLog2e : 1.f;
    for (const Role role : {Role::k, Role::v}) {
      const int dim = role == Role::k ? p_.dim_qk : p_.dim_v, pitch = role == Role::k ? dim_qk_ : dim_v_;
      gather_keys(x_.units[0], role, keys_.first, count, x_.rows);
      for (int j = 0; leaves_out && j < count; ++j)
        if (x_.left_out[j]) x_.rows[j] = kZeroRow;
      for (int n = 0; n < panels.count(); ++n) {
        const int first = panels.first(n), rows = clamp(count - first, 0, panels[n].rows);
        panels[n].pack_q(x_.rows + first, rows, dim, role == Role::k ? scale_k : 1.f,
                         at(role == Role::k ? x_.k_q : x_.v_q, m_, int64_t(first) * pitch));
      }
      if (role == Role::k) m_.pack_v(x_.rows, count, dim, x_.k_v, plan_.tile_k);
    }
  }

  // True if some pair of the key tile and these rows has no gradient, and a row of either is not finite (finite.h).
  bool must_leave_out(const Unit& u, Rows tile) {
    const QueryWalk walk{u.seq.band, u.seq.len_q, 1};
    bool hidden = int64_t(walk.first_query(keys_.last - 1)) * u.group > tile.first ||
                  int64_t(walk.last_query(keys_.first)) * u.group < tile.last;
    hidden = hidden || box_of(u, tile, keys_) != BoxIs::open;
    bool found = false;
    for (int row = tile.first; rows_.any_special(p_, u) && row < tile.last; ++row) {
      found |= rows_.infinite[row_index(u, row)];
      hidden |= rows_.lse[row_index(u, row)] == INFINITY;
    }
    if (!hidden) return false;
    if (!searched_) some_left_out_ = mark_keys(p_, m_, x_.units[0], keys_, x_.rows, x_.left_out);
    searched_ = true;
    return found || some_left_out_;
  }

  // What the formula says of rows of a unit and a range of keys.
  BoxIs box_of(const Unit& u, Rows rows, Rows keys) const {
    rows.last = std::min(rows.last, u.rows());
    if (!formula_ || rows.first >= rows.last || keys.first >= keys.last) return BoxIs::open;
    const Band& band = u.seq.band;
    return formula_.decide({.q_first = band.q_position(u.position(rows.first)),
                            .q_last = band.q_position(u.position(rows.last - 1)),
                            .k_first = band.k_position(keys.first), .k_last = band.k_position(keys.last - 1),
                            .h_first = u.head_q, .h_last = u.head_q + u.group - 1, .b = u.b,
                            .group = formula_.group, .len_q = u.seq.len_q, .len_k = u.seq.len_k});
  }

  void visit_queries(int unit, Rows keys, const Panels& panels) {
    const Unit& u = x_.units[unit];
    const QueryWalk walk{u.seq.band, u.seq.len_q, 1};
    const Rows seen{walk.first_query(keys.first) * u.group, walk.last_query(keys.last - 1) * u.group};
    if (!p_.mask.blocks.q) return query_rows(unit, keys, panels, seen);
    const BlockList list = list_of(p_, a_, u.b, u.head_q);
    const int key_block = keys.first / p_.mask.blocks.k, size = p_.mask.blocks.q;
    count_ = 0;
    const auto visit = [&](int64_t block) { query_block(unit, keys, panels, seen, list, block, key_block); };
    if (a_.given(Role::block_begin_k)) {
      const BlockList by_key{p_.mask.blocks, a_.row<const int32_t>(Role::block_begin_k, u.b, 0, u.head_q),
                             a_.row<const int32_t>(Role::block_row_k)};
      for (int n = 0; n < by_key.count(key_block); ++n) visit(by_key.key_block(key_block, n));
    } else {
      for (int64_t block = seen.first / size; block * size < seen.last; ++block)
        if (list.find(int(block), key_block) >= 0) visit(block);
    }
    query_tiles(u, keys, panels);
  }

  // Rows of a unit against the key tile. Tiles begin at a panel of dQ; rows before `rows.first` are masked.
  void query_rows(int unit, Rows keys, const Panels& panels, Rows rows) {
    for (int64_t first = rows.first / m_.rows * m_.rows; first < rows.last; first += plan_.tile_q) {
      const Rows tile{int(first), clamp(first + plan_.tile_q, 0, rows.last)};
      if (box_of(x_.units[unit], tile, keys) == BoxIs::hidden) continue;
      // Whole panels of dQ: a row beyond the tile adds 0 to its owner.
      const int n = int(round_up(round_up(tile.last - tile.first, m_.rows), m_.keys));
      const bool leaves_out = must_leave_out(x_.units[unit], tile);
      if (leaves_out != leaves_out_) pack_keys(panels, leaves_out);
      pack_queries(unit, tile, n);
      tiles_[0] = {.rows = tile, .open = rows, .n = n, .packed = x_.queries,
                   .panels = Panels(m_, tile.last - tile.first, false), .dq = dq_of(unit, first)};
      count_ = 1;
      query_tiles(x_.units[unit], keys, panels);
    }
  }
  // Collects the visible rows of a block, whose tiles are already packed, until there are enough tiles.
  void query_block(int unit, Rows keys, const Panels& panels, Rows seen, const BlockList& list, int64_t block,
                   int key_block) {
    const Unit& u = x_.units[unit];
    for (int64_t nth = 0; nth < queries_.tiles_per_block; ++nth) {
      const int64_t slot = block * queries_.tiles_per_block + nth;
      const Rows tile = queries_.rows(plan_, u, slot);
      const Rows open{clamp(tile.first, seen.first, seen.last), clamp(tile.last, seen.first, seen.last)};
      if (open.first >= open.last || box_of(u, open, keys) == BoxIs::hidden) continue;
      const bool leaves_out = must_leave_out(u, tile);
      if (leaves_out != leaves_out_) {
        query_tiles(u, keys, panels);
        count_ = 0;
        pack_keys(panels, leaves_out);
      }
      QueryTile& t = tiles_[count_];
      t = {.rows = tile, .open = open, .n = int(round_up(tile.last - tile.first, m_.keys)),
           .at = count_ * plan_.tile_q, .packed = queries_.at(p_, u.b, u.head_q, slot), .panels = panels_of(tile),
           .dq = dq_of(unit, slot * plan_.tile_q)};
      if (p_.has(Option::block_bias)) t.entry = std::max(0, list.find(int(block), key_block));
      if (leaves_out) pack_queries(unit, tile, t.n), t.packed = x_.queries;
      if (++count_ == tiles_of(p_, m_) || leaves_out) query_tiles(u, keys, panels), count_ = 0;
    }
  }

  // Packs rows of a unit as the query tile.
  void pack_queries(int unit, Rows tile, int n) {
    const Unit& u = x_.units[unit];
    const auto left_out = [&](int row) { return leaves_out_ && rows_.infinite[row_index(u, row)]; };
    cpu::pack_queries(p_, m_, u, tile, n, x_.rows, x_.queries, left_out);
  }

  // Transposed dS of a panel of queries, starting at a key.
  std::byte* ds_of(const QueryTile& t, int panel_first, int64_t key_elements) const {
    return at(x_.ds_t, m_, int64_t(t.at + panel_first) * plan_.tile_k + key_elements);
  }

  void query_tiles(const Unit& u, Rows keys, const Panels& panels) {
    const QueryWalk walk{u.seq.band, u.seq.len_q, 1};
    for (int g = 0; g < count_; ++g) {
      QueryTile& t = tiles_[g];
      const int count = t.rows.last - t.rows.first;
      float *lse = x_.lse + t.at, *delta = x_.delta + t.at;
      std::fill_n(lse, t.n, INFINITY), std::fill_n(delta, t.n, 0.f);
      if (u.group == 1) {
        std::copy_n(rows_.lse + row_index(u, t.rows.first), count, lse);
        std::copy_n(rows_.delta + row_index(u, t.rows.first), count, delta);
      } else {
        for (int r = 0; r < count; ++r) {
          lse[r] = rows_.lse[row_index(u, t.rows.first + r)];
          delta[r] = rows_.delta[row_index(u, t.rows.first + r)];
        }
      }
      for (int r = 0; leaves_out_ && r < count; ++r)
        if (rows_.infinite[row_index(u, t.rows.first + r)]) lse[r] = INFINITY, delta[r] = 0.f;
      t.large_logits = std::any_of(lse, lse + count, is_large_logit);
      if (numbers_ && !t.large_logits) lower(lse, count, number_of(t));
      // Drops the last panels if no query sees a key of theirs: on the diagonal of a causal mask nearly half of them.
      // For dQ, enough panels are kept to fill a step of keys.
      t.seen = panels.count();
      while (t.seen > 0 &&
             int64_t(walk.first_query(keys.first + panels.first(t.seen - 1))) * u.group >= t.rows.last) --t.seen;
      while (t.seen < panels.count() && panels.first(t.seen) % m_.keys) ++t.seen;
      find_reads(u, keys, panels, t);
      if (const int last = t.panels.count() - 1; t.panels.rows() > t.n)  // rows of dQ beyond the tile
        std::memset(ds_of(t, t.panels.first(last), 0), 0,
                    size_t(t.panels[last].rows) * size_t(plan_.tile_k) * size_t(m_.operand_bytes));
    }
    for (int panel = 0; panel < panels.count(); ++panel) {
      if (f32_ && !fetched_) fetch_keys(keys, panels, panel);
      key_panel(u, keys, panels, panel);
    }
    fetched_ |= count_ > 0;
    for (int g = 0; a_.given(Role::dq) && g < count_; ++g) add_dq(tiles_[g]);
    for (int g = 0; leaves_out_ && g < count_; ++g) add_left_out(u, panels, tiles_[g]);
  }

  // Adds the visible pairs of rows that were left out, as `general_gradients` has them.
  [[gnu::cold, gnu::noinline]] void add_left_out(const Unit& u, const Panels& panels, const QueryTile& t) {
    const QueryWalk walk{u.seq.band, u.seq.len_q, 1};
    PairRows x;
    if (p_.has(Option::block_bias)) x_.scores[&u - x_.units].entry = t.entry;
    float block = 0.f;
    for (int row = std::max(t.rows.first, t.open.first); row < std::min(t.rows.last, t.open.last); ++row) {
      const int64_t at = row_index(u, row);
      if (rows_.lse[at] == INFINITY) continue;
      const int i = u.position(row);
      x.read(p_, m_, u.address(Role::q, row), u.address(Role::d_out, row));
      for (int j = keys_.first; j < keys_.last; ++j) {
        if (!rows_.infinite[at] && !x_.left_out[j - keys_.first]) continue;
        if (i < walk.first_query(j) || i >= walk.last_query(j)) continue;
        ScoreOfPair score(lanes_, u, row, j);
        if (!score.visible) continue;
        const PairRows::Weights w = x.pair(u, u.score(row), i, j, rows_.lse[at], rows_.delta[at], score);
        if (a_.given(Role::d_bias) && !p_.has(Option::block_bias)) *bias_gradient(u, i, row, j) += w.d_logit;
        block += w.d_logit;
        add_to_panels(panels, j - keys_.first, x.scaled(x.d_out, w.p), dim_v_, x_.dv);
        add_to_panels(panels, j - keys_.first, x.scaled(x.q, w.ds), dim_qk_, x_.dk);
        add_to_panels(t.panels, row - t.rows.first, x.scaled(x.k, w.ds), dim_qk_, t.dq);
      }
    }
    if (p_.has(Option::block_bias)) add_to_number(t, block);
  }

  // f32 sums are not in cache, and are touched only once, when stored.
  void fetch_keys(Rows keys, const Panels& panels, int panel) const {
    const int first = keys.first + panels.first(panel), last = std::min(first + panels[panel].rows, keys.last);
    for (const Role role : {Role::dk, Role::dv})
      for (int key = first; a_.given(role) && key < last; ++key)
        fetch(key_address(x_.units[0], role, key), (role == Role::dk ? p_.dim_qk : p_.dim_v) * int64_t(sizeof(float)));
  }

  void find_reads(const Unit& u, Rows keys, const Panels& panels, QueryTile& t) const {
    const int many = std::min(int(round_up(keys.last - keys.first, m_.keys)), panels.first(t.seen));
    const BandWalk back{u.seq.band, u.seq.len_k, 1};
    for (int panel = 0; panel < t.panels.count(); ++panel) {
      const CpuKernels& m = t.panels[panel];
      const int first = t.panels.first(panel), last = std::min(first + m.rows, t.rows.last - t.rows.first) - 1;
      t.reads[panel] = {0, 0};
      if (last < first) continue;
      const int from = clamp(back.first_key(u.position(t.rows.first + first)) - keys.first, 0, many) / m.keys * m.keys;
      const int until = clamp(back.last_key(u.position(t.rows.first + last)) - keys.first, 0, many);
      t.reads[panel] = {from, std::min(many, int(round_up(until, m.keys)))};
    }
  }
  void add_dq(const QueryTile& t) {
    for (int panel = 0; panel < t.panels.count(); ++panel) {
      const CpuKernels& m = t.panels[panel];
      const int first = t.panels.first(panel), from = t.reads[panel].first, n = t.reads[panel].last - from;
      if (n > 0)
        m.accumulate(ds_of(t, first, int64_t(from) * m.rows), x_.k_v, plan_.tile_k, from, n, dim_qk_,
                     t.dq + int64_t(first) * dim_qk_);
    }
  }

  // The queries of a tile that see a panel of keys; on a diagonal, the others would be half of the work.
  Rows seen_by(const Unit& u, const QueryTile& t, int first_key, int last_key) const {
    if (first_key >= last_key) return {0, 0};
    if (general_ || formula_) return {0, t.n};
    const QueryWalk walk{u.seq.band, u.seq.len_q, 1};
    const int from = std::max(walk.first_query(first_key) * u.group, t.open.first) - t.rows.first;
    const int until = std::min(walk.last_query(last_key - 1) * u.group, t.open.last) - t.rows.first;
    const Rows seen{clamp(from, 0, t.n) / m_.keys * m_.keys, int(round_up(clamp(until, 0, t.n), m_.keys))};
    return seen.first < seen.last ? seen : Rows{0, 0};
  }
  // Extends a range to whole panels of queries.
  Rows filled(const QueryTile& t, Rows seen) const {
    if (seen.first >= seen.last) return seen;
    return {t.panels.step_before(seen.first), std::min(t.n, t.panels.step_behind(seen.last))};
  }

  // Processes a panel of keys against the query tiles. s, dp, p and ds hold only the queries that see it, contiguously.
  void key_panel(const Unit& u, Rows keys, const Panels& panels, int panel) {
    const CpuKernels& m = panels[panel];
    const int before = panels.first(panel), first_key = keys.first + before,
              last_key = std::min(first_key + m.rows, keys.last);
    Rows seen[kMaxTiles];
    KeyRun d_out[kMaxTiles], q[kMaxTiles];
    int many = 0;
    int64_t to = 0, begin = 0;  // of P and dS
    for (int g = 0; g < count_; ++g) {
      const QueryTile& t = tiles_[g];
      Rows of = panel < t.seen ? seen_by(u, t, first_key, last_key) : Rows{0, 0};
      const BoxIs box = of.first < of.last ? box_of(u, t.rows, {first_key, last_key}) : BoxIs::hidden;
      if (box == BoxIs::hidden) of = {0, 0};
      seen[g] = filled(t, of);
      if (of.first >= of.last) continue;
      // P of several tiles is one operand. With a single tile, it may begin and end anywhere, with dS zero around it.
      if (count_ > 1) of = seen[g];
      const auto clear = [&](int64_t from, int64_t until) {
        std::memset(at(x_.ds, m, from), 0, size_t(until - from) * size_t(m.operand_bytes));
      };
      clear(to, to + int64_t(of.first - seen[g].first) * m.rows);
      to += int64_t(of.first - seen[g].first) * m.rows;
      const int n = of.last - of.first;
      float top[kMaxRows];
      m.scores(at(x_.k_q, m, int64_t(before) * dim_qk_), at(t.packed.q_k, m, int64_t(of.first) * dim_qk_), n, dim_qk_,
               x_.s + to, top);
      m.scores(at(x_.v_q, m, int64_t(before) * dim_v_), at(t.packed.do_k, m, int64_t(of.first) * dim_v_), n, dim_v_,
               x_.dp + to, top);
      gradients(u, t, m, of, first_key, last_key, to, box);
      d_out[many] = {t.packed.do_v, of.first, n}, q[many] = {t.packed.q_v, of.first, n};
      if (!many++) begin = to;
      to += int64_t(n) * m.rows;
      clear(to, to + int64_t(seen[g].last - of.last) * m.rows);
    }
    const int capacity = count_ ? tiles_[0].packed.capacity : 0;
    float *const dv = x_.dv + int64_t(before) * dim_v_, *const dk = x_.dk + int64_t(before) * dim_qk_;
    if (a_.given(Role::dv)) accumulate(m, at(x_.p, m, begin), d_out, many, capacity, dim_v_, dv);
    if (a_.given(Role::dk)) accumulate(m, at(x_.ds, m, begin), q, many, capacity, dim_qk_, dk);
    if (!a_.given(Role::dq)) return;
    to = 0;
    for (int g = 0; g < count_; to += int64_t(seen[g].last - seen[g].first) * m.rows, ++g)
      if (panel < tiles_[g].seen) exchange(tiles_[g], m, seen[g], before, at(x_.ds, m, to));
  }

  // P and dS of a panel of keys and the queries `of` of a tile.
  void gradients(const Unit& u, const QueryTile& t, const CpuKernels& m, Rows of, int first_key, int last_key,
                 int64_t to, BoxIs box) {
    const QueryWalk walk{u.seq.band, u.seq.len_q, 1};
    const int before = t.rows.first + of.first, count = std::min(of.last, t.rows.last - t.rows.first) - of.first;
    int from[kMaxRows], until[kMaxRows];
    bool partial = last_key - first_key < m.rows ||
                   std::max(walk.first_query(last_key - 1) * u.group, t.open.first) > before ||
                   std::min(walk.last_query(first_key) * u.group, t.open.last) < before + count;
    partial |= leaves_out_;
    const bool mixed = formula_ && box == BoxIs::mixed;
    if (partial || general_ || mixed) {
      const int rows = last_key - first_key;
      auto begin = [&](int r) { return std::max(walk.first_query(first_key + r) * u.group, t.open.first) - before; };
      const auto end = [&](int r) { return std::min(walk.last_query(first_key + r) * u.group, t.open.last) - before; };
      const bool by_one = u.group == 1 && u.seq.band.k_step == 1;
      by_one ? fill_steps(rows, begin, from) : fill_each(rows, begin, from);
      by_one ? fill_steps(rows, end, until) : fill_each(rows, end, until);
      std::fill(from + rows, from + m.rows, t.n), std::fill(until + rows, until + m.rows, 0);
      for (int r = 0; leaves_out_ && r < rows; ++r)
        if (x_.left_out[first_key - keys_.first + r]) from[r] = t.n, until[r] = 0;
    }
    if (mixed) return formula_gradients(u, t, m, first_key, last_key, from, until, to);
    if (general_) return general_gradients(u, t, m, first_key, last_key, from, until, to);
    float top[kMaxRows];
    if (partial) {
      // On a diagonal, only the first queries precede a key of the panel.
      const int most = *std::max_element(from, from + m.rows), least = *std::min_element(until, until + m.rows);
      const int n = of.last - of.first;
      m.hide(x_.s + to, least < count ? n : std::min(n, int(round_up(most, m.keys))), from, until, top);
    }
    const float sum = cpu::gradients(m, t.large_logits, x_.s + to, x_.dp + to, of.last - of.first, scale_ * kLog2e,
                                     x_.lse + t.at + of.first, x_.delta + t.at + of.first, at(x_.p, m, to),
                                     at(x_.ds, m, to), numbers_ ? number_of(t) : 0.f, numbers_);
    if (numbers_) add_to_number(t, sum);
  }

  // Writes dS of a panel of keys and the queries `of` into the panels of queries; 0 for others that read these keys.
  void exchange(const QueryTile& t, const CpuKernels& m, Rows of, int key, const std::byte* ds) {
    for (int panel = 0; panel < t.panels.count(); ++panel) {
      const int first = t.panels.first(panel), rows = t.panels[panel].rows;
      const bool taken = key < t.reads[panel].last && key + m.rows > t.reads[panel].first;
      if (taken && (first < of.first || first >= of.last))
        std::memset(ds_of(t, first, int64_t(key) * rows), 0, size_t(rows) * size_t(m.rows) * size_t(m.operand_bytes));
    }
    for (int panel = 0, next; panel < t.panels.count(); panel = next) {  // panels of one size together
      for (next = panel + 1; next < t.panels.count() && &t.panels[next] == &t.panels[panel];) ++next;
      const int first = std::max(of.first, t.panels.first(panel));
      const int last = next < t.panels.count() ? std::min(of.last, t.panels.first(next)) : of.last;
      const int rows = t.panels[panel].rows;
      if (first < last)
        m.transpose(ds + int64_t(first - of.first) * m.rows * m.operand_bytes, last - first, ds_of(t, first, 0), rows,
                    int64_t(plan_.tile_k) * rows, key);
    }
  }

  // The general policy, on plain rows: one per key, whose elements are the queries of the tile.
  void general_gradients(const Unit& u, const QueryTile& t, const CpuKernels& m, int first_key, int last_key,
                         const int* from, const int* until, int64_t panel) {
    const float *lse = x_.lse + t.at, *delta = x_.delta + t.at;
    m.read_scores(x_.s + panel, t.n, x_.plain, plan_.tile_q);
    m.read_scores(x_.dp + panel, t.n, x_.plain_dp, plan_.tile_q);
    if (p_.has(Option::block_bias)) x_.scores[&u - x_.units].entry = t.entry;
    const bool of_block = p_.has(Option::block_bias), of_pair = !of_block && a_.given(Role::d_bias);
    float block = 0.f;
    for (int r = 0; r < m.rows; ++r) {
      float *p = x_.plain + int64_t(r) * plan_.tile_q, *ds = x_.plain_dp + int64_t(r) * plan_.tile_q;
      const int j = first_key + r, count = t.rows.last - t.rows.first;
      for (int q = 0; q < t.n; ++q) {
        if (j >= last_key || q < from[r] || q >= std::min(until[r], count) || lse[q] == INFINITY) {
          p[q] = ds[q] = 0.f;
          continue;
        }
        const int row = t.rows.first + q, i = u.position(row);
        const General& score = u.score(row);
        const float x = exponent_of_weight(logit_of(score, p[q], i, j), lse[q]), weight = std::exp2(x);
        const float keep = score.keep(i, j), d_logit = weight * (keep * ds[q] - delta[q]);
        if (of_pair) *bias_gradient(u, i, row, j) += d_logit;
        block += d_logit;
        ds[q] = d_logit * score.slope_of_logit(p[q]);
        p[q] = weight * keep;
      }
    }
    m.write_weights(x_.plain, plan_.tile_q, t.n, at(x_.p, m, panel));
    m.write_weights(x_.plain_dp, plan_.tile_q, t.n, at(x_.ds, m, panel));
    if (of_block) add_to_number(t, block);
  }
  // The same under a formula that hides some of the pairs, or scores them; up to 64 queries at once.
  void formula_gradients(const Unit& u, const QueryTile& t, const CpuKernels& m, int first_key, int last_key,
                         const int* from, const int* until, int64_t panel) {
    m.read_scores(x_.s + panel, t.n, x_.plain, plan_.tile_q);
    m.read_scores(x_.dp + panel, t.n, x_.plain_dp, plan_.tile_q);
    if (p_.has(Option::block_bias)) x_.scores[&u - x_.units].entry = t.entry;
    const bool of_block = p_.has(Option::block_bias), of_pair = !of_block && a_.given(Role::d_bias);
    const int count = t.rows.last - t.rows.first;
    float block = 0.f;
    const auto logit = [&](float dot, int row, int j) {
      if (general_) return u.score(row).logit(dot, u.position(row), j);
      return m.scale_in_q ? dot : dot * scale_ * kLog2e;
    };
    for (int first = 0; first < t.n; first += FormulaLanes::kLanes) {
      FormulaPairs pairs(lanes_, u, t.rows.first + first, std::min(FormulaLanes::kLanes, count - first));
      for (int r = 0; r < m.rows; ++r) {
        const int64_t begin = int64_t(r) * plan_.tile_q + first;
        float *p = x_.plain + begin, *ds = x_.plain_dp + begin;
        const int j = first_key + r, n = std::min(FormulaLanes::kLanes, t.n - first);
        const Rows seen = {from[r] - first, std::min(until[r], count) - first};
        if (j >= last_key || pairs.count <= 0 || seen.first >= pairs.count || seen.last <= 0) {
          std::fill_n(p, n, 0.f), std::fill_n(ds, n, 0.f);
          continue;
        }
        pairs.meet(j, [&](int l) { return logit(p[l], t.rows.first + first + l, j); });
        const float *lse = x_.lse + t.at + first, *delta = x_.delta + t.at + first;
        for (int l = 0; l < n; ++l) {
          const bool open = l >= seen.first && l < std::min(seen.last, pairs.count) && pairs.visible(l);
          const float weight = open && lse[l] != INFINITY ? std::exp2(exponent_of_weight(pairs.score[l], lse[l])) : 0.f;
          const int row = t.rows.first + first + l;
          pairs.keep[l] = weight != 0.f ? u.score(row).keep(u.position(row), j) : 0.f;
          pairs.weight[l] = weight;
          pairs.d_score[l] = weight != 0.f ? weight * (pairs.keep[l] * ds[l] - delta[l]) : 0.f;
        }
        pairs.differentiate();
        for (int l = 0; l < n; ++l) {
          const int row = t.rows.first + first + l;
          const float d_logit = float(pairs.d_s[l]);
          if (of_pair && pairs.weight[l] != 0.f) *bias_gradient(u, u.position(row), row, j) += d_logit;
          block += d_logit;
          ds[l] = d_logit == 0.f ? 0.f : general_ ? d_logit * u.score(row).slope_of_logit(p[l]) : d_logit;
          p[l] = pairs.weight[l] * pairs.keep[l];
        }
      }
    }
    m.write_weights(x_.plain, plan_.tile_q, t.n, at(x_.p, m, panel));
    m.write_weights(x_.plain_dp, plan_.tile_q, t.n, at(x_.ds, m, panel));
    if (of_block) add_to_number(t, block);
  }
  // Bias of a block, in base 2.
  float number_of(const QueryTile& t) const { return std::clamp(numbers_[t.entry] * kLog2e, -FLT_MAX, FLT_MAX); }
  void add_to_number(const QueryTile& t, float sum) const {  // lists of several heads may share entries
    if (a_.given(Role::d_bias))
      std::atomic_ref<float>(a_.row<float>(Role::d_bias)[t.entry]).fetch_add(sum, std::memory_order_relaxed);
  }
  float* bias_gradient(const Unit& u, int i, int row, int j) const {
    const Tensor& t = a_[Role::d_bias];
    return reinterpret_cast<float*>(row_address(t, u.b, i, u.head(row))) + (t.extent.dim == 1 ? 0 : j);
  }

  void store_keys(Role role, Rows keys, const Panels& panels, const float* acc, int dim, int pitch, float factor) {
    if (!a_.given(role)) return;
    for (int panel = 0; panel < panels.count(); ++panel) {
      const CpuKernels& m = panels[panel];
      const int first = keys.first + panels.first(panel), count = std::min(m.rows, keys.last - first);
      if (count <= 0) break;
      const float* from = acc + int64_t(first - keys.first) * pitch;
      char* to[kMaxRows];
      for (int r = 0; r < count; ++r) to[r] = key_address(x_.units[0], role, first + r);
      if (!shares_keys(p_, a_) || accumulates(p_)) {
        write_panel(m, p_, from, dim, factor, count, x_.row, to);
        continue;
      }
      float factors[kMaxRows], before[256];
      std::fill_n(factors, count, factor);
      m.unpack(from, dim, factors, count, x_.row, dim);
      for (int r = 0; r < count; ++r) {
        read_row(m_, p_.dtype.grad, to[r], dim, before);
        add_row(before, dim, x_.row + r * dim);
        write_row(m_, p_.dtype.grad, x_.row + r * dim, dim, to[r]);
      }
    }
  }

  const Plan& plan_;
  const Problem& p_;
  const Args& a_;
  const CpuKernels& m_;
  const Scratch& x_;
  const RowState& rows_;
  const PackedQueries& queries_;
  const FormulaCall& formula_;
  FormulaLanes lanes_;
  const int dim_qk_, dim_v_;
  const float* const numbers_;  // block biases, if they are the only change to a logit
  const bool general_, f32_;    // f32: gradients are f32
  const float scale_;
  QueryTile tiles_[kMaxTiles];
  int count_ = 0;
  bool fetched_ = false;  // gradients of the key tile are prefetched
  Rows keys_{};           // the key tile
  bool searched_ = false, some_left_out_ = false;  // x_.left_out is filled; it has a key
  bool leaves_out_ = false;                        // the key tile is packed without them
};

}  // namespace attune::cpu
