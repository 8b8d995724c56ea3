#include "variants/scorer.h"

#include <algorithm>
#include <cmath>

#include "machine/cpu/each.h"

namespace attune::cpu {
namespace {

template <class... Step>
void steps(const Scorer& x) {
  (each_task(Step::tasks(x), 4, [&](int64_t n) { Step::run(x, n, {}); }), ...);
}

// Steps of core/scorer.h with their loops exchanged: many sums at once, in vectors, and each has its terms in the order
// it has there, so that its bits are the same.
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
    for (int i = rows.first; i < rows.last; ++i) {
      const T* row = reinterpret_cast<const T*>(x.token(t.side, t.side ? Role::k : Role::q, s, i, t.n)) + first;
      for (int d = 0; d < n; ++d) sums[d] += float(row[d]);
    }
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

float noise(const Scorer& x, int list, int row, int j) {
  if (!x.noise) return 0;
  const uint32_t word = noise_word(uint64_t(x.noise[0]), uint64_t(x.noise[1]), list, row, j);
  const float u = std::min((float(word) + 0.5f) * 0x1p-32f, 1.f - 0x1p-24f);
  return -std::log(-std::log(u));
}

void choose(const Scorer& x, int list, int row, const ChooserRoom& room) {
  const int b = list / x.problem.heads_q, head = list % x.problem.heads_q, bound = x.problem.mask.blocks.bound;
  const Sequence s = sequence(x.problem, x.args, b);
  const Rows shown = BlockGrid{s.band, s.len_q, s.len_k, x.problem.mask.blocks}.shown(row);
  const int32_t* begin = x.list(b, head);
  const int place = clamp(begin[row], 0, bound), keep = clamp(begin[row + 1], place, bound) - place;
  if (!keep) return;
  const float *mine = x.term_of(0, b, row, head), *w2 = x.w2.at(0, x.net(head));
  const float offset = *x.b2.at(0, x.net(head)), temperature = x.temperature();
  constexpr int kAtOnce = 4;  // sums that do not wait for each other
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

void score_blocks(const Scorer& x, const ChooserRoom* room, int workers) {
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
  steps<Mix, Mean, Term, scorer::RowGradient, scorer::KeyGradient, scorer::MixGradient,
        scorer::FirstLayerGradient, scorer::ProjectionGradient, scorer::LastLayerGradient, scorer::TokenGradient>(x);
}

}  // namespace attune::cpu
