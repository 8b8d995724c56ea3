// SPDX-License-Identifier: Apache-2.0
// cpu_selected_backward: gradients of attention over lists of key blocks, by key block. The rows of all tokens that
// chose a block are its query tiles, so dK and dV of a block are one sum, in a fixed order. It has the five products of
// cpu_backward. dQ of a row is summed over its blocks in ascending order, in place if the heads of a group fill whole
// panels. Where groups are fewer than threads, each is split by key blocks, and the partial dQ are added in order.
#include <cmath>
#include <numeric>

#include "attention/cpu/finite.h"
#include "attention/cpu/gradients.h"
#include "attention/cpu/nsa/selected.h"

namespace attune {
namespace {

using namespace cpu;

// Rows are [batch][KV head][query][head of the group].
struct RowsOfGroups {
  float *lse, *delta;  // base 2, lse +inf if a row sees no key
  bool* infinite;      // q or d_out, or what follows from them, is not finite
};

struct Queries { std::byte *q_k, *q_v, *do_k, *do_v; };  // operands for S, dK, dP, dV

struct Scratch {
  std::byte *k_q, *v_q, *k_v;    // a key tile: as panels for S and dP, and as a tile for dQ
  Queries tile;
  float *dk, *dv, *dq, *s, *dp;  // dq: of one panel
  std::byte *p, *ds, *ds_t;      // ds_t: panels of queries, each with all keys of the tile
  float *lse, *delta, *row;
  const void **rows, **more;
  int* mine;  // rows of the query tile: token * heads + head, in the group
  bool* left_out;  // keys of the tile that are not finite
  Choosers choosers;
};

// True if a token's rows are whole panels and, if there is only one panel size, whole steps of a tile.
bool own_rows(const Problem& p, const CpuKernels& m) {
  return own_panels(p, m) && (group(p) % m.keys == 0 || (smaller_panels(m) && group(p) % 4 == 0));
}

int64_t rows_of_set(const Problem& p) { return int64_t(p.len_q) * group(p); }

Queries carve_queries(Workspace& ws, const Problem& p, const CpuKernels& m, int64_t rows) {
  const auto operand = [&](int dim) {
    return ws.take<std::byte>(size_t(rows) * size_t(padded(m, dim)) * size_t(m.operand_bytes));
  };
  return {operand(p.dim_qk), operand(p.dim_qk), operand(p.dim_v), operand(p.dim_v)};
}

Scratch carve(Workspace& ws, const Plan& plan, const CpuKernels& m, const Nsa& nsa) {
  const Problem& p = plan.problem;
  const size_t tk = size_t(plan.tile_k), tq = size_t(plan.tile_q), rows = size_t(m.rows);
  const size_t dim_qk = size_t(padded(m, p.dim_qk)), dim_v = size_t(padded(m, p.dim_v));
  const auto operand = [&](size_t count) { return ws.take<std::byte>(count * size_t(m.operand_bytes)); };
  Scratch x{};
  x.k_q = operand(tk * dim_qk), x.v_q = operand(tk * dim_v), x.k_v = operand(tk * dim_qk);
  x.tile = carve_queries(ws, p, m, plan.tile_q);
  x.dk = ws.take<float>(tk * dim_qk), x.dv = ws.take<float>(tk * dim_v), x.dq = ws.take<float>(rows * dim_qk);
  x.s = ws.take<float>(tq * rows), x.dp = ws.take<float>(tq * rows);
  x.p = operand(tq * rows), x.ds = operand(tq * rows), x.ds_t = operand(tq * tk);
  x.lse = ws.take<float>(tq), x.delta = ws.take<float>(tq), x.row = ws.take<float>(rows * std::max(dim_qk, dim_v));
  x.rows = ws.take<const void*>(std::max(tk, tq)), x.more = ws.take<const void*>(tq), x.mine = ws.take<int>(tq);
  x.left_out = ws.take<bool>(tk);
  x.choosers = Choosers::carve(ws, p.len_q, blocks_of(p, nsa), nsa.n);
  return x;
}

// dQ sums in f32, [split][row], as panels if a token has its own. A set has no more splits than keep the threads busy.
int width_of_dq(const Problem& p, const CpuKernels& m) { return own_rows(p, m) ? padded(m, p.dim_qk) : p.dim_qk; }
float* carve_dq(Workspace& ws, const Plan& plan, const CpuKernels& m) {
  const Problem& p = plan.problem;
  return ws.take<float>(size_t(plan.splits) * size_t(p.batch) * size_t(p.heads_kv) * size_t(rows_of_set(p)) *
                        size_t(width_of_dq(p, m)));
}

RowsOfGroups carve_rows_of_groups(Workspace& ws, const Problem& p) {
  const size_t rows = size_t(p.batch) * size_t(p.heads_q) * size_t(p.len_q);
  return {ws.take<float>(rows), ws.take<float>(rows), ws.take<bool>(rows)};
}

// Computes lse and delta of the rows of token i.
void prepare_token(const Problem& p, const Args& a, const CpuKernels& m, const RowsAs& io, const RowsOfGroups& to,
                   const Unit& u, int i) {
  const int64_t at = u.seq.q_first + i;
  float out[256], d_out[256];
  for (int r = i * u.group; r < (i + 1) * u.group; ++r) {
    const int h = u.head(r);
    const int64_t row = (int64_t(u.b) * p.heads_kv + u.head_kv) * rows_of_set(p) + r;
    io.read(u.address(Role::out, r), p.dim_v, out);
    io.read(u.address(Role::d_out, r), p.dim_v, d_out);
    const float lse = *a.row<const float>(Role::lse, u.seq.q_batch, at, h);
    const float d_lse = a.given(Role::d_lse) ? *a.row<const float>(Role::d_lse, u.seq.q_batch, at, h) : 0.f;
    const float delta = dot_rows(out, d_out, p.dim_v) - d_lse;
    const void* q = u.address(Role::q, r);
    // An element of d_out that is not finite makes delta so: times 0 it is NaN.
    to.infinite[row] = !std::isfinite(delta) || !(lse < INFINITY) || !m.finite(&q, 1, p.dim_qk);
    to.delta[row] = lse == -INFINITY ? 0.f : delta;
    to.lse[row] = lse_of_weights(lse);
  }
}

// One group of one sequence, for key blocks [first, last).
class Task {
 public:
  Task(const Plan& plan, const Args& a, const CpuKernels& m, const Nsa& nsa, const Scratch& x, const RowsOfGroups& rows,
       const Unit& unit, float* dq)
      : plan_(plan), p_(plan.problem), a_(a), m_(m), nsa_(nsa), x_(x), rows_(rows), u_(unit), sum_(dq),
        grad_(p_.dtype.grad, plan.device), own_(own_rows(p_, m)), token_(token_panels(m, unit.group)),
        dim_qk_(padded(m, p_.dim_qk)), dim_v_(padded(m, p_.dim_v)), scale_(scale_of(p_, a)) {}

