// Gradients on the CPU, in linear memory and always in the same order:
//   delta and lse of every row -> for each key tile: for each query tile: S, dP, then P and dS, dV += P^T dO,
//   dK += dS^T Q, and dS exchanged, dQ += dS K
// Five products, in the two forms the machine has: a panel's rows are keys and its "keys" are queries, so P and dS are
// operands of dV and dK as they come; only dS is transposed, once, for dQ. A unit's dQ stays with its worker in f32.
// Where units are fewer than threads, each is split by keys and the partial dQ are added up, in order.
#include <atomic>
#include <cmath>
#include <numeric>

#include "attention/cpu.h"
#include "attention/lists.cpu.h"
#include "attention/queries.cpu.h"

namespace attune {
namespace {

using namespace cpu;

constexpr int kMaxRows = 64;  // of a panel, on any machine

// Pools that several sequences may share: gradients of a key are added up, one sequence after the other.
bool shares_keys(const Problem& p, const Args& a) { return p.keys == KeySource::paged || a.given(Role::cache_index); }

bool accumulates(const Problem& p) { return p.has(Option::accumulate); }

// How many units one head of keys has.
int units_of_keys(const Problem& p) { return by_head(p) ? p.heads_q / p.heads_kv : 1; }

// Panels of keys whose products are taken one after the other. With a list a query tile is small: the operand of one
// product stays in L1 for all panels of a block of 64 keys, all five would not.
constexpr int kMaxBunch = 8;
int bunch_of(const Problem& p) { return by_head(p) ? kMaxBunch : 1; }

// Of every row of the problem: [batch][head][query].
struct RowState {
  float *lse, *delta;  // base 2, +inf where a row sees nothing; sum dO O - dlse
  double* d_sink;      // [batch][head]
};

struct Partial { float* dq; int64_t rows; };  // [split][batch][head][query][dim_qk]; one split needs none

struct Scratch {
  std::byte *k_q, *v_q, *k_v;            // a key tile: as panels for S and dP, and as a tile for dQ
  Queries queries;                       // a query tile
  float *dk, *dv, *dq;                   // accumulators: of the key tile, and of all rows of the head of keys
  float *s, *dp, *plain, *plain_dp;      // s and dp, and so p and ds: of a bunch of panels
  std::byte *p, *ds, *ds_t;              // ds_t: panels of queries, each with all keys of the tile
  float *lse, *delta, *row;
  const void** rows;
  General* scores;
  Unit* units;
};

// Panels of dQ. With a list every block of queries begins a new one.
int64_t panels_of_block(const Problem& p, const CpuKernels& m) { return ceil_div(p.mask.blocks.q, m.rows); }
int64_t panels_of_unit(const Problem& p, const CpuKernels& m) {
  if (by_head(p)) return ceil_div(p.len_q, p.mask.blocks.q) * panels_of_block(p, m);
  return ceil_div(int64_t(p.len_q) * group(p), m.rows);
}

Scratch carve(Workspace& ws, const Plan& plan, const CpuKernels& m) {
  const Problem& p = plan.problem;
  const size_t tk = size_t(plan.tile_k), tq = size_t(plan.tile_q), rows = size_t(m.rows),
               bytes = size_t(m.operand_bytes);
  const size_t dim_qk = size_t(padded(m, p.dim_qk)), dim_v = size_t(padded(m, p.dim_v));
  const auto operand = [&](size_t count) { return ws.take<std::byte>(count * bytes); };
  Scratch x{};
  x.k_q = operand(tk * dim_qk), x.v_q = operand(tk * dim_v), x.k_v = operand(tk * dim_qk);
  x.queries.q_k = operand(tq * dim_qk), x.queries.q_v = operand(tq * dim_qk);
  x.queries.do_k = operand(tq * dim_v), x.queries.do_v = operand(tq * dim_v), x.queries.room = plan.tile_q;
  x.dk = ws.take<float>(tk * dim_qk), x.dv = ws.take<float>(tk * dim_v);
  x.dq = ws.take<float>(size_t(panels_of_unit(p, m) * units_of_keys(p)) * rows * dim_qk);
  const size_t bunch = size_t(bunch_of(p));
  x.s = ws.take<float>(tq * rows * bunch), x.dp = ws.take<float>(tq * rows * bunch);
  x.plain = ws.take<float>(tq * rows), x.plain_dp = ws.take<float>(tq * rows);
  x.p = operand(tq * rows * bunch), x.ds = operand(tq * rows * bunch), x.ds_t = operand(tq * tk);
  x.lse = ws.take<float>(tq), x.delta = ws.take<float>(tq), x.row = ws.take<float>(rows * std::max(dim_qk, dim_v));
  x.rows = ws.take<const void*>(std::max(tk, tq));
  x.scores = ws.take<General>(size_t(p.heads_q / p.heads_kv));
  x.units = ws.take<Unit>(size_t(units_of_keys(p)));
  return x;
}

RowState carve_rows(Workspace& ws, const Problem& p) {
  const size_t heads = size_t(p.batch) * size_t(p.heads_q), rows = heads * size_t(p.len_q);
  return {ws.take<float>(rows), ws.take<float>(rows), ws.take<double>(heads)};
}

Partial carve_partial(Workspace& ws, const Plan& plan) {
  const Problem& p = plan.problem;
  const int64_t rows = int64_t(p.batch) * p.heads_q * p.len_q;
  return {plan.splits == 1 ? nullptr : ws.take<float>(size_t(plan.splits * rows * p.dim_qk)), rows};
}

void read_row(const CpuKernels& m, DType t, const char* from, int n, float* to) {
  if (t == DType::f32) std::copy_n(reinterpret_cast<const float*>(from), n, to);
  else m.widen(from, n, to);
}
void write_row(const CpuKernels& m, DType t, const float* from, int n, char* to) {
  if (t == DType::f32) std::copy_n(from, n, reinterpret_cast<float*>(to));
  else m.narrow(from, n, to);
}
// A row of a gradient, which is f32 where the run accumulates.
void write_gradient(const CpuKernels& m, const Problem& p, const float* from, int n, char* to) {
  if (!accumulates(p)) return write_row(m, p.dtype.grad, from, n, to);
  for (int d = 0; d < n; ++d) reinterpret_cast<float*>(to)[d] += from[d];
}

// lse and delta of the rows of one head, and its share of the sink's gradient.
void prepare(const Problem& p, const Args& a, const CpuKernels& m, const RowState& to, float* row, int b, int h) {
  const Sequence seq = sequence(p, a, b);
  const int64_t first = (int64_t(b) * p.heads_q + h) * p.len_q;
  const float sink = p.has(Option::sink) ? *a.row<const float>(Role::sinks, 0, 0, h) : -INFINITY;
  double d_sink = 0;
  float other[256];
  for (int i = 0; i < seq.len_q; ++i) {
    const int64_t at = seq.q_first + i;
    read_row(m, p.dtype.out, row_address(a[Role::out], seq.q_batch, at, h), p.dim_v, row);
    read_row(m, p.dtype.out, row_address(a[Role::d_out], seq.q_batch, at, h), p.dim_v, other);
    float delta = 0;
    for (int d = 0; d < p.dim_v; ++d) delta += row[d] * other[d];
    if (a.given(Role::d_lse)) delta -= *a.row<const float>(Role::d_lse, seq.q_batch, at, h);
    const float lse = *a.row<const float>(Role::lse, seq.q_batch, at, h);
    to.delta[first + i] = lse == -INFINITY ? 0.f : delta;
    to.lse[first + i] = lse == -INFINITY ? INFINITY : lse * kLog2e;
    if (lse != -INFINITY) d_sink -= std::exp(double(sink) - lse) * delta;
  }
  to.d_sink[int64_t(b) * p.heads_q + h] = d_sink;
}

// The key tiles of a sequence with up to `len_k` keys. They end where blocks of a list do.
struct KeyTiles {
  int64_t size, block, pieces, count;

