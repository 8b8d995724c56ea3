// SPDX-License-Identifier: Apache-2.0
// A formula for up to 64 pairs at once, node by node: one side of the pairs varies from lane to lane, the other is
// fixed. What depends only on the lanes (doc[k] in a forward) is computed once for all rows that meet them. Numbers are
// double, as in the definition, so a mask hides the same pairs as the reference.
#pragma once
#include "core/formula/block_bounds.h"
#include "core/formula/of_problem.h"

namespace attune::cpu {

// What a run knows of its formula; shared by its workers.
struct FormulaCall {
  Formula formula{};
  FormulaBounds bounds{};
  const Args* args = nullptr;
  int group = 1;                    // query heads per KV head
  double* d_array[kMostArrays]{};   // sums of gradients, in double; null: added to the tensor itself
  int64_t sums[kMostArrays]{};      // their numbers
  bool alone = true;                // no other worker adds to gradients

  explicit operator bool() const { return formula.mask >= 0 || formula.score >= 0; }
  BoxIs decide(const PairBox&) const;
  bool sums_arrays() const;  // a gradient of some array is asked for
};

// Counts and places the arrays' bounds and, for a backward, the sums of gradients.
FormulaCall carve_formula(Workspace&, const Problem&);
// Fills them in. `given`: the arguments, which outlive the call.
void begin_formula(const Problem&, const Args& given, FormulaCall&);
// Writes the gradients of arrays from their sums.
void store_formula(const Problem&, const FormulaCall&);

class FormulaLanes {
 public:
  static constexpr int kLanes = 64;
  enum Leaf : uint8_t { kQ = 1, kK = 2, kH = 4, kS = 8 };
  struct Scratch { double *value = nullptr, *slope = nullptr; };
  static Scratch carve(Workspace&, const Problem&);

  FormulaLanes(const FormulaCall&, const Scratch&, uint8_t lane_leaves);

  // Lanes are keys at positions first, first + step, ...
  void keys(const Sequence&, int b, int64_t first, int64_t step, int n);
  void query(int64_t position, int head);  // fixed
  // Lanes are queries: n positions and heads.
  void queries(const Sequence&, int b, const int64_t* position, const int* head, int n);
  void key(int64_t position);              // fixed

  bool masks() const { return f_.mask >= 0; }
  bool scores() const { return f_.score >= 0; }
  const double* mask() const { return lane(f_.mask); }  // 1: visible
  void hide(int n, float* x) const;                     // -inf where the mask hides
  const double* score(const double* s);                 // of the logits in base e
  // d_s from the gradient of the last score; adds the gradients of arrays.
  void gradients(const double* d_score, double* d_s);

 private:
  double* lane(int node) const { return x_.value + int64_t(node) * kLanes; }
  double* slope(int node) const { return x_.slope + int64_t(node) * kLanes; }
  void fill(Op leaf, double x);
  void compute(const int16_t* nodes, int count);
  void element(int node);
  void begin(const Sequence&, int b, int n);
  int64_t place(const FormulaNode&, int l) const;
  void add_to_array(const FormulaNode&, const double* d);
  void add_slopes(const FormulaNode&, const double* d);

  const FormulaCall& call_;
  const Formula& f_;
  Scratch x_;
  uint8_t depends_[kMostNodes]{}, lane_leaves_;
  int16_t of_lanes_[kMostNodes], of_rows_[kMostNodes], of_s_[kMostNodes];  // nodes, by when they are computed
  int16_t leaves_[kMostNodes];
  int lanes_count_ = 0, rows_count_ = 0, s_count_ = 0, leaves_count_ = 0;
  int n_ = kLanes;
};

}  // namespace attune::cpu
