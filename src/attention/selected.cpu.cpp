// cpu_selected: attention in which every token has its own list of key blocks, shared by the heads of a group. Block by
// block: the block is packed once, and the rows of all tokens of a task that chose it pass by in full panels,
//   pack q -> scores, hide, admit, weights, accumulate -> added to the rows' running sums
// A row meets its blocks in rising order and by itself, so its bits depend on nothing else.
#include <cmath>

#include "attention/selected.cpu.h"

namespace attune {
namespace {

using namespace cpu;

// Rows a task: their queries and running sums stay in L2 (at d128 in f32, 1 MiB), and a packed block is used by all
// that chose it. With 16 times as many the sums come from memory, block after block: 0.72 of a dense kernel's rate, not
// 0.81 (Neoverse-V1, f32, d128, 16 heads a group, blocks of 64 at random).
constexpr int kTaskRows = 1024;
// But in a long sequence few of them choose the same block, and packing it is not for a handful of rows: where blocks
// are chosen at random, at least so many rows come to each.
constexpr int kRowsOfBlock = 160;
constexpr float kLazy = 8.f;  // as in cpu_forward: a reference moves only when the maximum grew by so many doublings

struct Scratch {
  std::byte *q, *k, *v, *p;
  float *o, *s, *row;
  const void** rows;
  float *out, *ref, *sum;  // running, of all rows of the task
  Choosers choosers;
};

int64_t blocks_of(const Problem& p, const Nsa& nsa) { return ceil_div(p.len_k, nsa.s); }
// Keys that are packed at a time: a block, or a piece of it.
int piece_of(const CpuKernels& m, const Nsa& nsa) { return int(std::min<int64_t>(round_up(nsa.s, m.keys), m.tile)); }

Scratch carve(Workspace& ws, const Plan& plan, const CpuKernels& m, const Nsa& nsa) {
  const Problem& p = plan.problem;
  const size_t rows = size_t(m.rows), tile = size_t(piece_of(m, nsa)), bytes = size_t(m.operand_bytes);
  const size_t dim_qk = size_t(padded(m, p.dim_qk)), dim_v = size_t(padded(m, p.dim_v));
  const size_t all = size_t(plan.tile_q) * size_t(group(p));
  return {.q = ws.take<std::byte>(rows * dim_qk * bytes),
          .k = ws.take<std::byte>(tile * dim_qk * bytes),
          .v = ws.take<std::byte>(tile * dim_v * bytes),
          .p = ws.take<std::byte>(tile * rows * bytes),
          .o = ws.take<float>(rows * dim_v),
          .s = ws.take<float>(tile * rows),
          .row = ws.take<float>(rows * dim_v),
          .rows = ws.take<const void*>(tile),
          .out = ws.take<float>(all * size_t(p.dim_v)),
          .ref = ws.take<float>(all),
          .sum = ws.take<float>(all),
          .choosers = Choosers::carve(ws, plan.tile_q, blocks_of(p, nsa), nsa.n)};
}

// Tokens [first, last) of one sequence and group.
class Task {
 public:
  Task(const Plan& plan, const Args& a, const CpuKernels& m, const Nsa& nsa, const Scratch& x, const Unit& unit,
       Rows tokens)
      : p_(plan.problem), a_(a), m_(m), nsa_(nsa), x_(x), u_(unit), tokens_(tokens), piece_(piece_of(m, nsa)),
        dim_qk_(padded(m, p_.dim_qk)), dim_v_(padded(m, p_.dim_v)) {
    const float scale = scale_of(p_, a) * kLog2e;
    scale_q_ = m.scale_in_q ? scale : 1.f, scale_s_ = m.scale_in_q ? 1.f : scale;
  }