  void run(Rows blocks) {
    std::fill_n(sum_, int64_t(u_.rows()) * width_of_dq(p_, m_), 0.f);
    first_ = blocks.first;
    x_.choosers.fill(a_, nsa_, u_.seq, u_.head_kv, {0, u_.seq.len_q}, blocks);
    for (int m = blocks.first; m < blocks.last; ++m) {
      if (!x_.choosers.count(m - first_)) continue;
      const int end = clamp(int64_t(m + 1) * nsa_.s, 0, u_.seq.len_k);
      for (int key = m * nsa_.s; key < end; key += plan_.tile_k)
        key_tile(m, {key, std::min(key + plan_.tile_k, end)});
    }
  }

 private:
  Panels panels(int rows) const { return {m_, int(round_up(rows, m_.keys))}; }

  void key_tile(int block, Rows keys) {
    const int count = keys.last - keys.first;
    const Panels of_keys = panels(count);
    searched_ = false;
    pack_keys(keys, of_keys, false);
    std::fill_n(x_.dk, int64_t(of_keys.rows()) * dim_qk_, 0.f);
    std::fill_n(x_.dv, int64_t(of_keys.rows()) * dim_v_, 0.f);
    const int rows = x_.choosers.count(block - first_) * u_.group;
    for (int row = 0; row < rows; row += plan_.tile_q)
      query_tile(block, keys, of_keys, row, std::min(plan_.tile_q, rows - row));
    store_keys(Role::dk, keys, of_keys, x_.dk, p_.dim_qk, dim_qk_, scale_);
    store_keys(Role::dv, keys, of_keys, x_.dv, p_.dim_v, dim_v_, 1.f);
  }

