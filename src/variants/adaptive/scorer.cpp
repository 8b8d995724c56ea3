// SPDX-License-Identifier: Apache-2.0
#include "variants/adaptive/scorer.h"

#include <algorithm>
#include <cmath>

#include "machine/cpu/each.h"

namespace attune::cpu {
namespace {

template <class... Step>
void steps(const Scorer& x) {
  (each_task(Step::tasks(x), 4, [&](int64_t n) { Step::run(x, n, {}); }), ...);
}

// Steps of core/variant/scorer.h with their loops exchanged: many sums at once, in vectors. Each sum keeps its order of
// terms.
constexpr int kSums = 64;

template <class Init, class Add>
void many_sums(int count, Init init, Add add) {  // add(sums, first, n)
  for (int first = 0; first < count; first += kSums) {
    float sums[kSums];
    const int n = std::min(kSums, count - first);
    for (int i = 0; i < n; ++i) sums[i] = init(first + i);
    add(sums, first, n);
  }
}

struct Mix : scorer::Mix {
  static void run(const Scorer& x, int64_t at, Lane) {
    const int hidden = x.say.hidden, unit = int(at % hidden), net = int(at / hidden % x.nets);
    const int side = int(at / hidden / x.nets), dim = x.dim();
    const float* w1 = x.w1.at(unit, net) + side * dim;
    float* mix = x.mix_of(x.mix, side, net);
    many_sums(dim, [](int) { return 0.f; }, [&](float* __restrict sums, int first, int n) {
      for (int e = 0; e < dim; ++e) {
        const float* row = x.project[side].at(e, 0) + first;
        for (int d = 0; d < n; ++d) sums[d] += w1[e] * row[d];
      }
      for (int d = 0; d < n; ++d) mix[int64_t(first + d) * hidden + unit] = sums[d];
    });
    float sum = side ? 0 : x.b1.at(0, net)[unit];
    for (int e = 0; e < dim; ++e) sum += w1[e] * x.project_bias[side].at(0, 0)[e];
    x.offset[side][int64_t(net) * hidden + unit] = sum;
  }
};

template <class T>
void mean_of_rows(const Scorer& x, const scorer::Task& t, const Sequence& s, Rows rows, float* to) {
  many_sums(x.dim(), [](int) { return 0.f; }, [&](float* __restrict sums, int first, int n) {
    const auto row = [&](int i) {
      return reinterpret_cast<const T*>(x.token(t.side, t.side ? Role::k : Role::q, s, i, t.n)) + first;
    };
    int i = rows.first;
    for (; i + 4 <= rows.last; i += 4) {  // loads and stores each sum once per four terms
      const T* const four[4] = {row(i), row(i + 1), row(i + 2), row(i + 3)};
      for (int d = 0; d < n; ++d)
        sums[d] = sums[d] + float(four[0][d]) + float(four[1][d]) + float(four[2][d]) + float(four[3][d]);
    }
    for (; i < rows.last; ++i)
      for (int d = 0; d < n; ++d) sums[d] += float(row(i)[d]);
    for (int d = 0; d < n; ++d)
      to[first + d] = rows.first < rows.last ? sums[d] / float(rows.last - rows.first) : 0.f;
  });
}

struct Mean : scorer::Mean {
  static void run(const Scorer& x, int64_t at, Lane) {
    const scorer::Task t = scorer::task(x, at, Each{x});
    const Sequence s = sequence(x.problem, x.args, t.b);
    const Rows rows = x.tokens(t.side, s, t.block);
    float* const to = x.mean_of(t.side, t.b, t.block, t.n);
    switch (x.args[t.side ? Role::k : Role::q].dtype) {
      case DType::f32: return mean_of_rows<float>(x, t, s, rows, to);
      case DType::f16: return mean_of_rows<F16>(x, t, s, rows, to);
      default: return mean_of_rows<Bf16>(x, t, s, rows, to);
    }
  }
};

struct Term : scorer::Term {
  static void run(const Scorer& x, int64_t at, Lane) {
    const scorer::Task t = scorer::task(x, at, scorer::EachTerm{x});
    const int hidden = x.say.hidden, net = x.net(t.n);
    const float* mean = x.mean_of(t.side, t.b, t.block, x.mean_head(t.side, t.n));
    const float *mix = x.mix_of(x.mix, t.side, net), *offset = x.offset[t.side] + int64_t(net) * hidden;
    float* to = x.term_of(t.side, t.b, t.block, t.n);
    many_sums(hidden, [&](int unit) { return offset[unit]; }, [&](float* __restrict sums, int first, int n) {
      for (int d = 0; d < x.dim(); ++d) {
        const float* row = mix + int64_t(d) * hidden + first;
        for (int unit = 0; unit < n; ++unit) sums[unit] += row[unit] * mean[d];
      }
      std::copy_n(sums, n, to + first);
    });
  }
};

struct MixGradient : scorer::MixGradient {
  static void run(const Scorer& x, int64_t at, Lane) {
    const int dim = x.dim(), hidden = x.say.hidden, d = int(at % dim), net = int(at / dim % x.nets);
    const int side = int(at / dim / x.nets), heads = x.say.per_head ? 1 : x.sides(side);
    const int64_t terms = int64_t(x.problem.batch) * x.blocks(side) * heads;
    struct Factor { const float* g; float mean; };
    const auto factor = [&](int64_t n) {  // in the order of batch, block and head
      const int head = x.say.per_head ? net : int(n % heads), block = int(n / heads % x.blocks(side));
      const int b = int(n / heads / x.blocks(side));
      return Factor{x.d_term[side] + x.vector(side, b, block, head) * hidden,
                    x.mean_of(side, b, block, x.mean_head(side, head))[d]};
    };
    many_sums(hidden, [](int) { return 0.f; }, [&](float* __restrict sums, int first, int n) {
      int64_t term = 0;
      for (; term + 4 <= terms; term += 4) {  // loads and stores each sum once per four terms
        const Factor f[4] = {factor(term), factor(term + 1), factor(term + 2), factor(term + 3)};
        for (int i = first; i < first + n; ++i) {
          float sum = sums[i - first];
          for (const Factor& one : f) sum += one.g[i] * one.mean;
          sums[i - first] = sum;
        }
      }
      for (; term < terms; ++term) {
        const Factor f = factor(term);
        for (int i = 0; i < n; ++i) sums[i] += f.g[first + i] * f.mean;
      }
      std::copy_n(sums, n, x.mix_of(x.d_mix, side, net) + int64_t(d) * hidden + first);
    });
    if (d) return;
    float* const offset = x.d_offset[side] + int64_t(net) * hidden;
    std::fill_n(offset, hidden, 0.f);
    for (int64_t term = 0; term < terms; ++term) {
      const float* g = factor(term).g;
      for (int i = 0; i < hidden; ++i) offset[i] += g[i];
    }
  }
};

// sums[d] += the product of row d and a vector with elements vector(i).
template <class Vector>
void add_products(const float* matrix, int64_t stride, int rows, int columns, Vector vector, float* sums) {
  constexpr int kAtOnce = 8;  // independent sums
  for (int first = 0; first < rows; first += kAtOnce) {
    const float* row[kAtOnce];
    float sum[kAtOnce];
    const int n = std::min(kAtOnce, rows - first);
    for (int d = 0; d < kAtOnce; ++d) {
      row[d] = matrix + (first + std::min(d, n - 1)) * stride;
      sum[d] = sums[first + std::min(d, n - 1)];
    }
    for (int i = 0; i < columns; ++i)
      for (int d = 0; d < kAtOnce; ++d) sum[d] += row[d][i] * vector(i);
    std::copy_n(sum, n, sums + first);
  }
}

struct KeyGradient : scorer::KeyGradient {
  static void run(const Scorer& x, int64_t at, Lane) {
    const int unit = int(at % x.units), j = int(at / x.units % x.columns), b = int(at / x.units / x.columns);
    const int hidden = x.say.hidden, bound = x.problem.mask.blocks.bound, heads = x.say.per_head ? 1 : x.group();
    const float* const term = x.term_of(1, b, j, unit);
    const float scale = 1.f / x.temperature();
    many_sums(hidden, [](int) { return 0.f; }, [&](float* __restrict sums, int first, int n) {
      const float* const mine = term + first;
      for (int head = unit * heads; head < (unit + 1) * heads; ++head) {
        const float* const w2 = x.w2.at(0, x.net(head)) + first;
        const int32_t *begin = x.list(b, head);
        const int32_t* begin_k = x.begin_k + (int64_t(b) * x.problem.heads_q + head) * (x.columns + 1);
        for (int k = clamp(begin_k[j], 0, bound); k < clamp(begin_k[j + 1], 0, bound); ++k) {
          const int i = clamp(x.row_k[k], 0, x.rows - 1), last = clamp(begin[i + 1], 0, bound);
          const int entry = scorer::find_entry(x, clamp(begin[i], 0, bound), last, j);
          if (entry >= last) continue;
          const float* const theirs = x.term_of(0, b, i, head) + first;
          const float g = scale * x.d_entry[entry];
          for (int d = 0; d < n; ++d) sums[d] = theirs[d] + mine[d] > 0 ? sums[d] + g * w2[d] : sums[d];
        }
      }
      std::copy_n(sums, n, x.d_term[1] + at * hidden + first);
    });
  }
};

struct FirstLayerGradient : scorer::FirstLayerGradient {
  static void run(const Scorer& x, int64_t at, Lane) {
    const int hidden = x.say.hidden, unit = int(at % hidden), net = int(at / hidden % x.nets);
    const int side = int(at / hidden / x.nets), dim = x.dim();
    const float offset = x.d_offset[side][int64_t(net) * hidden + unit];
    const float *const d_mix = x.mix_of(x.d_mix, side, net), *const bias = x.project_bias[side].at(0, 0);
    if (x.d_w1.data)
      many_sums(dim, [&](int e) { return offset * bias[e]; }, [&](float* sums, int first, int n) {
        add_products(x.project[side].at(first, 0), x.project[side].row, n, dim,
                     [&](int d) { return d_mix[int64_t(d) * hidden + unit]; }, sums);
        std::copy_n(sums, n, x.d_w1.at(unit, net) + side * dim + first);
      });
    if (!side && x.d_b1.data) x.d_b1.at(0, net)[unit] = offset;
  }
};

struct ProjectionGradient : scorer::ProjectionGradient {
  static void run(const Scorer& x, int64_t at, Lane) {
    const int dim = x.dim(), hidden = x.say.hidden, e = int(at % dim), side = int(at / dim);
    const auto w1 = [&](int unit, int net) { return x.w1.at(unit, net)[side * dim + e]; };
    if (x.d_project[side].data)
      many_sums(dim, [](int) { return 0.f; }, [&](float* sums, int first, int n) {
        for (int net = 0; net < x.nets; ++net)
          add_products(x.mix_of(x.d_mix, side, net) + int64_t(first) * hidden, hidden, n, hidden,
                       [&](int unit) { return w1(unit, net); }, sums);
        std::copy_n(sums, n, x.d_project[side].at(e, 0) + first);
      });
    if (!x.d_project_bias[side].data) return;
    float sum = 0;
    for (int net = 0; net < x.nets; ++net)
      for (int unit = 0; unit < hidden; ++unit) sum += w1(unit, net) * x.d_offset[side][int64_t(net) * hidden + unit];
    x.d_project_bias[side].at(0, 0)[e] = sum;
  }
};

template <class T>
void add_to_row(char* row, int first, int n, const float* __restrict sums) {
  T* const to = reinterpret_cast<T*>(row) + first;
  for (int d = 0; d < n; ++d) to[d] = T(float(to[d]) + sums[d]);
}

struct TokenGradient : scorer::TokenGradient {
  static void run(const Scorer& x, int64_t at, Lane) {
    const scorer::Task t = scorer::task(x, at, scorer::Mean::Each{x});
    const Role role = t.side ? Role::dk : Role::dq;
    const Sequence s = sequence(x.problem, x.args, t.b);
    const Rows rows = x.tokens(t.side, s, t.block);
    if (!x.args.given(role) || rows.first >= rows.last) return;
    const int hidden = x.say.hidden, many = t.side && x.say.per_head ? x.group() : 1;
    const DType type = x.args[role].dtype;
    many_sums(x.dim(), [](int) { return 0.f; }, [&](float* __restrict sums, int first, int n) {
      for (int head = t.n * many; head < (t.n + 1) * many; ++head)
        add_products(x.mix_of(x.mix, t.side, x.net(head)) + int64_t(first) * hidden, hidden, n, hidden,
                     [g = x.d_term[t.side] + x.vector(t.side, t.b, t.block, head) * hidden](int i) { return g[i]; },
                     sums);
      for (int d = 0; d < n; ++d) sums[d] /= float(rows.last - rows.first);
      for (int i = rows.first; i < rows.last; ++i) {
        char* const row = x.token(t.side, role, s, i, t.n);
        if (type == DType::f32) add_to_row<float>(row, first, n, sums);
        else if (type == DType::f16) add_to_row<F16>(row, first, n, sums);
        else add_to_row<Bf16>(row, first, n, sums);
      }
    });
  }
};

float noise(const Scorer& x, int list, int row, int j) {
  if (!x.noise) return 0;
  const uint32_t word = noise_word(uint64_t(x.noise[0]), uint64_t(x.noise[1]), list, row, j);
  const float u = std::min((float(word) + 0.5f) * 0x1p-32f, 1.f - 0x1p-24f);
  return -std::log(-std::log(u));
}

void choose(const Scorer& x, int list, int row, const ChooserBuffers& room) {
  const int b = list / x.problem.heads_q, head = list % x.problem.heads_q, bound = x.problem.mask.blocks.bound;
  const Sequence s = sequence(x.problem, x.args, b);
  const Rows shown = BlockGrid{s.band, s.len_q, s.len_k, x.problem.mask.blocks}.shown(row);
  const int32_t* begin = x.list(b, head);
  const int place = clamp(begin[row], 0, bound), keep = clamp(begin[row + 1], place, bound) - place;
  if (!keep) return;
  const float *mine = x.term_of(0, b, row, head), *w2 = x.w2.at(0, x.net(head));
  const float offset = *x.b2.at(0, x.net(head)), temperature = x.temperature();
  constexpr int kAtOnce = 4;  // independent sums
  for (int first = shown.first; first < shown.last; first += kAtOnce) {
    const float* theirs[kAtOnce];
    float sum[kAtOnce] = {};
    const int last = std::min(first + kAtOnce, shown.last);
    for (int n = 0; n < kAtOnce; ++n) theirs[n] = x.term_of(1, b, std::min(first + n, last - 1), x.unit(head));
    for (int unit = 0; unit < x.say.hidden; ++unit)
      for (int n = 0; n < kAtOnce; ++n) sum[n] += w2[unit] * std::max(0.f, mine[unit] + theirs[n][unit]);
    for (int j = first; j < last; ++j) {
      room.score[j] = (sum[j - first] + offset) / temperature;
      room.key[j] = room.score[j] + noise(x, list, row, j);
      room.order[j] = j;
    }
  }
  int32_t *from = room.order + shown.first, *to = room.order + shown.last;
  std::nth_element(from, from + keep - 1, to, [&](int32_t i, int32_t j) {
    return room.key[i] > room.key[j] || (room.key[i] == room.key[j] && i < j);
  });
  std::sort(from, from + keep);
  for (int n = 0; n < keep; ++n) x.column[place + n] = from[n], x.scores[place + n] = room.score[from[n]];
}

}  // namespace

void score_blocks(const Scorer& x, const ChooserBuffers* room, int workers) {
  steps<Mix, Mean, Term>(x);
  const int64_t lists = int64_t(x.problem.batch) * x.problem.heads_q;
  each_task(lists * x.rows, 4, workers, [&](int64_t n, int worker) {
    choose(x, int(n / x.rows), int(n % x.rows), room[worker]);
  });
  const int bound = x.problem.mask.blocks.bound;
  const int end = clamp(x.list(x.problem.batch - 1, x.problem.heads_q - 1)[x.rows], 0, bound);
  std::fill(x.column + end, x.column + bound, -1);
  std::fill(x.scores + end, x.scores + bound, 0.f);
}

void score_gradients(const Scorer& x) {
  steps<Mix, Mean, Term, scorer::RowGradient, KeyGradient, MixGradient, FirstLayerGradient, ProjectionGradient,
        scorer::LastLayerGradient, TokenGradient>(x);
}

}  // namespace attune::cpu
