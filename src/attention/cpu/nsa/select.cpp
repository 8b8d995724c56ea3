// SPDX-License-Identifier: Apache-2.0
// cpu_select: selects n key blocks for every token and group, by the probabilities of compressed keys. Compressed keys
// are processed in tiles. A task has a run of tokens of one group. For each token it keeps one sum over its heads per
// compressed key (a row, never a matrix of all queries), filters these to blocks and keeps the best. Sums are f32 in a
// fixed order, so equal keys have equal scores and the lower block wins.
#include <cmath>

#include "attention/cpu/pow2.h"
#include "attention/cpu/row_io.h"
#include "core/large_logit.h"
#include "core/variant/nsa.h"
#include "core/softmax.h"

namespace attune {
namespace {

using namespace cpu;

constexpr int kTaskRows = 512, kMaxRows = 64;

// to += 2^(from * scale - lse), with lse as lowered for weights. In a row with large logits nearly all weights are 0,
// and must be exactly 0: among blocks of score 0 the lower one wins, not the one with more terms of the smallest power.
void add_powers(const float* __restrict from, float scale, float lse, int n, float* __restrict to) {
  if (is_large_logit(lse)) {
    for (int j = 0; j < n; ++j) {
      const float x = exponent_of_weight(from[j] * scale, lse);
      to[j] += x < -126.f ? 0.f : power_of_two(x);
    }
    return;
  }
  for (int j = 0; j < n; ++j) to[j] += power_of_two(from[j] * scale - lse);
}

struct Best { float score; int block; };

struct Scratch {
  std::byte *q, *k;
  float *s, *plain, *sums, *lse;  // sums: [token of the task][compressed key]
  SoftmaxRow* state;              // per row, if its lse is computed here
  const void** rows;
  Best* best;
};

int64_t row_of_sums(const Plan& plan, const Nsa& nsa) {
  return std::max<int64_t>(1, nsa.compressed(plan.problem.len_k));
}

Scratch carve(Workspace& ws, const Plan& plan, const CpuKernels& m, const Nsa& nsa) {
  const Problem& p = plan.problem;
  const size_t rows = size_t(m.rows), tile = size_t(m.tile), dim = size_t(padded(m, p.dim_qk));
  const size_t task = size_t(round_up(int64_t(plan.tile_q) * group(p), m.rows));
  return {.q = ws.take<std::byte>(task * dim * size_t(m.operand_bytes)),
          .k = ws.take<std::byte>(tile * dim * size_t(m.operand_bytes)),
          .s = ws.take<float>(tile * rows),
          .plain = ws.take<float>(tile * rows),
          .sums = ws.take<float>(size_t(plan.tile_q) * size_t(row_of_sums(plan, nsa))),
          .lse = ws.take<float>(task),
          .state = ws.take<SoftmaxRow>(task),
          .rows = ws.take<const void*>(tile),
          .best = ws.take<Best>(size_t(nsa.n))};
}

// Tokens [first, last) of one sequence and group.
class Task {
 public:
  Task(const Plan& plan, const Args& a, const CpuKernels& m, const Nsa& nsa, const Scratch& x, int b, int g, int first,
       int last)
      : p_(plan.problem), a_(a), m_(m), nsa_(nsa), x_(x), seq_(select_sequence(p_, a, nsa, b)), g_(g), first_(first),
        last_(std::min(last, seq_.len_q)), group_(group(p_)), dim_(padded(m, p_.dim_qk)),
        pitch_(row_of_sums(plan, nsa)), scale_(scale_of(p_, a) * kLog2e) {}

