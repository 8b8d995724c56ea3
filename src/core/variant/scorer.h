// SPDX-License-Identifier: Apache-2.0
// The scorer of adaptive.h, step by step. A step is a set of independent tasks, and each task is shared by lanes: the
// threads of a CTA on a GPU, one lane on a CPU. The arithmetic is here once, in f32, with a fixed order for every sum,
// so results are bitwise reproducible. Only the selection of a row's best entries differs by machine.
#pragma once
#include <cmath>

#include "core/variant/adaptive.h"

namespace attune {

// Strided rows of f32, one such matrix per network.
struct Weights {
  float* data = nullptr;
  int64_t row = 0, head = 0;
  ATTUNE_HD float* at(int64_t r, int64_t h) const { return data + r * row + h * head; }
};

struct Lane { int at = 0, count = 1; };

// One parameter of all scorer kernels. Arrays are compact; `side` is 0 for queries and 1 for keys.
struct Scorer {
  Problem problem{};  // the attention over the resulting lists: mask.blocks is set, no variant
  DenseArgs args{};   // q, k and lengths; in a backward also dq and dk, which are added to
  Adaptive say{};
  int32_t rows = 0, columns = 0;     // blocks, by the bounds
  int32_t nets = 1, units = 1;       // networks; and terms per key block: heads_q if per_head, else heads_kv
  Weights project[2]{}, project_bias[2]{}, w1{}, b1{}, w2{}, b2{};
  const float* log_temperature = nullptr;
  const int64_t* noise = nullptr;    // seed and offset, or null
  int32_t *begin = nullptr, *column = nullptr;  // the list: begin is [batch, heads, rows + 1] with the strides below
  int64_t begin_batch = 0, begin_head = 0;
  float* scores = nullptr;           // score of each entry

  float* mix[2] = {};                // [nets, dim, hidden]: w1 times the projection
  float* offset[2] = {};             // [nets, hidden]: the constant part of the projection; includes b1 for queries
  float* mean[2] = {};               // [batch, blocks, heads or KV heads, dim]
  float* term[2] = {};               // [batch, blocks, heads or units, hidden]: this side's summand in relu

  const float* d_entry = nullptr;    // backward: gradient of each entry's score
  const int32_t *begin_k = nullptr, *row_k = nullptr;  // the list by key block, compact
  float* d_term[2] = {};
  float* d_mix[2] = {};
  float* d_offset[2] = {};
  float* partial = nullptr;          // [batch, rows, heads, hidden + 2]: for w2, then b2 and log_temperature
  Weights d_project[2]{}, d_project_bias[2]{}, d_w1{}, d_b1{}, d_w2{}, d_b2{};
  float* d_log_temperature = nullptr;