  // Packs the key tile, `leaves_out`: without rows that are not finite.
  void pack_keys(Rows keys, const Panels& of_keys, bool leaves_out) {
    const int count = keys.last - keys.first;
    leaves_out_ = leaves_out;
    for (const Role role : {Role::k, Role::v}) {
      const int dim = role == Role::k ? p_.dim_qk : p_.dim_v, pitch = role == Role::k ? dim_qk_ : dim_v_;
      const float scale = role == Role::k && m_.scale_in_q ? scale_ * kLog2e : 1.f;
      gather_keys(u_, role, keys.first, count, x_.rows);
      for (int j = 0; leaves_out && j < count; ++j)
        if (x_.left_out[j]) x_.rows[j] = kZeroRow;
      for (int n = 0; n < of_keys.count(); ++n) {
        const int first = of_keys.first(n), rows = clamp(count - first, 0, of_keys[n].rows);
        of_keys[n].pack_q(x_.rows + first, rows, dim, scale,
                          at(role == Role::k ? x_.k_q : x_.v_q, m_, int64_t(first) * pitch));
      }
      if (role == Role::k) m_.pack_v(x_.rows, count, dim, x_.k_v, plan_.tile_k);
    }
  }

  // True if a row of the tile precedes one of the keys, and a row of either is not finite (finite.h).
  bool must_leave_out(int block, Rows keys, int row, int count) {
    bool hidden = false, found = false;
    each_row(block, row, count, [&](int, int token, int head) {
      const int64_t at = first_row() + token * u_.group + head;
      hidden |= u_.seq.band.q_position(token) + 1 < keys.last || rows_.lse[at] == INFINITY;
      found |= rows_.infinite[at];
    });
    if (!hidden) return false;
    if (!searched_) some_left_out_ = mark_keys(p_, m_, u_, keys, x_.rows, x_.left_out);
    searched_ = true;
    return found || some_left_out_;
  }
  // Adds the visible pairs of rows that were left out.
  [[gnu::cold, gnu::noinline]] void add_left_out(Rows keys, const Panels& of_keys, int count) {
    PairRows x;
    for (int q = 0; q < count; ++q) {
      const int token = x_.mine[q] / u_.group, h = x_.mine[q] % u_.group;
      const int64_t at = first_row() + x_.mine[q];
      if (rows_.lse[at] == INFINITY) continue;
      const General score(p_, a_, u_.seq, u_.b, u_.head_q + h);
      x.read(p_, m_, address(Role::q, token, h), address(Role::d_out, token, h));
      for (int j = keys.first; j < keys.last && j <= position(q); ++j) {
        if (!rows_.infinite[at] && !x_.left_out[j - keys.first]) continue;
        const PairRows::Weights w = x.pair(u_, score, token, j, rows_.lse[at], rows_.delta[at]);
        add_to_panels(of_keys, j - keys.first, x.scaled(x.d_out, w.p), dim_v_, x_.dv);
        add_to_panels(of_keys, j - keys.first, x.scaled(x.q, w.ds), dim_qk_, x_.dk);
        if (own_) add_to_panels(token_, h, x.scaled(x.k, w.ds), dim_qk_, sum_ + int64_t(x_.mine[q] - h) * dim_qk_);
        else add_scaled(x.k, w.ds * scale_, p_.dim_qk, sum_ + int64_t(x_.mine[q]) * p_.dim_qk);
      }
    }
  }
  int64_t first_row() const { return (int64_t(u_.b) * p_.heads_kv + u_.head_kv) * rows_of_set(p_); }

  // Calls f(q, token, head of the group) for rows row + q of a block's choosers.
  template <class F>
  void each_row(int block, int row, int count, F f) const {
    const int32_t* i = x_.choosers.token + x_.choosers.begin[block - first_] + row / u_.group;
    for (int q = 0, h = row % u_.group; q < count; ++q) {
      f(q, *i, h);
      if (++h == u_.group) h = 0, ++i;
    }
  }
  char* address(Role r, int token, int head) const {
    return row_address(a_[r], u_.seq.q_batch, u_.seq.q_first + token, u_.head_q + head);
  }