  KeyTiles(const Plan& plan, int len_k)
      : size(plan.tile_k), block(plan.problem.mask.blocks.k), pieces(ceil_div(std::min<int64_t>(block, len_k), size)),
        count(block ? ceil_div(len_k, block) * pieces : ceil_div(len_k, size)) {}
  // Of a sequence that has `len`.
  Rows keys(int64_t n, int len) const {
    if (!block) return {clamp(n * size, 0, len), clamp((n + 1) * size, 0, len)};
    const int64_t start = n / pieces * block, first = start + n % pieces * size;
    return {clamp(first, 0, len), clamp(std::min(first + size, start + block), 0, len)};
  }
};

// The gradients of one head of keys in one sequence, for its key tiles [first, last).
class Task {
 public:
  Task(const Plan& plan, const Args& a, const CpuKernels& m, const Scratch& scratch, const RowState& rows,
       const PackedQueries& queries, int b, int head_kv)
      : plan_(plan),
        p_(plan.problem),
        a_(a),
        m_(m),
        x_(scratch),
        rows_(rows),
        queries_(queries),
        dim_qk_(padded(m, p_.dim_qk)),
        dim_v_(padded(m, p_.dim_v)),
        general_(needs_general(p_)),
        plain_(p_.dtype.grad == DType::f32 && !accumulates(p_)),
        scale_(scale_of(p_, a)) {
    for (int n = 0; n < units_of_keys(p_); ++n)
      x_.units[n] = unit_of(p_, a, b, head_kv * units_of_keys(p_) + n, x_.scores + n * group(p_));
    for (int n = 0; n < units_of_keys(p_); ++n)
      std::fill_n(dq_of(n, 0), panels_of_unit(p_, m) * m.rows * dim_qk_, 0.f);
  }