  void run() {
    if (first_ >= last_) return;
    const int keys = int(std::min<int64_t>(nsa_.visible(seq_.position + last_ - 1), seq_.keys));
    std::fill_n(x_.sums, (last_ - first_) * pitch_, 0.f);
    pack_queries();
    const auto walk = [&](auto each_row) {
      for (int key = 0; key < keys; key += m_.tile) tile(key, std::min(m_.tile, keys - key), each_row);
    };
    if (!a_.given(Role::lse)) {
      walk([&](int row, int, const float* from, int count) { admit(x_.state[row], from, count); });
      for (int row = 0; row < rows(); ++row) x_.lse[row] = lse_of_weights(x_.state[row].lse());
    }
    walk([&](int row, int key, const float* from, int count) {
      add_powers(from, scale_, x_.lse[row], count, x_.sums + (token(row) - first_) * pitch_ + key);
    });
    for (int i = first_; i < last_; ++i) choose(i);
  }

 private:
  int rows() const { return (last_ - first_) * group_; }
  int token(int row) const { return first_ + row / group_; }
  int head(int row) const { return g_ * group_ + row % group_; }

  void pack_queries() {
    for (int panel = 0; panel < rows(); panel += m_.rows) {
      const void* at[kMaxRows];
      const int count = std::min(m_.rows, rows() - panel);
      for (int r = 0; r < count; ++r) {
        const int i = token(panel + r), h = head(panel + r);
        at[r] = row_address(a_[Role::q], seq_.batch, seq_.first + i, h);
        x_.state[panel + r] = {};
        if (const float* lse = a_.row<const float>(Role::lse, seq_.batch, seq_.first + i, h))
          x_.lse[panel + r] = lse_of_weights(*lse);
      }
      m_.pack_q(at, count, p_.dim_qk, 1.f, cpu::at(x_.q, m_, int64_t(panel) * dim_));
    }
  }

  // Adds keys in order: the bits of a row do not depend on its neighbours.
  void admit(SoftmaxRow& state, const float* from, int count) const {
    float top = -INFINITY;
    for (int j = 0; j < count; ++j) top = std::max(top, from[j] * scale_);
    if (top == -INFINITY) return;
    state.admit(top);
    // A fused multiply-add does not round like the product that is the maximum; with large logits the difference may be
    // large.
    if (is_large_logit(state.max))
      for (int j = 0; j < count; ++j) state.sum += power_of_two(exponent_of_weight(from[j] * scale_, state.max));
    else
      for (int j = 0; j < count; ++j) state.sum += power_of_two(from[j] * scale_ - state.max);
  }

  // Scores of a key tile; calls each_row(row, key, scores, number of visible keys).
  template <class F>
  void tile(int key, int count, F each_row) {
    for (int j = 0; j < count; ++j)
      x_.rows[j] = row_address(a_[Role::k], seq_.k_batch, seq_.k_first + key + j, g_);
    m_.pack_k(x_.rows, count, p_.dim_qk, x_.k);
    for (int panel = 0; panel < rows(); panel += m_.rows) {
      const int real = std::min(m_.rows, rows() - panel);
      const int seen = int(std::min<int64_t>(nsa_.visible(seq_.position + token(panel + real - 1)) - key, count));
      if (seen <= 0) continue;
      const int n = int(round_up(seen, m_.keys));
      float top[kMaxRows];
      m_.scores(cpu::at(x_.q, m_, int64_t(panel) * dim_), x_.k, n, dim_, x_.s, top);
      m_.read_scores(x_.s, n, x_.plain, m_.tile);
      for (int r = 0; r < real; ++r) {
        const int mine = int(std::min<int64_t>(nsa_.visible(seq_.position + token(panel + r)) - key, seen));
        each_row(panel + r, key, x_.plain + int64_t(r) * m_.tile, mine);
      }
    }
  }

  // True if x is a better block than y: a higher score, or the lower index if equal.
  static bool better(const Best& x, const Best& y) {
    return x.score > y.score || (x.score == y.score && x.block < y.block);
  }

