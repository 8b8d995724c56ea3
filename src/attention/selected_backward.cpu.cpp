// cpu_selected_backward: gradients of attention over lists of key blocks, by key block: the rows of all tokens that
// chose a block are its query tiles, so dK and dV of a block are one sum, in one order. Five products as in
// cpu_backward; dQ of a row is added up over its blocks, in rising order, and in place where the heads of a group fill
// whole panels. Where groups are fewer than threads, each is split by key blocks and the partial dQ are added up, in
// order.
#include <cmath>
#include <numeric>

#include "attention/selected.cpu.h"

namespace attune {
namespace {

using namespace cpu;

alignas(64) constexpr char kZeroRow[256 * sizeof(float)] = {};  // of any dtype

constexpr int kBunch = 8;  // panels of keys at a time: a block of 64 keys on NEON

// Rows are [batch][head of keys][query][head of the group].
struct RowState { float *lse, *delta; };  // base 2, lse +inf where a row sees nothing

struct Queries { std::byte *q_k, *q_v, *do_k, *do_v; };  // operands for S, dK, dP, dV

struct Scratch {
  std::byte *k_q, *v_q, *k_v;          // a key tile: as panels for S and dP, and as a tile for dQ
  Queries tile;
  float *dk, *dv, *dq, *s, *dp;        // dq: of one panel
  std::byte *p, *ds, *ds_t;            // ds_t: panels of queries, each with all keys of the tile
  float *lse, *delta, *row;
  const void **rows, **more;
  int* mine;  // of the query tile: token * heads + head, in the group
  Choosers choosers;
};

// A token's rows are whole panels, and whole steps of a tile.
bool own_rows(const Problem& p, const CpuKernels& m) { return own_panels(p, m) && group(p) % m.keys == 0; }

// Panels hold keys here, and queries where dQ is accumulated.
const CpuKernels& kernels_for(const Problem& p, const Nsa& nsa, const Device& d) {
  const CpuKernels& m = selected_kernels(p, d);
  return own_rows(p, m) ? m : fitting(kernels_of(p, d), nsa.s);
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
  x.s = ws.take<float>(tq * rows * kBunch), x.dp = ws.take<float>(tq * rows * kBunch);
  x.p = operand(tq * rows * kBunch), x.ds = operand(tq * rows * kBunch), x.ds_t = operand(tq * tk);
  x.lse = ws.take<float>(tq), x.delta = ws.take<float>(tq), x.row = ws.take<float>(rows * std::max(dim_qk, dim_v));
  x.rows = ws.take<const void*>(std::max(tk, tq)), x.more = ws.take<const void*>(tq), x.mine = ws.take<int>(tq);
  x.choosers = Choosers::carve(ws, p.len_q, blocks_of(p, nsa), nsa.n);
  return x;
}

// Sums of dQ in f32, [split][row], as panels where a token has its own; the splits of a set are not more than needed to
// keep the threads busy.
int width_of_dq(const Problem& p, const CpuKernels& m) { return own_rows(p, m) ? padded(m, p.dim_qk) : p.dim_qk; }
float* carve_dq(Workspace& ws, const Plan& plan, const CpuKernels& m) {
  const Problem& p = plan.problem;
  return ws.take<float>(size_t(plan.splits) * size_t(p.batch) * size_t(p.heads_kv) * size_t(rows_of_set(p)) *
                        size_t(width_of_dq(p, m)));
}

RowState carve_rows(Workspace& ws, const Problem& p) {
  const size_t rows = size_t(p.batch) * size_t(p.heads_q) * size_t(p.len_q);
  return {ws.take<float>(rows), ws.take<float>(rows)};
}

// lse and delta of the rows of token i.
void prepare(const Problem& p, const Args& a, const RowsAs& io, const RowState& to, const Unit& u, int i) {
  const int64_t at = u.seq.q_first + i;
  float out[256], d_out[256];
  for (int r = i * u.group; r < (i + 1) * u.group; ++r) {
    const int h = u.head(r);
    const int64_t row = (int64_t(u.b) * p.heads_kv + u.head_kv) * rows_of_set(p) + r;
    io.read(u.address(Role::out, r), p.dim_v, out);
    io.read(u.address(Role::d_out, r), p.dim_v, d_out);
    const float lse = *a.row<const float>(Role::lse, u.seq.q_batch, at, h);
    const float d_lse = a.given(Role::d_lse) ? *a.row<const float>(Role::d_lse, u.seq.q_batch, at, h) : 0.f;
    to.delta[row] = lse == -INFINITY ? 0.f : dot_rows(out, d_out, p.dim_v) - d_lse;
    to.lse[row] = lse == -INFINITY ? INFINITY : lse * kLog2e;
  }
}

// One group of one sequence, for key blocks [first, last).
class Task {
 public:
  Task(const Plan& plan, const Args& a, const CpuKernels& m, const Nsa& nsa, const Scratch& x, const RowState& rows,
       const Unit& unit, float* dq)
      : plan_(plan), p_(plan.problem), a_(a), m_(m), nsa_(nsa), x_(x), rows_(rows), u_(unit), sum_(dq),
        grad_(p_.dtype.grad, plan.device), own_(own_rows(p_, m)), dim_qk_(padded(m, p_.dim_qk)),
        dim_v_(padded(m, p_.dim_v)), scale_(scale_of(p_, a)) {}

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
  int panels(Rows keys) const { return int(ceil_div(round_up(keys.last - keys.first, m_.keys), m_.rows)); }