  void run(const KeyTiles& tiles, int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) key_tile(tiles.keys(n, x_.units[0].seq.len_k));
  }

  // dQ to the tensor, or to a split's share of it.
  void store_dq(float* partial) {
    if (!a_.given(Role::dq)) return;
    float factor[kMaxRows];
    std::fill_n(factor, m_.rows, scale_);
    for (int n = 0; n < units_of_keys(p_); ++n) {
      const Unit& u = x_.units[n];
      for (int first = 0, count; first < u.rows(); first += count) {
        count = std::min(m_.rows, u.rows() - first);
        if (by_head(p_)) count = std::min(count, p_.mask.blocks.q - first % p_.mask.blocks.q);
        if (!partial && u.group == 1 && plain_) {
          m_.unpack(dq_of(n, first), p_.dim_qk, factor, count, reinterpret_cast<float*>(u.address(Role::dq, first)),
                    a_[Role::dq].stride.seq);
          continue;
        }
        m_.unpack(dq_of(n, first), p_.dim_qk, factor, count, x_.row, p_.dim_qk);
        for (int r = 0; r < count; ++r) {
          const float* from = x_.row + r * p_.dim_qk;
          if (partial) std::copy_n(from, p_.dim_qk, partial + row_index(u, first + r) * p_.dim_qk);
          else write_gradient(m_, p_, from, p_.dim_qk, u.address(Role::dq, first + r));
        }
      }
    }
  }

 private:
  int64_t row_index(const Unit& u, int row) const {
    return (int64_t(u.b) * p_.heads_q + u.head(row)) * p_.len_q + u.position(row);
  }
  float* dq_of(int unit, int row) const {
    int64_t panel = row / m_.rows;
    if (const int size = p_.mask.blocks.q) panel = row / size * panels_of_block(p_, m_) + row % size / m_.rows;
    return x_.dq + (unit * panels_of_unit(p_, m_) + panel) * m_.rows * dim_qk_;
  }
  int panels(Rows keys) const { return int(ceil_div(round_up(keys.last - keys.first, m_.keys), m_.rows)); }

  void key_tile(Rows keys) {
    const int count = keys.last - keys.first;
    if (count <= 0) return;
    const Unit& any = x_.units[0];
    const float scale_k = m_.scale_in_q && !general_ ? scale_ * kLog2e : 1.f;
    for (const Role role : {Role::k, Role::v}) {
      const int dim = role == Role::k ? p_.dim_qk : p_.dim_v, wide = role == Role::k ? dim_qk_ : dim_v_;
      gather_keys(any, role, keys.first, count, x_.rows);
      for (int n = 0; n < panels(keys); ++n) {
        const int first = n * m_.rows, rows = clamp(count - first, 0, m_.rows);
        m_.pack_q(x_.rows + first, rows, dim, role == Role::k ? scale_k : 1.f,
                  at(role == Role::k ? x_.k_q : x_.v_q, m_, int64_t(first) * wide));
      }
      if (role == Role::k) m_.pack_v(x_.rows, count, dim, x_.k_v, plan_.tile_k);
    }
    std::fill_n(x_.dk, int64_t(panels(keys)) * m_.rows * dim_qk_, 0.f);
    std::fill_n(x_.dv, int64_t(panels(keys)) * m_.rows * dim_v_, 0.f);
    for (int n = 0; n < units_of_keys(p_); ++n) visit_queries(n, keys);
    store_keys(Role::dk, keys, x_.dk, p_.dim_qk, dim_qk_, scale_);
    store_keys(Role::dv, keys, x_.dv, p_.dim_v, dim_v_, 1.f);
  }