  void run() {
    const int64_t rows = int64_t(tokens_.last - tokens_.first) * u_.group;
    std::fill_n(x_.out, rows * p_.dim_v, 0.f);
    std::fill_n(x_.ref, rows, -INFINITY);
    std::fill_n(x_.sum, rows, 0.f);
    const int blocks = int(ceil_div(u_.seq.len_k, nsa_.s));
    x_.choosers.fill(a_, nsa_, u_.seq, u_.head_kv, tokens_, {0, blocks});
    for (int m = 0; m < blocks; ++m) {
      const int count = x_.choosers.count(m) * u_.group;
      if (!count) continue;
      const int end = clamp(int64_t(m + 1) * nsa_.s, 0, u_.seq.len_k);
      for (int key = m * nsa_.s; key < end; key += piece_) {
        pack_keys(key, std::min(piece_, end - key));
        for (int row = 0; row < count; row += m_.rows) {
          prefetch(m, row + m_.rows, count);
          panel(m, row, std::min(m_.rows, count - row), key, std::min(piece_, end - key));
        }
      }
    }
    for (int64_t row = 0; row < rows; ++row) store(int(row));
  }

 private:
  // Row `row` of a block's choosers: which token, and which running row of the task.
  int token(int block, int row) const { return x_.choosers.token[x_.choosers.begin[block] + row / u_.group]; }
  int head(int row) const { return u_.head_q + row % u_.group; }

  void pack_keys(int key, int count) {
    gather_keys(u_, Role::k, key, count, x_.rows);
    m_.pack_k(x_.rows, count, p_.dim_qk, x_.k);
    gather_keys(u_, Role::v, key, count, x_.rows);
    m_.pack_v(x_.rows, count, p_.dim_v, x_.v, piece_);
  }

  // The queries of the next panel: they lie wherever their tokens do.
  void prefetch(int block, int row, int count) const {
    const int bytes = p_.dim_qk * int(size_of(p_.dtype.q));
    for (int r = row; r < std::min(row + m_.rows, count); ++r) {
      const char* at = row_address(a_[Role::q], u_.seq.q_batch, u_.seq.q_first + token(block, r), head(r));
      for (int n = 0; n < bytes; n += 64) __builtin_prefetch(at + n);
    }
  }

  void panel(int block, int row, int count, int key, int keys) {
    const void* at[kSelectedMaxRows];
    int mine[kSelectedMaxRows], from[kSelectedMaxRows] = {}, until[kSelectedMaxRows];
    int n = 0, least = keys;
    for (int r = 0; r < m_.rows; ++r) {
      const int i = token(block, row + std::min(r, count - 1));
      until[r] = clamp(u_.seq.band.q_position(i) + 1 - key, 0, keys);
      n = std::max(n, until[r]), least = std::min(least, until[r]);
      if (r >= count) continue;
      at[r] = row_address(a_[Role::q], u_.seq.q_batch, u_.seq.q_first + i, head(row + r));
      mine[r] = (i - tokens_.first) * u_.group + (row + r) % u_.group;
    }
    if (!n) return;
    n = int(round_up(n, m_.keys));
    float top[kSelectedMaxRows], ref[kSelectedMaxRows], sum[kSelectedMaxRows], factor[kSelectedMaxRows];
    m_.pack_q(at, count, p_.dim_qk, scale_q_, x_.q);
    m_.scores(x_.q, x_.k, n, dim_qk_, x_.s, top);
    if (least < n) m_.hide(x_.s, n, from, until, top);
    for (int r = 0; r < m_.rows; ++r) {
      ref[r] = r < count ? x_.ref[mine[r]] : -INFINITY, sum[r] = 0.f, factor[r] = 1.f;
      if (r >= count || !(top[r] * scale_s_ > ref[r] + kLazy)) continue;
      const float to = std::ceil(top[r] * scale_s_), move = std::exp2(ref[r] - to);  // 0 the first time
      x_.ref[mine[r]] = ref[r] = to;
      x_.sum[mine[r]] *= move;
      float* out = x_.out + int64_t(mine[r]) * p_.dim_v;
      for (int d = 0; d < p_.dim_v; ++d) out[d] *= move;
    }
    m_.weights(x_.s, n, scale_s_, ref, sum, x_.p);
    std::fill_n(x_.o, m_.rows * dim_v_, 0.f);
    m_.accumulate(x_.p, x_.v, piece_, 0, n, dim_v_, x_.o);
    m_.unpack(x_.o, p_.dim_v, factor, count, x_.row, p_.dim_v);
    for (int r = 0; r < count; ++r) {
      x_.sum[mine[r]] += sum[r];
      add_row(x_.row + int64_t(r) * p_.dim_v, p_.dim_v, x_.out + int64_t(mine[r]) * p_.dim_v);
    }
  }