  // Packs rows of a block's choosers as a query tile of n rows; those beyond `count` are 0.
  void pack_queries(int block, int row, int count, int n) {
    const int64_t set = first_row();
    each_row(block, row, count, [&](int q, int token, int head) {
      x_.mine[q] = token * u_.group + head;
      x_.rows[q] = address(Role::q, token, head), x_.more[q] = address(Role::d_out, token, head);
      x_.lse[q] = rows_.lse[set + x_.mine[q]], x_.delta[q] = rows_.delta[set + x_.mine[q]];
      if (leaves_out_ && rows_.infinite[set + x_.mine[q]])
        x_.rows[q] = x_.more[q] = kZeroRow, x_.lse[q] = INFINITY, x_.delta[q] = 0.f;
    });
    for (int q = count; q < n; ++q)
      x_.rows[q] = x_.more[q] = kZeroRow, x_.lse[q] = INFINITY, x_.delta[q] = 0.f;
    large_logits_ = std::any_of(x_.lse, x_.lse + count, is_large_logit);
    m_.pack_k(x_.rows, n, p_.dim_qk, x_.tile.q_k);
    m_.pack_v(x_.rows, n, p_.dim_qk, x_.tile.q_v, plan_.tile_q);
    m_.pack_k(x_.more, n, p_.dim_v, x_.tile.do_k);
    m_.pack_v(x_.more, n, p_.dim_v, x_.tile.do_v, plan_.tile_q);
  }

  void query_tile(int block, Rows keys, const Panels& of_keys, int row, int count) {
    const Panels of_queries = panels(count);
    const int n = int(round_up(of_queries.rows(), m_.keys)), all = of_keys.count();
    const bool leaves_out = must_leave_out(block, keys, row, count);
    if (leaves_out != leaves_out_) pack_keys(keys, of_keys, leaves_out);
    pack_queries(block, row, count, n);
    int before = 0;  // queries before the panel's first key
    for (int panel = 0; panel < all; ++panel) {
      const CpuKernels& m = of_keys[panel];
      const int first = of_keys.first(panel), last = std::min(first + m.rows, keys.last - keys.first);
      before = last > first ? first_query(keys.first + first, before, count) : count;
      const int from = before < count ? start_of(of_queries, before) : n, seen = n - from;
      float top[kSelectedMaxRows];
      if (a_.given(Role::dq) && !own_) fetch_dq(count, panel, all);
      if (!own_) fetch_queries(block, row + plan_.tile_q, panel, all);
      if (a_.given(Role::dq)) clear_before(from, keys, of_queries, m, first, count);
      if (!seen) continue;
      m.scores(at(x_.k_q, m, int64_t(first) * dim_qk_), at(x_.tile.q_k, m, int64_t(from) * dim_qk_), seen, dim_qk_,
               x_.s, top);
      m.scores(at(x_.v_q, m, int64_t(first) * dim_v_), at(x_.tile.do_k, m, int64_t(from) * dim_v_), seen, dim_v_,
               x_.dp, top);
      hide({keys.first + first, keys.first + last}, keys.first, m, {from, count}, before, seen);
      gradients(m, large_logits_, x_.s, x_.dp, seen, scale_ * kLog2e, x_.lse + from, x_.delta + from, x_.p, x_.ds);
      if (a_.given(Role::dv))
        m.accumulate(x_.p, x_.tile.do_v, plan_.tile_q, from, seen, dim_v_, x_.dv + int64_t(first) * dim_v_);
      if (a_.given(Role::dk))
        m.accumulate(x_.ds, x_.tile.q_v, plan_.tile_q, from, seen, dim_qk_, x_.dk + int64_t(first) * dim_qk_);
      if (a_.given(Role::dq)) exchange_all(of_queries, m, {from, n}, count, first);
    }
    if (a_.given(Role::dq)) add_dq(keys, of_queries, count);
    if (leaves_out_) add_left_out(keys, of_keys, count);
  }

  // Returns the number of rows of the tile before a key, at least `least`. Tokens ascend, so these rows come first.
  int first_query(int64_t key, int least, int count) const {
    while (least < count && position(least) < key) ++least;
    return least;
  }
  int64_t position(int q) const { return u_.seq.band.q_position(x_.mine[q] / u_.group); }
  // Keys of the tile that row q sees, in whole steps.
  int keys_seen(Rows keys, int q) const {
    return int(round_up(clamp(position(q) + 1 - keys.first, 0, keys.last - keys.first), m_.keys));
  }
  // The nearest row at or before this one where products may begin: at a step of queries and at panels of dQ.
  int start_of(const Panels& of_queries, int row) const {
    const int step = std::lcm(u_.group, m_.keys);
    return own_ ? row / step * step : of_queries.step_before(row);
  }