  void visit_queries(int unit, Rows keys) {
    const Unit& u = x_.units[unit];
    const QueryWalk walk{u.seq.band, u.seq.len_q, 1};
    const Rows seen{walk.first_query(keys.first) * u.group, walk.last_query(keys.last - 1) * u.group};
    if (!p_.mask.blocks.q) return query_rows(unit, keys, seen);
    const BlockList list = list_of(p_, a_, u.b, u.head_q);
    const int key_block = keys.first / p_.mask.blocks.k, size = p_.mask.blocks.q;
    const auto visit = [&](int64_t block) {
      if (p_.has(Option::block_bias)) x_.scores[unit].entry = std::max(0, list.find(int(block), key_block));
      query_block(unit, keys, seen, block);
    };
    if (a_.given(Role::block_begin_k)) {
      const BlockList by_key{p_.mask.blocks, a_.row<const int32_t>(Role::block_begin_k, u.b, 0, u.head_q),
                             a_.row<const int32_t>(Role::block_row_k)};
      for (int n = 0; n < by_key.count(key_block); ++n) visit(by_key.key_block(key_block, n));
      return;
    }
    for (int64_t block = seen.first / size; block * size < seen.last; ++block)
      if (list.find(int(block), key_block) >= 0) visit(block);
  }

  // Rows of a unit against the key tile. Tiles begin on a panel of dQ; rows before `rows.first` are hidden.
  void query_rows(int unit, Rows keys, Rows rows) {
    for (int64_t first = rows.first / m_.rows * m_.rows; first < rows.last; first += plan_.tile_q) {
      const Rows tile{int(first), clamp(first + plan_.tile_q, 0, rows.last)};
      // Whole panels of dQ: a row beyond the tile adds 0 to whoever owns it.
      const int n = int(round_up(round_up(tile.last - tile.first, m_.rows), m_.keys));
      pack_queries(p_, m_, x_.units[unit], tile, n, x_.rows, x_.queries);
      query_tile(unit, keys, rows, tile, n, x_.queries);
    }
  }
  // Those of a block that are seen. Its tiles are packed.
  void query_block(int unit, Rows keys, Rows seen, int64_t block) {
    const Unit& u = x_.units[unit];
    const int64_t size = p_.mask.blocks.q, end = std::min<int64_t>((block + 1) * size, u.rows());
    const Rows rows{clamp(block * size, seen.first, seen.last), clamp(end, seen.first, seen.last)};
    for (int64_t piece = 0; piece < queries_.pieces; ++piece) {
      const int64_t first = block * size + piece * plan_.tile_q;
      const Rows tile{int(first), int(std::min(end, first + plan_.tile_q))};
      if (tile.first >= rows.last || tile.last <= rows.first) continue;
      const int n = int(round_up(tile.last - tile.first, m_.keys));
      if (n % m_.rows)  // rows of the last panel of dQ that are not there
        std::memset(at(x_.ds_t, m_, int64_t(n / m_.rows) * m_.rows * plan_.tile_k), 0,
                    size_t(m_.rows) * size_t(plan_.tile_k) * size_t(m_.operand_bytes));
      query_tile(unit, keys, rows, tile, n, queries_.at(p_, m_, u.b, u.head_q, block * queries_.pieces + piece));
    }
  }

