// cpu_selected_backward: gradients of attention over lists of key blocks, by key block: the rows of all tokens that
// chose a block are its query tiles, so dK and dV of a block are one sum, in one order. Five products as in
// cpu_backward; dQ of a row is added up over its blocks, in rising order. Where groups are fewer than threads, each is
// split by key blocks and the partial dQ are added up, in order.
#include <cmath>
#include <numeric>

#include "attention/selected.cpu.h"

namespace attune {
namespace {

using namespace cpu;

alignas(64) constexpr char kZeroRow[256 * sizeof(float)] = {};  // of any dtype

struct RowState { float *lse, *delta; };  // [batch][head][query], base 2 and +inf where a row sees nothing

struct Scratch {
  std::byte *k_q, *v_q, *k_v;          // a key tile: as panels for S and dP, and as a tile for dQ
  std::byte *q_k, *q_v, *do_k, *do_v;  // a query tile: for S, dK, dP, dV
  float *dk, *dv, *dq, *s, *dp;        // dq: of one panel
  std::byte *p, *ds, *ds_t;            // ds_t: panels of queries, each with all keys of the tile
  float *lse, *delta, *row;
  const void** rows;
  Choosers choosers;
};

int64_t blocks_of(const Problem& p, const Nsa& nsa) { return ceil_div(p.len_k, nsa.s); }

Scratch carve(Workspace& ws, const Plan& plan, const CpuKernels& m, const Nsa& nsa) {
  const Problem& p = plan.problem;
  const size_t tk = size_t(plan.tile_k), tq = size_t(plan.tile_q), rows = size_t(m.rows);
  const size_t dim_qk = size_t(padded(m, p.dim_qk)), dim_v = size_t(padded(m, p.dim_v));
  const auto operand = [&](size_t count) { return ws.take<std::byte>(count * size_t(m.operand_bytes)); };
  Scratch x{};
  x.k_q = operand(tk * dim_qk), x.v_q = operand(tk * dim_v), x.k_v = operand(tk * dim_qk);
  x.q_k = operand(tq * dim_qk), x.q_v = operand(tq * dim_qk);
  x.do_k = operand(tq * dim_v), x.do_v = operand(tq * dim_v);
  x.dk = ws.take<float>(tk * dim_qk), x.dv = ws.take<float>(tk * dim_v), x.dq = ws.take<float>(rows * dim_qk);
  x.s = ws.take<float>(tq * rows), x.dp = ws.take<float>(tq * rows);
  x.p = operand(tq * rows), x.ds = operand(tq * rows), x.ds_t = operand(tq * tk);
  x.lse = ws.take<float>(tq), x.delta = ws.take<float>(tq), x.row = ws.take<float>(rows * std::max(dim_qk, dim_v));
  x.rows = ws.take<const void*>(std::max(tk, tq));
  x.choosers = Choosers::carve(ws, p.len_q, blocks_of(p, nsa), nsa.n);
  return x;
}

// Sums of dQ in f32, [split][batch][head of keys][query][head of the group]; the splits of a set are not more than
// needed to keep the threads busy.
int64_t rows_of_set(const Problem& p) { return int64_t(p.len_q) * group(p); }
float* carve_dq(Workspace& ws, const Plan& plan) {
  const Problem& p = plan.problem;
  return ws.take<float>(size_t(plan.splits) * size_t(p.batch) * size_t(p.heads_kv) * size_t(rows_of_set(p)) *
                        size_t(p.dim_qk));
}

RowState carve_rows(Workspace& ws, const Problem& p) {
  const size_t rows = size_t(p.batch) * size_t(p.heads_q) * size_t(p.len_q);
  return {ws.take<float>(rows), ws.take<float>(rows)};
}

void prepare(const Problem& p, const Args& a, const RowsAs& io, const RowState& to, int b, int h) {
  const Sequence seq = sequence(p, a, b);
  const int64_t first = (int64_t(b) * p.heads_q + h) * p.len_q;
  float out[256], d_out[256];
  for (int i = 0; i < seq.len_q; ++i) {
    const int64_t at = seq.q_first + i;
    io.read(row_address(a[Role::out], seq.q_batch, at, h), p.dim_v, out);
    io.read(row_address(a[Role::d_out], seq.q_batch, at, h), p.dim_v, d_out);
    const float lse = *a.row<const float>(Role::lse, seq.q_batch, at, h);
    const float d_lse = a.given(Role::d_lse) ? *a.row<const float>(Role::d_lse, seq.q_batch, at, h) : 0.f;
    to.delta[first + i] = lse == -INFINITY ? 0.f : dot_rows(out, d_out, p.dim_v) - d_lse;
    to.lse[first + i] = lse == -INFINITY ? INFINITY : lse * kLog2e;
  }
}

// One group of one sequence, for key blocks [first, last).
class Task {
 public:
  Task(const Plan& plan, const Args& a, const CpuKernels& m, const Nsa& nsa, const Scratch& x, const RowState& rows,
       const Unit& unit, float* dq)
      : plan_(plan), p_(plan.problem), a_(a), m_(m), nsa_(nsa), x_(x), rows_(rows), u_(unit), sum_(dq),
        grad_(p_.dtype.grad, plan.device), dim_qk_(padded(m, p_.dim_qk)), dim_v_(padded(m, p_.dim_v)),
        scale_(scale_of(p_, a)) {}