  void key_tile(int block, Rows keys) {
    const int count = keys.last - keys.first;
    for (const Role role : {Role::k, Role::v}) {
      const int dim = role == Role::k ? p_.dim_qk : p_.dim_v, wide = role == Role::k ? dim_qk_ : dim_v_;
      const float scale = role == Role::k && m_.scale_in_q ? scale_ * kLog2e : 1.f;
      gather_keys(u_, role, keys.first, count, x_.rows);
      for (int n = 0; n < panels(keys); ++n) {
        const int first = n * m_.rows, rows = clamp(count - first, 0, m_.rows);
        m_.pack_q(x_.rows + first, rows, dim, scale,
                  at(role == Role::k ? x_.k_q : x_.v_q, m_, int64_t(first) * wide));
      }
      if (role == Role::k) m_.pack_v(x_.rows, count, dim, x_.k_v, plan_.tile_k);
    }
    std::fill_n(x_.dk, int64_t(panels(keys)) * m_.rows * dim_qk_, 0.f);
    std::fill_n(x_.dv, int64_t(panels(keys)) * m_.rows * dim_v_, 0.f);
    const int rows = x_.choosers.count(block - first_) * u_.group;
    for (int row = 0; row < rows; row += plan_.tile_q) query_tile(block, keys, row, std::min(plan_.tile_q, rows - row));
    store_keys(Role::dk, keys, x_.dk, p_.dim_qk, dim_qk_, scale_);
    store_keys(Role::dv, keys, x_.dv, p_.dim_v, dim_v_, 1.f);
  }

  // f(q, token, head of the group) for rows row + q of a block's choosers.
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

  // Rows of a block's choosers as a query tile of n rows; those beyond `count` are 0.
  void pack_queries(int block, int row, int count, int n) {
    const int64_t set = (int64_t(u_.b) * p_.heads_kv + u_.head_kv) * rows_of_set(p_);
    each_row(block, row, count, [&](int q, int token, int head) {
      x_.mine[q] = token * u_.group + head;
      x_.rows[q] = address(Role::q, token, head), x_.more[q] = address(Role::d_out, token, head);
      x_.lse[q] = rows_.lse[set + x_.mine[q]], x_.delta[q] = rows_.delta[set + x_.mine[q]];
    });
    for (int q = count; q < n; ++q)
      x_.rows[q] = x_.more[q] = kZeroRow, x_.lse[q] = INFINITY, x_.delta[q] = 0.f;
    m_.pack_k(x_.rows, n, p_.dim_qk, x_.tile.q_k);
    m_.pack_v(x_.rows, n, p_.dim_qk, x_.tile.q_v, plan_.tile_q);
    m_.pack_k(x_.more, n, p_.dim_v, x_.tile.do_k);
    m_.pack_v(x_.more, n, p_.dim_v, x_.tile.do_v, plan_.tile_q);
  }