  void query_tile(int unit, Rows keys, Rows rows, Rows tile, int n, const Queries& packed) {
    const Unit& u = x_.units[unit];
    const int count = tile.last - tile.first;
    std::fill_n(x_.lse, n, INFINITY), std::fill_n(x_.delta, n, 0.f);
    if (u.group == 1) {
      std::copy_n(rows_.lse + row_index(u, tile.first), count, x_.lse);
      std::copy_n(rows_.delta + row_index(u, tile.first), count, x_.delta);
    } else {
      for (int r = 0; r < count; ++r) {
        x_.lse[r] = rows_.lse[row_index(u, tile.first + r)];
        x_.delta[r] = rows_.delta[row_index(u, tile.first + r)];
      }
    }
    const QueryWalk walk{u.seq.band, u.seq.len_q, 1};
    // The last panels, where no query of the tile sees a key: on the diagonal of a causal mask nearly half of them. As
    // many are kept as fill a step of keys, for dQ.
    int seen = panels(keys);
    while (seen > 0 && int64_t(walk.first_query(keys.first + (seen - 1) * m_.rows)) * u.group >= tile.last) --seen;
    while (seen < panels(keys) && seen * m_.rows % m_.keys) ++seen;
    for (int first = 0; first < seen; first += bunch_of(p_))
      bunch(u, keys, rows, tile, n, packed, {first, std::min(first + bunch_of(p_), seen)});
    if (!a_.given(Role::dq)) return;
    const int many = std::min(int(round_up(keys.last - keys.first, m_.keys)), seen * m_.rows);
    const BandWalk back{u.seq.band, u.seq.len_k, 1};
    for (int first = 0; first < count; first += m_.rows) {
      const int last = std::min(first + m_.rows, count) - 1;
      const int from = clamp(back.first_key(u.position(tile.first + first)) - keys.first, 0, many) / m_.keys * m_.keys;
      const int until = clamp(back.last_key(u.position(tile.first + last)) - keys.first, 0, many);
      const int n_keys = std::min(many, int(round_up(until, m_.keys))) - from;
      if (n_keys > 0)
        m_.accumulate(at(x_.ds_t, m_, (int64_t(first) * plan_.tile_k + int64_t(from) * m_.rows)), x_.k_v, plan_.tile_k,
                      from, n_keys, dim_qk_, dq_of(unit, tile.first + first));
    }
  }

  // The queries of a tile that see a panel of keys, in whole steps: on a diagonal the others would be half of the work.
  Rows seen_by(const Unit& u, Rows keys, Rows rows, Rows tile, int n, int panel) const {
    if (general_) return {0, n};
    const QueryWalk walk{u.seq.band, u.seq.len_q, 1};
    const int step = std::lcm(m_.rows, m_.keys), first_key = keys.first + panel * m_.rows;
    const int last_key = std::min(first_key + m_.rows, keys.last);
    if (first_key >= last_key) return {0, 0};
    const int from = std::max(walk.first_query(first_key) * u.group, rows.first) - tile.first;
    const int until = std::min(walk.last_query(last_key - 1) * u.group, rows.last) - tile.first;
    const Rows seen{clamp(from, 0, n) / step * step, std::min(n, int(round_up(clamp(until, 0, n), step)))};
    return seen.first < seen.last ? seen : Rows{0, 0};
  }