  void run(Rows blocks) {
    std::fill_n(sum_, int64_t(u_.rows()) * p_.dim_qk, 0.f);
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
  int token(int block, int row) const { return x_.choosers.token[x_.choosers.begin[block - first_] + row / u_.group]; }
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

  void pack_queries(int block, int row, int count, int n) {
    const auto pack = [&](Role r, int dim, std::byte* as_k, std::byte* as_v) {
      for (int q = 0; q < n; ++q) {
        x_.rows[q] = kZeroRow;
        if (q < count)
          x_.rows[q] = row_address(a_[r], u_.seq.q_batch, u_.seq.q_first + token(block, row + q), u_.head(row + q));
      }
      m_.pack_k(x_.rows, n, dim, as_k);
      m_.pack_v(x_.rows, n, dim, as_v, plan_.tile_q);
    };
    pack(Role::q, p_.dim_qk, x_.q_k, x_.q_v);
    pack(Role::d_out, p_.dim_v, x_.do_k, x_.do_v);
    for (int q = 0; q < n; ++q) {
      x_.lse[q] = INFINITY, x_.delta[q] = 0.f;
      if (q >= count) continue;
      const int64_t at = (int64_t(u_.b) * p_.heads_q + u_.head(row + q)) * p_.len_q + token(block, row + q);
      x_.lse[q] = rows_.lse[at], x_.delta[q] = rows_.delta[at];
    }
  }

  void query_tile(int block, Rows keys, int row, int count) {
    const int n = int(round_up(round_up(count, m_.rows), m_.keys));
    pack_queries(block, row, count, n);
    for (int panel = 0; panel < panels(keys); ++panel) {
      const int first_key = keys.first + panel * m_.rows, last_key = std::min(first_key + m_.rows, keys.last);
      int from[kSelectedMaxRows], until[kSelectedMaxRows];
      bool partial = last_key - first_key < m_.rows;
      for (int r = 0; r < m_.rows; ++r) {
        const bool real = first_key + r < last_key;
        from[r] = real ? 0 : n, until[r] = real ? count : 0;
        // Tokens rise, so those that stand before the key come first.
        while (real && from[r] < count && u_.seq.band.q_position(token(block, row + from[r])) < first_key + r)
          ++from[r];
        partial |= from[r] > 0;
      }
      float top[kSelectedMaxRows];
      m_.scores(at(x_.k_q, m_, int64_t(panel) * m_.rows * dim_qk_), x_.q_k, n, dim_qk_, x_.s, top);
      m_.scores(at(x_.v_q, m_, int64_t(panel) * m_.rows * dim_v_), x_.do_k, n, dim_v_, x_.dp, top);
      if (partial) m_.hide(x_.s, n, from, until, top);
      m_.gradients(x_.s, x_.dp, n, m_.scale_in_q ? 1.f : scale_ * kLog2e, x_.lse, x_.delta, x_.p, x_.ds);
      if (a_.given(Role::dv))
        m_.accumulate(x_.p, x_.do_v, plan_.tile_q, 0, n, dim_v_, x_.dv + int64_t(panel) * m_.rows * dim_v_);
      if (a_.given(Role::dk))
        m_.accumulate(x_.ds, x_.q_v, plan_.tile_q, 0, n, dim_qk_, x_.dk + int64_t(panel) * m_.rows * dim_qk_);
      if (a_.given(Role::dq)) m_.transpose(x_.ds, n, x_.ds_t, int64_t(plan_.tile_k) * m_.rows, panel * m_.rows);
    }
    if (a_.given(Role::dq)) add_dq(block, keys, row, count);
  }

  void add_dq(int block, Rows keys, int row, int count) {
    const int many = int(round_up(keys.last - keys.first, m_.keys));
    float factor[kSelectedMaxRows];
    std::fill_n(factor, m_.rows, scale_);
    for (int first = 0; first < count; first += m_.rows) {
      const int rows = std::min(m_.rows, count - first);
      std::fill_n(x_.dq, m_.rows * dim_qk_, 0.f);
      m_.accumulate(at(x_.ds_t, m_, int64_t(first) * plan_.tile_k), x_.k_v, plan_.tile_k, 0, many, dim_qk_, x_.dq);
      m_.unpack(x_.dq, p_.dim_qk, factor, rows, x_.row, p_.dim_qk);
      for (int r = 0; r < rows; ++r) {
        const int64_t to = int64_t(token(block, row + first + r)) * u_.group + (row + first + r) % u_.group;
        add_row(x_.row + int64_t(r) * p_.dim_qk, p_.dim_qk, sum_ + to * p_.dim_qk);
      }
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
  const CpuKernels& m = *best_kernels(p.dtype.q, plan.device.features);
  const Nsa nsa = nsa_of(p);
  const int step = std::lcm(m.rows, m.keys), narrow = m.operand_bytes == 2 ? 2 : 1;
  plan.tile_k = int(round_up(std::min({nsa.s, p.len_k, 240 * narrow}), step));
  plan.tile_q = int(round_up(std::min<int64_t>(rows_of_set(p), 96 * narrow), step));
  const int64_t sets = int64_t(p.batch) * p.heads_kv;
  if (sets < plan.device.units && p.reproducible != Reproducible::batch)
    plan.splits = int(std::clamp<int64_t>(ceil_div(plan.device.units, sets), 1, blocks_of(p, nsa)));
  Workspace count;
  carve_rows(count, p), carve_dq(count, plan);
  for (int n = 0; n < plan.device.units; ++n) carve(count, plan, m, nsa);
  plan.workspace_bytes = count.used;
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream) {
  const Problem& p = plan.problem;
  const CpuKernels& m = *best_kernels(p.dtype.q, plan.device.features);
  const Nsa nsa = nsa_of(p);
  const RowState rows = carve_rows(ws, p);
  float* const sums = carve_dq(ws, plan);
  const int units = plan.device.units, heads = group(p);
  const RowsAs out(p.dtype.out, plan.device), grad(p.dtype.grad, plan.device);
  each_task(int64_t(p.batch) * p.heads_q, units,
            [&](int, int64_t n) { prepare(p, a, out, rows, int(n / p.heads_q), int(n % p.heads_q)); });
  for (const Role r : {Role::dk, Role::dv})
    if (a.given(r)) clear(a[r], units);

  // Where sequences share rows of a cache, one task has all of them.
  const bool together = a.given(Role::cache_index);
  const int64_t sets = (together ? 1 : int64_t(p.batch)) * p.heads_kv, of_split = int64_t(p.batch) * p.heads_kv;
  const auto sum_of = [&](int64_t split, int64_t b, int64_t g) {
    return sums + ((split * of_split + b * p.heads_kv + g) * rows_of_set(p)) * p.dim_qk;
  };
  each_task(sets * plan.splits, units, [&](int worker, int64_t n) {
    Workspace own = ws;
    for (int before = 0; before < worker; ++before) carve(own, plan, m, nsa);
    const Scratch x = carve(own, plan, m, nsa);
    const int64_t split = n % plan.splits, set = n / plan.splits, g = set % p.heads_kv;
    for (int64_t b = together ? 0 : set / p.heads_kv; b < (together ? p.batch : set / p.heads_kv + 1); ++b) {
      const Unit unit{&p, &a, int(b), int(g), int(g) * heads, heads, sequence(p, a, int(b)), nullptr};
      const int64_t blocks = ceil_div(unit.seq.len_k, nsa.s);
      Task(plan, a, m, nsa, x, rows, unit, sum_of(split, b, g))
          .run({int(blocks * split / plan.splits), int(blocks * (split + 1) / plan.splits)});
    }
  });
  if (!a.given(Role::dq)) return Status::good();
  each_task(of_split, units, [&](int, int64_t n) {
    const int b = int(n / p.heads_kv), g = int(n % p.heads_kv);
    const Sequence seq = sequence(p, a, b);
    for (int64_t row = 0; row < int64_t(seq.len_q) * heads; ++row) {
      float* sum = sum_of(0, b, g) + row * p.dim_qk;
      for (int split = 1; split < plan.splits; ++split)
        add_scaled(sum_of(split, b, g) + row * p.dim_qk, 1.f, p.dim_qk, sum);
      const int64_t i = seq.q_first + row / heads, h = g * heads + row % heads;
      grad.write(sum, p.dim_qk, row_address(a[Role::dq], seq.q_batch, i, h));
    }
  });
  return Status::good();
}

}  // namespace

extern const Backend cpu_selected_backward{.name = "cpu_selected_backward", .supports = supports, .shape = shape,
                                           .run = run};

}  // namespace attune