  // Product by product over a bunch of key panels, not panel by panel: the query operand of a product stays in L1.
  void query_tile(int block, Rows keys, int row, int count) {
    const int n = int(round_up(round_up(count, m_.rows), m_.keys)), all = panels(keys);
    pack_queries(block, row, count, n);
    for (int first = 0; first < all; first += kBunch) {
      const Rows bunch{first, std::min(first + kBunch, all)};
      float top[kSelectedMaxRows];
      for (int panel = bunch.first; panel < bunch.last; ++panel)
        m_.scores(at(x_.k_q, m_, int64_t(panel) * m_.rows * dim_qk_), x_.tile.q_k, n, dim_qk_, s_of(x_.s, bunch, panel),
                  top);
      for (int panel = bunch.first; panel < bunch.last; ++panel)
        m_.scores(at(x_.v_q, m_, int64_t(panel) * m_.rows * dim_v_), x_.tile.do_k, n, dim_v_, s_of(x_.dp, bunch, panel),
                  top);
      for (int panel = bunch.first; panel < bunch.last; ++panel) {
        hide(keys, panel, count, n);
        m_.gradients(s_of(x_.s, bunch, panel), s_of(x_.dp, bunch, panel), n, m_.scale_in_q ? 1.f : scale_ * kLog2e,
                     x_.lse, x_.delta, p_of(x_.p, bunch, panel), p_of(x_.ds, bunch, panel));
      }
      for (int panel = bunch.first; a_.given(Role::dv) && panel < bunch.last; ++panel)
        m_.accumulate(p_of(x_.p, bunch, panel), x_.tile.do_v, plan_.tile_q, 0, n, dim_v_,
                      x_.dv + int64_t(panel) * m_.rows * dim_v_);
      for (int panel = bunch.first; a_.given(Role::dk) && panel < bunch.last; ++panel)
        m_.accumulate(p_of(x_.ds, bunch, panel), x_.tile.q_v, plan_.tile_q, 0, n, dim_qk_,
                      x_.dk + int64_t(panel) * m_.rows * dim_qk_);
      for (int panel = bunch.first; a_.given(Role::dq) && panel < bunch.last; ++panel)
        m_.transpose(p_of(x_.ds, bunch, panel), n, x_.ds_t, m_.rows, int64_t(plan_.tile_k) * m_.rows, panel * m_.rows);
    }
    if (a_.given(Role::dq)) add_dq(keys, count);
  }
  // Panels of a bunch, each with room for a tile of queries.
  float* s_of(float* s, Rows bunch, int panel) const {
    return s + int64_t(panel - bunch.first) * m_.rows * plan_.tile_q;
  }
  std::byte* p_of(std::byte* p, Rows bunch, int panel) const {
    return at(p, m_, int64_t(panel - bunch.first) * m_.rows * plan_.tile_q);
  }

  // Queries that stand before a key, in x_.s.
  void hide(Rows keys, int panel, int count, int n) {
    const int first_key = keys.first + panel * m_.rows, last_key = std::min(first_key + m_.rows, keys.last);
    int from[kSelectedMaxRows], until[kSelectedMaxRows];
    bool partial = last_key - first_key < m_.rows;
    for (int r = 0; r < m_.rows; ++r) {
      const bool real = first_key + r < last_key;
      from[r] = real ? 0 : n, until[r] = real ? count : 0;
      // Tokens rise, so those that stand before the key come first.
      while (real && from[r] < count && u_.seq.band.q_position(x_.mine[from[r]] / u_.group) < first_key + r) ++from[r];
      partial |= from[r] > 0;
    }
    float top[kSelectedMaxRows];
    if (partial) m_.hide(s_of(x_.s, {panel / kBunch * kBunch, 0}, panel), n, from, until, top);
  }

  void add_dq(Rows keys, int count) {
    const int many = int(round_up(keys.last - keys.first, m_.keys));
    float factor[kSelectedMaxRows];
    std::fill_n(factor, m_.rows, scale_);
    for (int first = 0; first < count; first += m_.rows) {
      const int rows = std::min(m_.rows, count - first);
      const std::byte* ds = at(x_.ds_t, m_, int64_t(first) * plan_.tile_k);
      if (own_) {
        m_.accumulate(ds, x_.k_v, plan_.tile_k, 0, many, dim_qk_,
                      sum_ + int64_t(x_.mine[first]) * dim_qk_);
        continue;
      }
      std::fill_n(x_.dq, m_.rows * dim_qk_, 0.f);
      m_.accumulate(ds, x_.k_v, plan_.tile_k, 0, many, dim_qk_, x_.dq);
      m_.unpack(x_.dq, p_.dim_qk, factor, rows, x_.row, p_.dim_qk);
      for (int r = 0; r < rows; ++r)
        add_row(x_.row + int64_t(r) * p_.dim_qk, p_.dim_qk, sum_ + int64_t(x_.mine[first + r]) * p_.dim_qk);
    }
  }