  // Panels of keys against a query tile, product by product.
  void bunch(const Unit& u, Rows keys, Rows rows, Rows tile, int n, const Queries& packed, Rows panels) {
    const QueryWalk walk{u.seq.band, u.seq.len_q, 1};
    Rows seen[kMaxBunch];
    for (int panel = panels.first; panel < panels.last; ++panel)
      seen[panel - panels.first] = seen_by(u, keys, rows, tile, n, panel);
    // f(panel, its queries, where they begin in s, dp, p and ds)
    const auto each = [&](auto f) {
      for (int panel = panels.first; panel < panels.last; ++panel) {
        const Rows of = seen[panel - panels.first];
        if (of.first < of.last) f(panel, of, (int64_t(panel - panels.first) * plan_.tile_q + of.first) * m_.rows);
      }
    };
    float top[kMaxRows];
    each([&](int panel, Rows of, int64_t to) {
      m_.scores(at(x_.k_q, m_, int64_t(panel) * m_.rows * dim_qk_), at(packed.q_k, m_, int64_t(of.first) * dim_qk_),
                of.last - of.first, dim_qk_, x_.s + to, top);
    });
    each([&](int panel, Rows of, int64_t to) {
      m_.scores(at(x_.v_q, m_, int64_t(panel) * m_.rows * dim_v_), at(packed.do_k, m_, int64_t(of.first) * dim_v_),
                of.last - of.first, dim_v_, x_.dp + to, top);
    });
    each([&](int panel, Rows of, int64_t to) {
      const int first_key = keys.first + panel * m_.rows, last_key = std::min(first_key + m_.rows, keys.last);
      const int before = tile.first + of.first, count = std::min(of.last, tile.last - tile.first) - of.first;
      int from[kMaxRows], until[kMaxRows];
      bool partial = false;
      for (int r = 0; r < m_.rows; ++r) {
        const bool real = first_key + r < last_key;
        from[r] = real ? std::max(walk.first_query(first_key + r) * u.group, rows.first) - before : n;
        until[r] = real ? std::min(walk.last_query(first_key + r) * u.group, rows.last) - before : 0;
        partial |= from[r] > 0 || until[r] < count;
      }
      if (general_) return general_gradients(u, tile, n, first_key, last_key, from, until, to);
      if (partial) m_.hide(x_.s + to, of.last - of.first, from, until, top);
      m_.gradients(x_.s + to, x_.dp + to, of.last - of.first, m_.scale_in_q ? 1.f : scale_ * kLog2e,
                   x_.lse + of.first, x_.delta + of.first, at(x_.p, m_, to), at(x_.ds, m_, to));
    });
    if (a_.given(Role::dv)) each([&](int panel, Rows of, int64_t p) {
      m_.accumulate(at(x_.p, m_, p), packed.do_v, packed.room, of.first, of.last - of.first, dim_v_,
                    x_.dv + int64_t(panel) * m_.rows * dim_v_);
    });
    if (a_.given(Role::dk)) each([&](int panel, Rows of, int64_t ds) {
      m_.accumulate(at(x_.ds, m_, ds), packed.q_v, packed.room, of.first, of.last - of.first, dim_qk_,
                    x_.dk + int64_t(panel) * m_.rows * dim_qk_);
    });
    if (!a_.given(Role::dq)) return;
    const int64_t of_queries = int64_t(plan_.tile_k) * m_.rows;  // a panel of them, with all keys
    each([&](int panel, Rows of, int64_t ds) {
      m_.transpose(at(x_.ds, m_, ds), of.last - of.first, at(x_.ds_t, m_, of.first / m_.rows * of_queries), of_queries,
                   panel * m_.rows);
    });
    for (int panel = panels.first; panel < panels.last; ++panel)
      for (int q = 0; q < n; q += m_.rows)
        if (const Rows of = seen[panel - panels.first]; q < of.first || q >= of.last)
          std::memset(at(x_.ds_t, m_, q / m_.rows * of_queries + int64_t(panel) * m_.rows * m_.rows), 0,
                      size_t(m_.rows) * size_t(m_.rows) * size_t(m_.operand_bytes));
  }

  // The general policy, on plain rows: one a key, its entries the queries of the tile.
  void general_gradients(const Unit& u, Rows tile, int n, int first_key, int last_key, const int* from,
                         const int* until, int64_t panel) {
    m_.read_scores(x_.s + panel, n, x_.plain, plan_.tile_q);
    m_.read_scores(x_.dp + panel, n, x_.plain_dp, plan_.tile_q);
    const bool of_block = p_.has(Option::block_bias), of_pair = !of_block && a_.given(Role::d_bias);
    float block = 0.f;
    for (int r = 0; r < m_.rows; ++r) {
      float *p = x_.plain + int64_t(r) * plan_.tile_q, *ds = x_.plain_dp + int64_t(r) * plan_.tile_q;
      const int j = first_key + r, count = tile.last - tile.first;
      for (int q = 0; q < n; ++q) {
        if (j >= last_key || q < from[r] || q >= std::min(until[r], count) || x_.lse[q] == INFINITY) {
          p[q] = ds[q] = 0.f;
          continue;
        }
        const int row = tile.first + q, i = u.position(row);
        const General& score = u.score(row);
        const float weight = std::exp2(score.logit(p[q], i, j) - x_.lse[q]), keep = score.keep(i, j);
        const float d_logit = weight * (keep * ds[q] - x_.delta[q]);
        if (of_pair) *bias_gradient(u, i, row, j) += d_logit;
        block += d_logit;
        ds[q] = d_logit * score.slope_of_logit(p[q]);
        p[q] = weight * keep;
      }
    }
    m_.write_weights(x_.plain, plan_.tile_q, n, at(x_.p, m_, panel));
    m_.write_weights(x_.plain_dp, plan_.tile_q, n, at(x_.ds, m_, panel));
    // Lists of several heads may have the same entries.
    if (of_block && a_.given(Role::d_bias))
      std::atomic_ref<float>(a_.row<float>(Role::d_bias)[u.scores->entry]).fetch_add(block, std::memory_order_relaxed);
  }
  float* bias_gradient(const Unit& u, int i, int row, int j) const {
    const Tensor& t = a_[Role::d_bias];
    return reinterpret_cast<float*>(row_address(t, u.b, i, u.head(row))) + (t.extent.dim == 1 ? 0 : j);
  }

