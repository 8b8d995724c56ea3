// What the CPU passes share: the rows of a unit of work, where its keys lie, and scores on plain rows.
#pragma once
#include <algorithm>
#include <cmath>
#include <new>

#include "core/score.h"
#include "machine/cpu/kernels.h"
#include "machine/cpu/threads.h"
#include "plan/backend.h"

namespace attune::cpu {

// What carve(workspace) places, by worker: each has its own, behind those of the workers before it, as `shape` counted.
template <class Carve>
auto by_worker(Workspace ws, Carve carve) {
  return [=](int worker) {
    Workspace own = ws;
    for (int before = 0; before < worker; ++before) carve(own);
    return carve(own);
  };
}

// The query heads that share one head of keys, in one sequence. Their rows are ordered (position, head), so that they
// share packed tiles and panels; with one query a head they share a single panel. Block lists differ by head: there a
// unit is one query head.
struct Unit {
  const Problem* problem;
  const Args* args;
  int b, head_kv;
  int head_q, group;      // the first query head, and how many
  Sequence seq;
  const General* scores;  // one a head of the unit

  int rows() const { return seq.len_q * group; }
  int position(int row) const { return row / group; }
  int head(int row) const { return head_q + row % group; }
  const General& score(int row) const { return scores[row % group]; }
  char* address(Role r, int row) const {
    return row_address((*args)[r], seq.q_batch, seq.q_first + position(row), head(row));
  }
};

inline bool by_head(const Problem& p) { return p.mask.blocks.q > 0; }
inline int units(const Problem& p) { return by_head(p) ? p.heads_q : p.heads_kv; }
inline int group(const Problem& p) { return by_head(p) ? 1 : p.heads_q / p.heads_kv; }

// The longest sequence that is really there: a problem's lengths are only bounds, and may be far above.
struct Longest { int q = 0, k = 0; };
inline Longest longest(const Problem& p, const Args& a) {
  Longest most;
  for (int b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence(p, a, b);
    most = {std::max(most.q, seq.len_q), std::max(most.k, seq.len_k)};
  }
  return most;
}

// Unit `n` of sequence b; `scores` has room for group(p).
inline Unit unit_of(const Problem& p, const Args& a, int b, int n, General* scores) {
  const int heads = group(p);
  Unit u{&p, &a, b, by_head(p) ? n / (p.heads_q / p.heads_kv) : n, n * heads, heads, sequence(p, a, b), scores};
  for (int h = 0; h < heads; ++h) ::new (scores + h) General(p, a, u.seq, b, u.head_q + h);
  return u;
}

inline BlockList list_of(const Problem& p, const Args& a, int b, int head) {
  return {p.mask.blocks, a.row<const int32_t>(Role::block_begin, b, 0, head), a.row<const int32_t>(Role::block_column)};
}

// Where key j of the unit lies, in k, v or a gradient of theirs.
inline char* key_address(const Unit& u, Role r, int64_t j) {
  const Tensor& t = (*u.args)[r];
  const int64_t at = u.seq.k_first + j;
  if (u.problem->keys != KeySource::paged) return row_address(t, u.seq.k_batch, at, u.head_kv);
  const int32_t* table = u.args->row<const int32_t>(Role::page_table, u.b);
  const int page = u.problem->page;
  return row_address(t, clamp(table[at / page], 0, t.extent.batch - 1), at % page, u.head_kv);
}

// The addresses of keys first ... first + n.
inline void gather_keys(const Unit& u, Role r, int first, int n, const void** rows) {
  const Tensor& t = (*u.args)[r];
  if (u.problem->keys == KeySource::paged) {
    for (int j = 0; j < n; ++j) rows[j] = key_address(u, r, first + j);
    return;
  }
  const char* at = key_address(u, r, first);
  const int64_t step = t.stride.seq * size_of(t.dtype);
  for (int j = 0; j < n; ++j, at += step) rows[j] = at;
}

// From dot products to base-2 logits: row i against n keys from j on. `entry`: theirs in the block list.
inline void logits(const General& g, int entry, int i, int j, int n, float* x) {
  for (int k = 0; k < n; ++k) x[k] *= g.scale;
  if (g.softcap > 0.f)
    for (int k = 0; k < n; ++k) x[k] = g.softcap * std::tanh(x[k] / g.softcap);
  if (g.bias)
    for (int k = 0; k < n; ++k) x[k] += bias_at(*g.bias, g.batch, i, g.head, j + k);
  if (g.block_bias)
    for (int k = 0; k < n; ++k) x[k] += g.block_bias[entry];
  if (g.slope != 0.f)
    for (int k = 0; k < n; ++k) x[k] -= g.slope * std::fabs(float(g.band.ahead(i, j + k)));
  for (int k = 0; k < n; ++k) x[k] *= kLog2e;
}

// The kernels of a pass whose panels hold blocks of a list, of `block` rows; 0: there is no list.
inline const CpuKernels& kernels_of(const Problem& p, const Device& d, int block) {
  return *(block ? best_kernels(p.dtype.q, d.features, block) : best_kernels(p.dtype.q, d.features));
}

inline int padded(const CpuKernels& k, int dim) { return int(round_up(dim, k.dim_step)); }

// Elements of packed operands are bytes to the algorithm.
inline std::byte* at(void* operand, const CpuKernels& k, int64_t element) {
  return static_cast<std::byte*>(operand) + element * k.operand_bytes;
}

// P stays below 2^8, harmless in f32 and bf16 alike, and most tiles need no rescale.
inline constexpr float kLazy = 8.f;

// The reference of a row, an integer, moves where a logit in base 2 outgrew it. Returns what the sums so far are to be
// multiplied by: 1 where it stays, 0 the first time.
inline float raise(float& ref, float top) {
  if (!(top > ref + kLazy)) return 1.f;
  const float from = ref;
  ref = std::ceil(top);
  return std::exp2(from - ref);
}

// What every CPU kernel of ours refuses. `who` begins each sentence.
Status supports(std::string_view who, Pass, const Problem&, const Device&);

}  // namespace attune::cpu