  // Transposes dS of a panel of keys, starting at its key `key`, for queries `of` of some panels whose first query is
  // q.
  void exchange(const Panels& to, const CpuKernels& m, const std::byte* ds, Rows of, int q, int key) {
    for (int panel = 0, next; panel < to.count(); panel = next) {  // panels of one size together
      for (next = panel + 1; next < to.count() && &to[next] == &to[panel];) ++next;
      const int first = std::max(of.first, to.first(panel)), rows = to[panel].rows;
      const int last = next < to.count() ? std::min(of.last, to.first(next)) : of.last;
      if (first < last)
        m.transpose(ds + int64_t(first - of.first) * m.rows * m.operand_bytes, last - first,
                    at(x_.ds_t, m, int64_t(q + first) * plan_.tile_k), rows, int64_t(plan_.tile_k) * rows, key);
    }
  }
  void exchange_all(const Panels& of_queries, const CpuKernels& m, Rows of, int count, int key) {
    if (!own_) return exchange(of_queries, m, x_.ds, of, 0, key);
    for (int q = of.first; q < count; q += u_.group)
      exchange(token_, m, x_.ds + int64_t(q - of.first) * m.rows * m.operand_bytes, {0, u_.group}, q, key);
  }
  // Clears dS of queries before `from`, which see no key of a panel, if a step of keys for dQ reaches into it.
  void clear_before(int from, Rows keys, const Panels& of_queries, const CpuKernels& m, int key, int count) {
    const auto clear = [&](int q, int rows) {
      std::memset(at(x_.ds_t, m, int64_t(q) * plan_.tile_k + int64_t(key) * rows), 0,
                  size_t(rows) * size_t(m.rows) * size_t(m.operand_bytes));
    };
    from = std::min(from, count);
    for (int q = 0; own_ && q < from; q += u_.group)
      for (int panel = 0; keys_seen(keys, q) > key && panel < token_.count(); ++panel)
        clear(q + token_.first(panel), token_[panel].rows);
    for (int panel = 0; !own_ && panel < of_queries.count() && of_queries.first(panel) < from; ++panel)
      clear(of_queries.first(panel), of_queries[panel].rows);
  }

  // Prefetches rows, which lie wherever their tokens do: the sums of this tile, and the queries of the next. Each call
  // handles part number `part` of `parts`.
  void fetch_dq(int count, int part, int parts) const {
    for (int q = count * part / parts; q < count * (part + 1) / parts; ++q)
      fetch(sum_ + int64_t(x_.mine[q]) * width_of_dq(p_, m_), width_of_dq(p_, m_) * int64_t(sizeof(float)));
  }
  void fetch_queries(int block, int row, int part, int parts) const {
    const int count = std::clamp(x_.choosers.count(block - first_) * u_.group - row, 0, plan_.tile_q);
    const int first = count * part / parts, last = count * (part + 1) / parts;
    each_row(block, row + first, last - first, [&](int, int token, int head) {
      fetch(address(Role::q, token, head), p_.dim_qk * int64_t(size_of(p_.dtype.q)));
      fetch(address(Role::d_out, token, head), p_.dim_v * int64_t(size_of(p_.dtype.out)));
    });
  }

  // Masks queries before a key of a panel in x_.s, which begins with query of.first; `least` queries precede all keys.
  void hide(Rows keys, int of_tile, const CpuKernels& m, Rows of, int least, int n) {
    int from[kSelectedMaxRows], until[kSelectedMaxRows];
    bool partial = keys.last - keys.first < m.rows;
    for (int r = 0; r < m.rows; ++r) {
      const bool real = keys.first + r < keys.last;
      if (real) least = first_query(keys.first + r, least, of.last);
      const bool there = real && !(leaves_out_ && x_.left_out[keys.first - of_tile + r]);
      from[r] = there ? least - of.first : n, until[r] = there ? of.last - of.first : 0;
      partial |= from[r] > 0;
    }
    float top[kSelectedMaxRows];
    if (partial) m.hide(x_.s, n, from, until, top);
  }