  void store_keys(Role role, Rows keys, const float* acc, int dim, int wide, float factor_of_all) {
    if (!a_.given(role)) return;
    float factor[kMaxRows], before[256];
    std::fill_n(factor, m_.rows, factor_of_all);
    for (int first = keys.first; first < keys.last; first += m_.rows) {
      const int count = std::min(m_.rows, keys.last - first);
      if (plain_ && !shares_keys(p_, a_)) {
        m_.unpack(acc + int64_t(first - keys.first) * wide, dim, factor, count,
                  reinterpret_cast<float*>(key_address(x_.units[0], role, first)), a_[role].stride.seq);
        continue;
      }
      m_.unpack(acc + int64_t(first - keys.first) * wide, dim, factor, count, x_.row, dim);
      for (int r = 0; r < count; ++r) {
        char* to = key_address(x_.units[0], role, first + r);
        float* from = x_.row + r * dim;
        if (shares_keys(p_, a_) || accumulates(p_)) {
          read_row(m_, p_.dtype.grad, to, dim, before);
          for (int d = 0; d < dim; ++d) from[d] += before[d];
        }
        write_row(m_, p_.dtype.grad, from, dim, to);
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
  const int dim_qk_, dim_v_;
  const bool general_, plain_;  // plain: rows of a gradient are stored as they are unpacked
  const float scale_;
};

// Every element 0, and nothing between them.
void clear(const Tensor& t) {
  for (int b = 0; b < t.extent.batch; ++b)
    for (int s = 0; s < t.extent.seq; ++s)
      for (int h = 0; h < t.extent.head; ++h)
        std::memset(row_address(t, b, s, h), 0, size_t(t.extent.dim) * size_t(size_of(t.dtype)));
}

// Whether units of different sequences or heads add into the same elements of d_bias, and must not at the same time.
bool shares_bias(const Problem& p, const Args& a) {
  const Extents e = a[Role::d_bias].extent;
  if (p.has(Option::block_bias) && p.reproducible == Reproducible::no) return false;
  return a.given(Role::d_bias) && ((e.batch == 1 && p.batch > 1) || (e.head == 1 && p.heads_q > 1));
}

Status supports(const Problem& p, const Device& d) {
  if (Status s = cpu::supports("cpu_backward", Pass::backward, p, d); !s.ok()) return s;
  if (p.dtype.out != p.dtype.q)
    return Status::no("cpu_backward: out is ", name(p.dtype.out), " and q is ", name(p.dtype.q),
                      ", they must be the same");
  return Status::good();
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  const CpuKernels& m = kernels_of(p, plan.device, p.mask.blocks.k);
  const int step = std::lcm(m.rows, m.keys);
  const int narrow = m.operand_bytes == 2 ? 2 : 1;
  plan.tile_k = int(round_up(std::min(p.len_k, 240 * narrow), step));
  plan.tile_q = int(round_up(std::min<int64_t>(int64_t(p.len_q) * group(p), 96 * narrow), step));
  if (by_head(p)) {  // even pieces of a block
    const int size = std::min(p.mask.blocks.q, p.len_q);
    plan.tile_q = int(round_up(ceil_div(size, ceil_div(size, 128 * narrow)), step));
  }
  const int64_t sets = int64_t(p.batch) * p.heads_kv;
  if (sets < plan.device.units && p.reproducible != Reproducible::batch && !p.has(Option::bias) &&
      !(p.has(Option::block_bias) && p.reproducible != Reproducible::no))
    plan.splits = int(std::clamp<int64_t>(ceil_div(plan.device.units, sets), 1, KeyTiles(plan, p.len_k).count));
  Workspace count;
  carve_rows(count, p);
  carve_partial(count, plan);
  carve_queries(count, plan, m);
  carve_list(count, p);
  for (int n = 0; n < plan.device.units; ++n) carve(count, plan, m);
  plan.workspace_bytes = count.used;
  return Status::good();
}

Status run(const Plan& plan, const Args& given, Workspace ws, Stream) {
  const Problem& p = plan.problem;
  Args a = given;
  const CpuKernels& m = kernels_of(p, plan.device, p.mask.blocks.k);
  const RowState rows = carve_rows(ws, p);
  const Partial partial = carve_partial(ws, plan);
  const PackedQueries queries = carve_queries(ws, plan, m);
  add_list_by_key(p, carve_list(ws, p), a);
  const auto scratch_of = by_worker(ws, [&](Workspace& own) { return carve(own, plan, m); });
  std::atomic<int64_t> next{0};
  const auto each = [&](int64_t tasks, int workers, auto f) {
    next = 0;
    auto work = [&](int worker) {
      const Scratch scratch = scratch_of(worker);
      for (int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) f(scratch, n);
    };
    parallel(int(std::min<int64_t>(workers, tasks)), work);
  };

  const int64_t heads = int64_t(p.batch) * p.heads_q;
  each(heads, plan.device.units,
       [&](const Scratch& x, int64_t n) { prepare(p, a, m, rows, x.row, int(n / p.heads_q), int(n % p.heads_q)); });
  for (int h = 0; a.given(Role::d_sinks) && h < p.heads_q; ++h) {
    double sum = 0;
    for (int b = 0; b < p.batch; ++b) sum += rows.d_sink[int64_t(b) * p.heads_q + h];
    float* to = a.row<float>(Role::d_sinks, 0, 0, h);
    *to = float(sum + (accumulates(p) ? double(*to) : 0));
  }
  // Keys that no sequence has are 0 too.
  for (const Role r : {Role::dk, Role::dv, Role::d_bias})
    if (a.given(r) && !accumulates(p)) clear(a[r]);

  if (queries.slots) each(heads * queries.slots, plan.device.units, [&](const Scratch& x, int64_t n) {
    const int64_t slot = n % queries.slots, block = slot / queries.pieces * p.mask.blocks.q;
    const Unit u = unit_of(p, a, int(n / queries.slots / p.heads_q), int(n / queries.slots % p.heads_q), x.scores);
    const int64_t first = block + slot % queries.pieces * plan.tile_q;
    const Rows tile{int(first), int(std::min({first + plan.tile_q, block + p.mask.blocks.q, int64_t(u.rows())}))};
    const int count = tile.last - tile.first;
    if (count > 0)
      pack_queries(p, m, u, tile, int(round_up(count, m.keys)), x.rows, queries.at(p, m, u.b, u.head_q, slot));
  });

  // Where sequences share keys, one task has all of them.
  const bool together = shares_keys(p, a);
  const KeyTiles tiles(plan, longest(p, a).k);
  const int64_t sequences = together ? 1 : p.batch;
  each(sequences * p.heads_kv * plan.splits, shares_bias(p, a) ? 1 : plan.device.units,
       [&](const Scratch& x, int64_t n) {
         const int64_t split = n % plan.splits, set = n / plan.splits, head = set % p.heads_kv;
         for (int64_t b = together ? 0 : set / p.heads_kv; b < (together ? p.batch : set / p.heads_kv + 1); ++b) {
           Task task(plan, a, m, x, rows, queries, int(b), int(head));
           task.run(tiles, tiles.count * split / plan.splits, tiles.count * (split + 1) / plan.splits);
           task.store_dq(partial.dq ? partial.dq + split * partial.rows * p.dim_qk : nullptr);
         }
       });
  if (plan.splits == 1 || !a.given(Role::dq)) return Status::good();

  each(heads, plan.device.units, [&](const Scratch& x, int64_t n) {
    const int b = int(n / p.heads_q), h = int(n % p.heads_q);
    const Sequence seq = sequence(p, a, b);
    for (int i = 0; i < seq.len_q; ++i) {
      std::fill_n(x.row, p.dim_qk, 0.f);
      for (int split = 0; split < plan.splits; ++split) {
        const float* from = partial.dq + (split * partial.rows + n * p.len_q + i) * p.dim_qk;
        for (int d = 0; d < p.dim_qk; ++d) x.row[d] += from[d];
      }
      write_gradient(m, p, x.row, p.dim_qk, row_address(a[Role::dq], seq.q_batch, seq.q_first + i, h));
    }
  });
  return Status::good();
}

}  // namespace

extern const Backend cpu_backward{.name = "cpu_backward", .supports = supports, .shape = shape, .run = run};

}  // namespace attune