  void store_keys(Role role, Rows keys, const float* acc, int dim, int wide, float factor_of_all) {
    if (!a_.given(role)) return;
    float factor[kSelectedMaxRows], before[256];
    std::fill_n(factor, m_.rows, factor_of_all);
    for (int first = keys.first; first < keys.last; first += m_.rows) {
      const int count = std::min(m_.rows, keys.last - first);
      m_.unpack(acc + int64_t(first - keys.first) * wide, dim, factor, count, x_.row, dim);
      for (int r = 0; r < count; ++r) {
        char* to = key_address(u_, role, first + r);
        float* from = x_.row + int64_t(r) * dim;
        if (a_.given(Role::cache_index)) {  // of several sequences
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
  const RowState& rows_;
  const Unit& u_;
  float* sum_;
  const RowsAs grad_;
  const bool own_;
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
  const CpuKernels& m = kernels_for(p, nsa, plan.device);
  const int step = std::lcm(m.rows, m.keys), narrow = m.operand_bytes == 2 ? 2 : 1;
  plan.tile_k = int(round_up(std::min({nsa.s, p.len_k, 240 * narrow}), step));
  plan.tile_q = int(round_up(std::min<int64_t>(rows_of_set(p), 96 * narrow), own_rows(p, m) ? group(p) : step));
  const int64_t sets = int64_t(p.batch) * p.heads_kv;
  if (sets < plan.device.units && p.reproducible != Reproducible::batch)
    plan.splits = int(std::clamp<int64_t>(ceil_div(plan.device.units, sets), 1, blocks_of(p, nsa)));
  Workspace count;
  carve_rows(count, p), carve_dq(count, plan, m);
  for (int n = 0; n < plan.device.units; ++n) carve(count, plan, m, nsa);
  plan.workspace_bytes = count.used;
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream) {
  const Problem& p = plan.problem;
  const Nsa nsa = nsa_of(p);
  const CpuKernels& m = kernels_for(p, nsa, plan.device);
  const RowState rows = carve_rows(ws, p);
  float* const sums = carve_dq(ws, plan, m);
  const bool own = own_rows(p, m);
  const int units = plan.device.units, heads = group(p);
  const RowsAs out(p.dtype.out, plan.device), grad(p.dtype.grad, plan.device);
  const auto scratch_of = by_worker(ws, [&](Workspace& own) { return carve(own, plan, m, nsa); });
  const auto unit_of = [&](int64_t b, int64_t g) {
    return Unit{&p, &a, int(b), int(g), int(g) * heads, heads, sequence(p, a, int(b)), nullptr};
  };
  const int64_t of_split = int64_t(p.batch) * p.heads_kv;
  each_task(of_split * p.len_q, units, [&](int, int64_t n) {
    const Unit unit = unit_of(n / p.len_q / p.heads_kv, n / p.len_q % p.heads_kv);
    if (n % p.len_q < unit.seq.len_q) prepare(p, a, out, rows, unit, int(n % p.len_q));
  });
  for (const Role r : {Role::dk, Role::dv})
    if (a.given(r)) clear(a[r], units);

  // Where sequences share rows of a cache, one task has all of them.
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
    const int step = own ? m.rows : 1;  // rows that are stored together
    float factor[kSelectedMaxRows];
    std::fill_n(factor, m.rows, scale);
    for (int row = 0; row < unit.rows(); row += step) {
      float* sum = sum_of(0, unit.b, unit.head_kv) + row * width;
      for (int split = 1; split < plan.splits; ++split)
        add_scaled(sum_of(split, unit.b, unit.head_kv) + row * width, 1.f, step * width, sum);
      if (own) m.unpack(sum, p.dim_qk, factor, m.rows, x.row, p.dim_qk), sum = x.row;
      for (int r = 0; r < step; ++r) grad.write(sum + int64_t(r) * p.dim_qk, p.dim_qk, unit.address(Role::dq, row + r));
    }
  });
  return Status::good();
}

}  // namespace

extern const Backend cpu_selected_backward{.name = "cpu_selected_backward", .supports = supports, .shape = shape,
                                           .run = run};

}  // namespace attune