  void add_dq(Rows keys, const Panels& of_queries, int count) {
    const auto ds = [&](int q) { return at(x_.ds_t, m_, int64_t(q) * plan_.tile_k); };
    for (int first = 0; own_ && first < count; first += u_.group)
      for (int panel = 0, many = keys_seen(keys, first); many && panel < token_.count(); ++panel) {
        const int before = token_.first(panel);
        token_[panel].accumulate(ds(first + before), x_.k_v, plan_.tile_k, 0, many, dim_qk_,
                                 sum_ + int64_t(x_.mine[first] + before) * dim_qk_);
      }
    for (int panel = 0; !own_ && panel < of_queries.count(); ++panel) {
      const CpuKernels& m = of_queries[panel];
      const int first = of_queries.first(panel), rows = std::min(m.rows, count - first);
      if (rows <= 0) break;
      const int many = keys_seen(keys, first + rows - 1);
      if (!many) continue;
      std::fill_n(x_.dq, m.rows * dim_qk_, 0.f);
      m.accumulate(ds(first), x_.k_v, plan_.tile_k, 0, many, dim_qk_, x_.dq);
      float* to[kSelectedMaxRows];
      for (int r = 0; r < rows; ++r) to[r] = sum_ + int64_t(x_.mine[first + r]) * p_.dim_qk;
      add_panel(m, x_.dq, p_.dim_qk, scale_, rows, x_.row, to);
    }
  }

  void store_keys(Role role, Rows keys, const Panels& panels, const float* acc, int dim, int pitch,
                  float factor_of_all) {
    if (!a_.given(role)) return;
    float factor[kSelectedMaxRows], before[256];
    std::fill_n(factor, m_.rows, factor_of_all);
    for (int panel = 0; panel < panels.count(); ++panel) {
      const int first = keys.first + panels.first(panel), count = std::min(panels[panel].rows, keys.last - first);
      if (count <= 0) break;
      panels[panel].unpack(acc + int64_t(first - keys.first) * pitch, dim, factor, count, x_.row, dim);
      for (int r = 0; r < count; ++r) {
        char* to = key_address(u_, role, first + r);
        float* from = x_.row + int64_t(r) * dim;
        if (a_.given(Role::cache_index)) {  // several sequences share rows
          grad_.read(to, dim, before);
          add_scaled(before, 1.f, dim, from);
        }
        grad_.write(from, dim, to);
      }
    }
  }