  ATTUNE_HD int dim() const { return problem.dim_qk; }
  ATTUNE_HD int group() const { return problem.heads_q / problem.heads_kv; }
  ATTUNE_HD int blocks(int side) const { return side ? columns : rows; }
  ATTUNE_HD int heads(int side) const { return side ? problem.heads_kv : problem.heads_q; }  // heads in mean
  ATTUNE_HD int sides(int side) const { return side ? units : problem.heads_q; }             // vectors in term
  ATTUNE_HD int net(int head) const { return say.per_head ? head : 0; }
  ATTUNE_HD int unit(int head) const { return say.per_head ? head : head / group(); }        // for a query head
  ATTUNE_HD int mean_head(int side, int n) const { return side && say.per_head ? n / group() : n; }
  ATTUNE_HD int64_t vector(int side, int b, int block, int n) const {  // index of a term
    return (int64_t(b) * blocks(side) + block) * sides(side) + n;
  }
  ATTUNE_HD float* mean_of(int side, int b, int block, int head) const {
    return mean[side] + ((int64_t(b) * blocks(side) + block) * heads(side) + head) * dim();
  }
  ATTUNE_HD float* term_of(int side, int b, int block, int n) const {
    return term[side] + vector(side, b, block, n) * say.hidden;
  }
  ATTUNE_HD float* mix_of(float* const* which, int side, int n) const {
    return which[side] + int64_t(n) * dim() * say.hidden;
  }
  ATTUNE_HD int32_t* list(int b, int head) const { return begin + b * begin_batch + head * begin_head; }
  ATTUNE_HD float temperature() const {
    const float t = expf(*log_temperature);
    return t > kLeastTemperature ? t : kLeastTemperature;
  }
  // The rows of a block that exist in the sequence.
  ATTUNE_HD Rows tokens(int side, const Sequence& s, int block) const {
    const int length = side ? s.len_k : s.len_q;
    return {clamp(int64_t(block) * say.block, 0, length), clamp(int64_t(block + 1) * say.block, 0, length)};
  }
  ATTUNE_HD char* token(int side, Role r, const Sequence& s, int n, int head) const {
    return side ? row_address(args[r], s.k_batch, s.k_first + n, head)
                : row_address(args[r], s.q_batch, s.q_first + n, head);
  }
};

namespace scorer {

ATTUNE_HD inline float number(DType t, const char* row, int d) {
  switch (t) {
    case DType::f32: return reinterpret_cast<const float*>(row)[d];
    case DType::f16: return reinterpret_cast<const F16*>(row)[d];
    default: return reinterpret_cast<const Bf16*>(row)[d];
  }
}
ATTUNE_HD inline void add_number(DType t, char* row, int d, float x) {
  switch (t) {
    case DType::f32: reinterpret_cast<float*>(row)[d] += x; break;
    case DType::f16: { F16& y = reinterpret_cast<F16*>(row)[d]; y = F16(float(y) + x); break; }
    default: { Bf16& y = reinterpret_cast<Bf16*>(row)[d]; y = Bf16(float(y) + x); break; }
  }
}

// A task of either side, queries first: `per_block` items for each block of a side.
struct Task { int side, b, block, n; };
template <class F>
ATTUNE_HD Task task(const Scorer& x, int64_t at, F per_block) {
  const int64_t first = int64_t(x.problem.batch) * x.rows * per_block(0);
  const int side = at >= first;
  if (side) at -= first;
  const int each = per_block(side);
  return {side, int(at / each / x.blocks(side)), int(at / each % x.blocks(side)), int(at % each)};
}
template <class F>
ATTUNE_HD int64_t tasks(const Scorer& x, F per_block) {
  return int64_t(x.problem.batch) * (int64_t(x.rows) * per_block(0) + int64_t(x.columns) * per_block(1));
}

// w1 and the projections as one matrix per side: 2 x nets x hidden tasks.
struct Mix {
  ATTUNE_HD static int64_t tasks(const Scorer& x) { return int64_t(2) * x.nets * x.say.hidden; }
  ATTUNE_HD static void run(const Scorer& x, int64_t at, Lane lane) {
    const int hidden = x.say.hidden, unit = int(at % hidden), net = int(at / hidden % x.nets);
    const int side = int(at / hidden / x.nets), dim = x.dim();
    const float* w1 = x.w1.at(unit, net) + side * dim;
    float* mix = x.mix_of(x.mix, side, net);
    for (int d = lane.at; d < dim; d += lane.count) {
      float sum = 0;
      for (int e = 0; e < dim; ++e) sum += w1[e] * x.project[side].at(e, 0)[d];
      mix[int64_t(d) * hidden + unit] = sum;
    }
    if (lane.at) return;
    float sum = side ? 0 : x.b1.at(0, net)[unit];
    for (int e = 0; e < dim; ++e) sum += w1[e] * x.project_bias[side].at(0, 0)[e];
    x.offset[side][int64_t(net) * hidden + unit] = sum;
  }
};

// The mean of a block's tokens; 0 if it has none.
struct Mean {
  struct Each {
    const Scorer& x;
    ATTUNE_HD int operator()(int side) const { return x.heads(side); }
  };
  ATTUNE_HD static int64_t tasks(const Scorer& x) { return scorer::tasks(x, Each{x}); }
  ATTUNE_HD static void run(const Scorer& x, int64_t at, Lane lane) {
    const Task t = task(x, at, Each{x});
    const Sequence s = sequence(x.problem, x.args, t.b);
    const Rows rows = x.tokens(t.side, s, t.block);
    const Role role = t.side ? Role::k : Role::q;
    const DType type = x.args[role].dtype;
    float* to = x.mean_of(t.side, t.b, t.block, t.n);
    for (int d = lane.at; d < x.dim(); d += lane.count) {
      float sum = 0;
      for (int n = rows.first; n < rows.last; ++n) sum += number(type, x.token(t.side, role, s, n, t.n), d);
      to[d] = rows.first < rows.last ? sum / float(rows.last - rows.first) : 0.f;
    }
  }
};

struct EachTerm {
  const Scorer& x;
  ATTUNE_HD int operator()(int side) const { return x.sides(side); }
};

// Each side's summand in relu.
struct Term {
  ATTUNE_HD static int64_t tasks(const Scorer& x) { return scorer::tasks(x, EachTerm{x}); }
  ATTUNE_HD static void run(const Scorer& x, int64_t at, Lane lane) {
    const Task t = task(x, at, EachTerm{x});
    const int hidden = x.say.hidden, net = x.net(t.n);
    const float* mean = x.mean_of(t.side, t.b, t.block, x.mean_head(t.side, t.n));
    const float* mix = x.mix_of(x.mix, t.side, net);
    float* to = x.term_of(t.side, t.b, t.block, t.n);
    for (int unit = lane.at; unit < hidden; unit += lane.count) {
      float sum = x.offset[t.side][int64_t(net) * hidden + unit];
      for (int d = 0; d < x.dim(); ++d) sum += mix[int64_t(d) * hidden + unit] * mean[d];
      to[unit] = sum;
    }
  }
};

// A block row: the gradient of its query term, and its contribution to those of w2, b2 and the temperature.
struct RowGradient {
  ATTUNE_HD static int64_t tasks(const Scorer& x) {
    return int64_t(x.problem.batch) * x.rows * x.problem.heads_q;
  }
  ATTUNE_HD static void run(const Scorer& x, int64_t at, Lane lane) {
    const int head = int(at % x.problem.heads_q), row = int(at / x.problem.heads_q % x.rows);
    const int b = int(at / x.problem.heads_q / x.rows), hidden = x.say.hidden, bound = x.problem.mask.blocks.bound;
    const int32_t* begin = x.list(b, head);
    const int first = clamp(begin[row], 0, bound), last = clamp(begin[row + 1], first, bound);
    const float *mine = x.term_of(0, b, row, head), *w2 = x.w2.at(0, x.net(head));
    float *d_term = x.d_term[0] + at * hidden, *partial = x.partial + at * (hidden + 2);
    const float scale = 1.f / x.temperature();  // from the gradient of a score to that of the output of w2 and b2
    for (int unit = lane.at; unit < hidden; unit += lane.count) {
      float d_mine = 0, d_w2 = 0;
      for (int n = first; n < last; ++n) {
        const int j = clamp(x.column[n], 0, x.columns - 1);
        const float before = mine[unit] + x.term_of(1, b, j, x.unit(head))[unit], g = scale * x.d_entry[n];
        if (before > 0) d_w2 += g * before, d_mine += g * w2[unit];
      }
      d_term[unit] = d_mine, partial[unit] = d_w2;
    }
    if (lane.at) return;
    float d_b2 = 0, d_log = 0;
    for (int n = first; n < last; ++n) d_b2 += scale * x.d_entry[n], d_log -= x.d_entry[n] * x.scores[n];
    partial[hidden] = d_b2, partial[hidden + 1] = expf(*x.log_temperature) > kLeastTemperature ? d_log : 0.f;
  }
};

// The first entry of a row, whose entries ascend, that is not below block j.
ATTUNE_HD inline int find_entry(const Scorer& x, int first, int last, int j) {
  while (first < last) {
    const int middle = first + (last - first) / 2;
    if (x.column[middle] < j) first = middle + 1;
    else last = middle;
  }
  return first;
}

// A key block: the gradient of its term, over all rows and heads that list it.
struct KeyGradient {
  ATTUNE_HD static int64_t tasks(const Scorer& x) { return int64_t(x.problem.batch) * x.columns * x.units; }
  ATTUNE_HD static void run(const Scorer& x, int64_t at, Lane lane) {
    const int n = int(at % x.units), j = int(at / x.units % x.columns), b = int(at / x.units / x.columns);
    const int hidden = x.say.hidden, bound = x.problem.mask.blocks.bound, heads = x.say.per_head ? 1 : x.group();
    const float* mine = x.term_of(1, b, j, n);
    float* d_term = x.d_term[1] + at * hidden;
    const float scale = 1.f / x.temperature();
    for (int unit = lane.at; unit < hidden; unit += lane.count) {
      float sum = 0;
      for (int head = n * heads; head < (n + 1) * heads; ++head) {
        const float w2 = x.w2.at(0, x.net(head))[unit];
        const int32_t *begin = x.list(b, head);
        const int32_t* begin_k = x.begin_k + (int64_t(b) * x.problem.heads_q + head) * (x.columns + 1);
        for (int k = clamp(begin_k[j], 0, bound); k < clamp(begin_k[j + 1], 0, bound); ++k) {
          const int i = clamp(x.row_k[k], 0, x.rows - 1), last = clamp(begin[i + 1], 0, bound);
          const int entry = find_entry(x, clamp(begin[i], 0, bound), last, j);
          if (entry < last && x.term_of(0, b, i, head)[unit] + mine[unit] > 0) sum += scale * x.d_entry[entry] * w2;
        }
      }
      d_term[unit] = sum;
    }
  }
};

// The gradient of mix and offset: 2 x nets x dim tasks, each a sum over all blocks.
struct MixGradient {
  ATTUNE_HD static int64_t tasks(const Scorer& x) { return int64_t(2) * x.nets * x.dim(); }
  ATTUNE_HD static void run(const Scorer& x, int64_t at, Lane lane) {
    const int dim = x.dim(), hidden = x.say.hidden, d = int(at % dim), net = int(at / dim % x.nets);
    const int side = int(at / dim / x.nets), first = x.say.per_head ? net : 0;
    const int last = x.say.per_head ? net + 1 : x.sides(side);
    for (int unit = lane.at; unit < hidden; unit += lane.count) {
      float sum = 0, all = 0;
      for (int b = 0; b < x.problem.batch; ++b)
        for (int block = 0; block < x.blocks(side); ++block)
          for (int n = first; n < last; ++n) {
            const float g = x.d_term[side][x.vector(side, b, block, n) * hidden + unit];
            sum += g * x.mean_of(side, b, block, x.mean_head(side, n))[d];
            all += g;
          }
      x.mix_of(x.d_mix, side, net)[int64_t(d) * hidden + unit] = sum;
      if (!d) x.d_offset[side][int64_t(net) * hidden + unit] = all;
    }
  }
};

// d_w1 and d_b1, one row of each per task: 2 x nets x hidden tasks.
struct FirstLayerGradient {
  ATTUNE_HD static int64_t tasks(const Scorer& x) { return int64_t(2) * x.nets * x.say.hidden; }
  ATTUNE_HD static void run(const Scorer& x, int64_t at, Lane lane) {
    const int hidden = x.say.hidden, unit = int(at % hidden), net = int(at / hidden % x.nets);
    const int side = int(at / hidden / x.nets), dim = x.dim();
    const float offset = x.d_offset[side][int64_t(net) * hidden + unit];
    const float* d_mix = x.mix_of(x.d_mix, side, net);
    for (int e = lane.at; x.d_w1.data && e < dim; e += lane.count) {
      float sum = offset * x.project_bias[side].at(0, 0)[e];
      for (int d = 0; d < dim; ++d) sum += d_mix[int64_t(d) * hidden + unit] * x.project[side].at(e, 0)[d];
      x.d_w1.at(unit, net)[side * dim + e] = sum;
    }
    if (!lane.at && !side && x.d_b1.data) x.d_b1.at(0, net)[unit] = offset;
  }
};

// d_wq, d_bq, d_wk and d_bk, one row of each per task: 2 x dim tasks.
struct ProjectionGradient {
  ATTUNE_HD static int64_t tasks(const Scorer& x) { return int64_t(2) * x.dim(); }
  ATTUNE_HD static void run(const Scorer& x, int64_t at, Lane lane) {
    const int dim = x.dim(), hidden = x.say.hidden, e = int(at % dim), side = int(at / dim);
    for (int d = lane.at; x.d_project[side].data && d < dim; d += lane.count) {
      float sum = 0;
      for (int net = 0; net < x.nets; ++net)
        for (int unit = 0; unit < hidden; ++unit)
          sum += x.w1.at(unit, net)[side * dim + e] * x.mix_of(x.d_mix, side, net)[int64_t(d) * hidden + unit];
      x.d_project[side].at(e, 0)[d] = sum;
    }
    if (lane.at || !x.d_project_bias[side].data) return;
    float sum = 0;
    for (int net = 0; net < x.nets; ++net)
      for (int unit = 0; unit < hidden; ++unit)
        sum += x.w1.at(unit, net)[side * dim + e] * x.d_offset[side][int64_t(net) * hidden + unit];
    x.d_project_bias[side].at(0, 0)[e] = sum;
  }
};

// d_w2, d_b2 and d_log_temperature: nets tasks, each a sum over all rows.
struct LastLayerGradient {
  ATTUNE_HD static int64_t tasks(const Scorer& x) { return x.nets; }
  ATTUNE_HD static void run(const Scorer& x, int64_t at, Lane lane) {
    const int hidden = x.say.hidden, heads = x.problem.heads_q, net = int(at);
    const int first = x.say.per_head ? net : 0, last = x.say.per_head ? net + 1 : heads;
    for (int unit = lane.at; unit < hidden + 2; unit += lane.count) {
      const bool temperature = unit == hidden + 1;
      if (temperature && net) continue;  // one for all networks
      float sum = 0;
      for (int64_t row = 0; row < int64_t(x.problem.batch) * x.rows; ++row)
        for (int h = temperature ? 0 : first; h < (temperature ? heads : last); ++h)
          sum += x.partial[(row * heads + h) * (hidden + 2) + unit];
      if (unit < hidden && x.d_w2.data) x.d_w2.at(0, net)[unit] = sum;
      if (unit == hidden && x.d_b2.data) x.d_b2.at(0, net)[0] = sum;
      if (temperature && x.d_log_temperature) *x.d_log_temperature = sum;
    }
  }
};

// From a block's term back to its tokens.
struct TokenGradient {
  ATTUNE_HD static int64_t tasks(const Scorer& x) { return scorer::tasks(x, Mean::Each{x}); }
  ATTUNE_HD static void run(const Scorer& x, int64_t at, Lane lane) {
    const Task t = task(x, at, Mean::Each{x});
    const Role role = t.side ? Role::dk : Role::dq;
    const Sequence s = sequence(x.problem, x.args, t.b);
    const Rows rows = x.tokens(t.side, s, t.block);
    if (!x.args.given(role) || rows.first >= rows.last) return;
    const int hidden = x.say.hidden, many = t.side && x.say.per_head ? x.group() : 1;
    for (int d = lane.at; d < x.dim(); d += lane.count) {
      float sum = 0;
      for (int n = t.n * many; n < (t.n + 1) * many; ++n) {
        const float* mix = x.mix_of(x.mix, t.side, x.net(n)) + int64_t(d) * hidden;
        const float* d_term = x.d_term[t.side] + x.vector(t.side, t.b, t.block, n) * hidden;
        for (int unit = 0; unit < hidden; ++unit) sum += mix[unit] * d_term[unit];
      }
      sum /= float(rows.last - rows.first);
      for (int n = rows.first; n < rows.last; ++n)
        add_number(x.args[role].dtype, x.token(t.side, role, s, n, t.n), d, sum);
    }
  }
};

}  // namespace scorer
}  // namespace attune
