// SPDX-License-Identifier: Apache-2.0
// Pairs of a backward under a formula: up to 64 queries of a tile against one key after another.
#pragma once
#include "attention/cpu/formula/lanes.h"
#include "attention/cpu/unit.h"

namespace attune::cpu {

struct FormulaPairs {
  static constexpr int kLanes = FormulaLanes::kLanes;
  FormulaLanes& lanes;
  const Unit& unit;
  int count;  // queries; the other lanes hold nothing
  float score[kLanes] = {}, weight[kLanes] = {}, keep[kLanes] = {};  // score: base 2
  double d_score[kLanes] = {}, d_s[kLanes] = {};

  FormulaPairs(FormulaLanes& all, const Unit& u, int first_row, int n) : lanes(all), unit(u), count(n) {
    int64_t position[kLanes];
    int head[kLanes];
    for (int l = 0; l < n; ++l)
      position[l] = u.seq.band.q_position(u.position(first_row + l)), head[l] = u.head(first_row + l);
    if (n > 0) lanes.queries(u.seq, u.b, position, head, n);
  }

  // Moves to key j; logit(l) is the base-2 logit of lane l.
  template <class Logit>
  void meet(int j, Logit logit) {
    lanes.key(unit.seq.band.k_position(j));
    for (int l = 0; l < count; ++l) score[l] = logit(l);
    if (!lanes.scores()) return;
    double s[kLanes];
    for (int l = 0; l < kLanes; ++l) s[l] = double(score[std::min(l, count - 1)]) / double(kLog2e);
    const double* scored = lanes.score(s);
    for (int l = 0; l < count; ++l) score[l] = in_base_2(scored[l]);
  }
  bool visible(int l) const { return !lanes.masks() || lanes.mask()[l] != 0; }
  void differentiate() {
    std::fill(d_score + count, d_score + kLanes, 0.);
    if (lanes.scores()) lanes.gradients(d_score, d_s);
    else std::copy_n(d_score, kLanes, d_s);
  }
};

// The same for one pair.
struct ScoreOfPair {
  FormulaLanes& lanes;
  bool visible = true;

  ScoreOfPair(FormulaLanes& all, const Unit& u, int row, int j) : lanes(all) {
    if (!lanes.scores() && !lanes.masks()) return;
    const int64_t position = u.seq.band.q_position(u.position(row));
    const int head = u.head(row);
    lanes.queries(u.seq, u.b, &position, &head, 1);
    lanes.key(u.seq.band.k_position(j));
    visible = !lanes.masks() || lanes.mask()[0] != 0;
  }
  float operator()(float logit) {
    if (!lanes.scores()) return logit;
    double s[FormulaLanes::kLanes];
    std::fill_n(s, FormulaLanes::kLanes, double(logit) / double(kLog2e));
    return in_base_2(lanes.score(s)[0]);
  }
  float gradient(float d) {
    if (!lanes.scores()) return d;
    double d_score[FormulaLanes::kLanes] = {d}, d_s[FormulaLanes::kLanes];
    lanes.gradients(d_score, d_s);
    return float(d_s[0]);
  }
};

}  // namespace attune::cpu