  const Plan& plan_;
  const Problem& p_;
  const Args& a_;
  const CpuKernels& m_;
  const Nsa& nsa_;
  const Scratch& x_;
  const RowsOfGroups& rows_;
  const Unit& u_;
  float* sum_;
  const RowsAs grad_;
  const bool own_;
  bool searched_ = false, some_left_out_ = false;  // x_.left_out is filled; it has a key
  bool leaves_out_ = false;                        // the key tile is packed without them
  bool large_logits_ = false;  // some row of the query tile has a large log-sum-exp
  const Panels token_;         // panels of a token's rows, if they are its own
  const int dim_qk_, dim_v_;
  const float scale_;
  int first_ = 0;
};

void clear(const Tensor& t, int units) {
  each_task(t.data ? int64_t(t.extent.batch) * t.extent.seq : 0, units, [&](int, int64_t n) {
    const size_t bytes = size_t(t.extent.dim) * size_t(size_of(t.dtype));
    for (int h = 0; h < t.extent.head; ++h)
      std::memset(row_address(t, n / t.extent.seq, n % t.extent.seq, h), 0, bytes);
  });
}

Status supports(const Problem& p, const Device& d) {
  return selected_supports("cpu_selected_backward", Pass::backward, p, d);
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  const Nsa nsa = nsa_of(p);
  const CpuKernels& m = kernels_of(p, plan.device);
  const int step = std::lcm(m.rows, m.keys), narrow = m.operand_bytes == 2 ? 2 : 1;
  plan.tile_k = int(round_up(std::min({nsa.s, p.len_k, 240 * narrow}), step));
  const int together = own_rows(p, m) ? std::lcm(group(p), m.keys) : step;
  // A large tile: each product loads and stores the sums of the keys.
  plan.tile_q = int(round_up(std::min<int64_t>(rows_of_set(p), 256 * narrow), together));
  const int64_t sets = int64_t(p.batch) * p.heads_kv;
  if (sets < plan.device.units && p.reproducible != Reproducible::batch)
    plan.splits = int(std::clamp<int64_t>(ceil_div(plan.device.units, sets), 1, blocks_of(p, nsa)));
  Workspace count;
  carve_rows_of_groups(count, p), carve_dq(count, plan, m);
  return count_workspace(plan, count, [&](Workspace& own) { carve(own, plan, m, nsa); });
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream) {
  const Problem& p = plan.problem;
  const Nsa nsa = nsa_of(p);
  const CpuKernels& m = kernels_of(p, plan.device);
  const RowsOfGroups rows = carve_rows_of_groups(ws, p);
  float* const sums = carve_dq(ws, plan, m);
  const bool own = own_rows(p, m);
  const int units = plan.device.units, heads = group(p);
  const RowsAs out(p.dtype.out, plan.device), grad(p.dtype.grad, plan.device);
  const auto scratch_of = by_worker(ws, [&](Workspace& own) { return carve(own, plan, m, nsa); });
  const auto unit_of = [&](int64_t b, int64_t g) {
    return Unit{&p, &a, int(b), int(g), int(g) * heads, heads, sequence(p, a, int(b)), nullptr};
  };
  const int64_t of_split = int64_t(p.batch) * p.heads_kv;
  const int64_t most = longest(p, a).q;  // lengths in a problem are only bounds
  each_task(of_split * most, units, [&](int, int64_t n) {
    const Unit unit = unit_of(n / most / p.heads_kv, n / most % p.heads_kv);
    if (n % most < unit.seq.len_q) prepare_token(p, a, m, out, rows, unit, int(n % most));
  });
  for (const Role r : {Role::dk, Role::dv})
    if (a.given(r)) clear(a[r], units);

  // If sequences share rows of a cache, one task handles all of them.
  const bool together = a.given(Role::cache_index);
  const int64_t sets = (together ? 1 : int64_t(p.batch)) * p.heads_kv, width = width_of_dq(p, m);
  const auto sum_of = [&](int64_t split, int64_t b, int64_t g) {
    return sums + ((split * of_split + b * p.heads_kv + g) * rows_of_set(p)) * width;
  };
  each_task(sets * plan.splits, units, [&](int worker, int64_t n) {
    const Scratch x = scratch_of(worker);
    const int64_t split = n % plan.splits, set = n / plan.splits, g = set % p.heads_kv;
    for (int64_t b = together ? 0 : set / p.heads_kv; b < (together ? p.batch : set / p.heads_kv + 1); ++b) {
      const Unit unit = unit_of(b, g);
      const int64_t blocks = ceil_div(unit.seq.len_k, nsa.s);
      Task(plan, a, m, nsa, x, rows, unit, sum_of(split, b, g))
          .run({int(blocks * split / plan.splits), int(blocks * (split + 1) / plan.splits)});
    }
  });
  if (!a.given(Role::dq)) return Status::good();
  const float scale = scale_of(p, a);
  each_task(of_split, units, [&](int worker, int64_t n) {
    const Unit unit = unit_of(n / p.heads_kv, n % p.heads_kv);
    const Scratch x = scratch_of(worker);
    const Panels token = token_panels(m, heads);
    float factor[kSelectedMaxRows];
    std::fill_n(factor, m.rows, scale);
    for (int row = 0; row < unit.rows(); row += heads) {  // rows of one token
      float* sum = sum_of(0, unit.b, unit.head_kv) + row * width;
      for (int split = 1; split < plan.splits; ++split)
        add_scaled(sum_of(split, unit.b, unit.head_kv) + row * width, 1.f, heads * width, sum);
      const auto write = [&](int r, const float* from) { grad.write(from, p.dim_qk, unit.address(Role::dq, row + r)); };
      for (int r = 0; !own && r < heads; ++r) write(r, sum + int64_t(r) * p.dim_qk);
      for (int panel = 0; own && panel < token.count(); ++panel) {
        const int first = token.first(panel);
        token[panel].unpack(sum + first * width, p.dim_qk, factor, token[panel].rows, x.row, p.dim_qk);
        for (int r = 0; r < token[panel].rows; ++r) write(first + r, x.row + int64_t(r) * p.dim_qk);
      }
    }
  });
  return Status::good();
}

}  // namespace

extern const Backend cpu_selected_backward{.name = "cpu_selected_backward", .supports = supports, .shape = shape,
                                           .run = run};

}  // namespace attune