  void choose(int i) {
    const int64_t t = seq_.position + i;
    int32_t* to = a_.row<int32_t>(variant_tensor(0), seq_.batch, seq_.first + i, g_);
    const float* sums = x_.sums + (i - first_) * pitch_;
    const int64_t visible = std::min<int64_t>(nsa_.visible(t), seq_.keys);
    const int wanted = nsa_.chosen(t), taps = nsa_.taps();
    int have = 0;  // in a heap with the worst on top
    for (int m = 1; wanted && m <= nsa_.candidates(t); ++m) {
      float score = 0.f;
      const int64_t first = nsa_.first_tap(m);
      for (int k = 0; k < taps; ++k)
        if (const int64_t c = first + k; c >= 0 && c < visible) score += float(nsa_.tap(k)) * sums[c];
      const Best here{score, m};
      if (have < wanted) {
        x_.best[have++] = here;
        std::push_heap(x_.best, x_.best + have, better);
      } else if (better(here, x_.best[0])) {
        std::pop_heap(x_.best, x_.best + have, better);
        x_.best[have - 1] = here;
        std::push_heap(x_.best, x_.best + have, better);
      }
    }
    int count = 0;
    for (int n = 0; n < have; ++n) to[count++] = x_.best[n].block;
    if (t >= 0) to[count++] = 0;
    if (t >= nsa_.s) to[count++] = nsa_.own(t);
    if (t >= 2 * int64_t(nsa_.s)) to[count++] = nsa_.own(t) - 1;
    std::sort(to, to + count);
    std::fill(to + count, to + nsa_.n, -1);
  }

  const Problem& p_;
  const Args& a_;
  const CpuKernels& m_;
  const Nsa& nsa_;
  const Scratch& x_;
  const SelectSequence seq_;
  const int g_, first_, last_, group_, dim_;
  const int64_t pitch_;
  const float scale_;
};

Status supports(const Problem& p, const Device& d) {
  if (word(p.variant) != "select") return Status::unsupported("cpu_select: is for the variant select");
  Problem dense = p;  // its products are those of dense attention
  dense.variant = {}, dense.dim_v = dense.dim_qk, dense.dtype.out = dense.dtype.q;
  return cpu::supports("cpu_select", Pass::forward, dense, d);
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  const CpuKernels& m = *best_kernels(p.dtype.q, plan.device.features);
  const Nsa nsa = nsa_of(p);
  const int64_t sets = int64_t(p.batch) * p.heads_kv, least = ceil_div(m.rows, group(p));
  const int64_t fair = ceil_div(p.len_q * sets, 4 * plan.device.units);  // at least four tasks per thread
  plan.tile_q = int(std::max<int64_t>(std::min<int64_t>(fair, kTaskRows / group(p)), least));
  plan.tile_k = m.tile;
  Workspace count;
  return count_workspace(plan, count, [&](Workspace& own) { carve(own, plan, m, nsa); });
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream) {
  const Problem& p = plan.problem;
  const CpuKernels& m = *best_kernels(p.dtype.q, plan.device.features);
  const Nsa nsa = nsa_of(p);
  int longest = 0;  // p.len_q is only a bound
  for (int b = 0; b < p.batch; ++b) longest = std::max(longest, select_sequence(p, a, nsa, b).len_q);
  const int64_t tiles = ceil_div(longest, plan.tile_q), sets = int64_t(p.batch) * p.heads_kv;
  const auto scratch_of = by_worker(ws, [&](Workspace& own) { return carve(own, plan, m, nsa); });
  each_task(sets * tiles, plan.device.units, [&](int worker, int64_t n) {
    const Scratch x = scratch_of(worker);
    const int64_t set = n % sets, tile = tiles - 1 - n / sets;  // longest first
    Task(plan, a, m, nsa, x, int(set / p.heads_kv), int(set % p.heads_kv), int(tile * plan.tile_q),
         clamp((tile + 1) * plan.tile_q, 0, longest)).run();
  });
  return Status::good();
}

}  // namespace

extern const Backend cpu_select{.name = "cpu_select", .supports = supports, .shape = shape, .run = run};

}  // namespace attune
