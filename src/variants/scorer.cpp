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
  const int first = clamp(begin[row], 0, bound), keep = clamp(begin[row + 1], first, bound) - first;
  if (!keep) return;
  const float *mine = x.term_of(0, b, row, head), *w2 = x.w2.at(0, x.net(head));
  const float offset = *x.b2.at(0, x.net(head)), temperature = x.temperature();
  for (int j = shown.first; j < shown.last; ++j) {
    const float* theirs = x.term_of(1, b, j, x.unit(head));
    float sum = 0;
    for (int unit = 0; unit < x.say.hidden; ++unit) sum += w2[unit] * std::max(0.f, mine[unit] + theirs[unit]);
    room.score[j] = (sum + offset) / temperature;
    room.key[j] = room.score[j] + noise(x, list, row, j);
    room.order[j] = j;
  }
  int32_t *from = room.order + shown.first, *to = room.order + shown.last;
  std::nth_element(from, from + keep - 1, to, [&](int32_t i, int32_t j) {
    return room.key[i] > room.key[j] || (room.key[i] == room.key[j] && i < j);
  });
  std::sort(from, from + keep);
  for (int n = 0; n < keep; ++n) x.column[first + n] = from[n], x.scores[first + n] = room.score[from[n]];
}

}  // namespace

void score_blocks(const Scorer& x, const ChooserRoom* room, int workers) {
  steps<scorer::Mix, scorer::Mean, scorer::Term>(x);
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
  steps<scorer::Mix, scorer::Mean, scorer::Term, scorer::RowGradient, scorer::KeyGradient, scorer::MixGradient,
        scorer::FirstLayerGradient, scorer::ProjectionGradient, scorer::LastLayerGradient, scorer::TokenGradient>(x);
}

}  // namespace attune::cpu