  void store(int row) {
    const int i = tokens_.first + row / u_.group, h = head(row);
    const RowEnd end(SoftmaxRow{x_.ref[row], x_.sum[row]});
    float* out = x_.out + int64_t(row) * p_.dim_v;
    for (int d = 0; d < p_.dim_v; ++d) out[d] *= end.now;
    char* to = row_address(a_[Role::out], u_.seq.q_batch, u_.seq.q_first + i, h);
    if (p_.dtype.out == DType::f32) std::copy_n(out, p_.dim_v, reinterpret_cast<float*>(to));
    else m_.narrow(out, p_.dim_v, to);
    if (float* lse = a_.row<float>(Role::lse, u_.seq.q_batch, u_.seq.q_first + i, h)) *lse = end.lse;
  }

  const Problem& p_;
  const Args& a_;
  const CpuKernels& m_;
  const Nsa& nsa_;
  const Scratch& x_;
  const Unit& u_;
  const Rows tokens_;
  const int piece_, dim_qk_, dim_v_;
  float scale_q_, scale_s_;
};

Status supports(const Problem& p, const Device& d) { return selected_supports("cpu_selected", Pass::forward, p, d); }

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  const CpuKernels& m = *best_kernels(p.dtype.q, plan.device.features);
  const Nsa nsa = nsa_of(p);
  const int64_t sets = int64_t(p.batch) * p.heads_kv;
  const int64_t rows = std::max<int64_t>(kTaskRows, kRowsOfBlock * blocks_of(p, nsa) / nsa.n);
  int64_t tasks = ceil_div(int64_t(p.len_q) * group(p), rows);
  while (sets * tasks < 2 * plan.device.units && p.len_q / (tasks + 1) >= 64) ++tasks;
  plan.tile_q = int(ceil_div(p.len_q, tasks)), plan.tile_k = piece_of(m, nsa);
  Workspace count;
  for (int n = 0; n < plan.device.units; ++n) carve(count, plan, m, nsa);
  plan.workspace_bytes = count.used;
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream) {
  const Problem& p = plan.problem;
  const CpuKernels& m = *best_kernels(p.dtype.q, plan.device.features);
  const Nsa nsa = nsa_of(p);
  const int64_t pieces = ceil_div(p.len_q, plan.tile_q), sets = int64_t(p.batch) * p.heads_kv;
  each_task(sets * pieces, plan.device.units, [&](int worker, int64_t n) {
    Workspace own = ws;
    for (int before = 0; before < worker; ++before) carve(own, plan, m, nsa);
    const Scratch x = carve(own, plan, m, nsa);
    const int64_t set = n % sets, piece = pieces - 1 - n / sets;
    const int b = int(set / p.heads_kv), g = int(set % p.heads_kv), heads = group(p);
    const Unit unit{&p, &a, b, g, g * heads, heads, sequence(p, a, b), nullptr};
    const Rows tokens{clamp(piece * plan.tile_q, 0, unit.seq.len_q),
                      clamp((piece + 1) * plan.tile_q, 0, unit.seq.len_q)};
    if (tokens.first < tokens.last) Task(plan, a, m, nsa, x, unit, tokens).run();
  });
  return Status::good();
}

}  // namespace

extern const Backend cpu_selected{.name = "cpu_selected", .supports = supports, .shape = shape, .run = run};

}  // namespace attune
