// SPDX-License-Identifier: Apache-2.0
// A formula over a box of pairs at once, in interval arithmetic: from the bounds of q, k and h follow bounds of every
// node. A mask that is false for the whole box lets a kernel skip it, one that is true spares the evaluation. Sound:
// the operations of IEEE 754 are monotone, so the bounds of rounded results are the rounded bounds; results of exp, log
// and tanh, which are not correctly rounded, are widened. For host and device.
#pragma once
#include <cmath>

#include "core/formula/formula.h"
#include "core/number.h"

namespace attune {

// A truth is 0 or 1: hi = 0 is false everywhere, lo = 1 true everywhere.
struct NumberRange {
  double lo = 0, hi = 0;
  bool nan = false;    // may also be NaN
  bool whole = false;  // only whole numbers

  ATTUNE_HD bool single() const { return lo == hi && !nan; }
};

// Pairs of one (batch, KV head): positions and heads, both ends included.
struct PairBox {
  int64_t q_first, q_last, k_first, k_last;
  int32_t h_first, h_last, b, group;  // group: query heads per KV head
  int32_t len_q, len_k;
};

namespace formula {

ATTUNE_HD inline double least(double a, double b) { return b < a ? b : a; }
ATTUNE_HD inline double most(double a, double b) { return a < b ? b : a; }
ATTUNE_HD inline NumberRange anything() { return {-INFINITY, INFINITY, true, false}; }
ATTUNE_HD inline NumberRange whole(int64_t lo, int64_t hi) { return {double(lo), double(hi), false, true}; }
ATTUNE_HD inline NumberRange truth(bool always, bool ever) { return {double(always), double(ever), false, false}; }
ATTUNE_HD inline NumberRange hull(NumberRange a, NumberRange b) {
  return {least(a.lo, b.lo), most(a.hi, b.hi), a.nan || b.nan, a.whole && b.whole};
}
ATTUNE_HD inline bool infinite(NumberRange a) { return a.lo == -INFINITY || a.hi == INFINITY; }

// The bounds of four results; a result that is NaN sets the flag and counts as 0.
ATTUNE_HD inline NumberRange corners(double w, double x, double y, double z, bool nan, bool whole) {
  const double all[4] = {w, x, y, z};
  NumberRange r{INFINITY, -INFINITY, nan, whole};
  for (const double one : all) {
    r.nan |= one != one;
    r.lo = least(r.lo, one != one ? 0 : one), r.hi = most(r.hi, one != one ? 0 : one);
  }
  return r;
}

ATTUNE_HD inline NumberRange add(NumberRange a, NumberRange b) {
  const NumberRange r = {a.lo + b.lo, a.hi + b.hi, a.nan || b.nan, a.whole && b.whole};
  const bool opposed = (a.hi == INFINITY && b.lo == -INFINITY) || (a.lo == -INFINITY && b.hi == INFINITY);
  return r.lo != r.lo || r.hi != r.hi || opposed ? anything() : r;
}
ATTUNE_HD inline NumberRange negative(NumberRange a) { return {-a.hi, -a.lo, a.nan, a.whole}; }
ATTUNE_HD inline NumberRange multiply(NumberRange a, NumberRange b) {
  NumberRange r = corners(a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi, a.nan || b.nan, a.whole && b.whole);
  const bool zero_a = a.lo <= 0 && a.hi >= 0, zero_b = b.lo <= 0 && b.hi >= 0;
  r.nan |= (zero_a && infinite(b)) || (zero_b && infinite(a));
  return r;
}
ATTUNE_HD inline NumberRange divide(NumberRange a, NumberRange b) {
  if (b.lo <= 0 && b.hi >= 0) return anything();
  NumberRange r = corners(a.lo / b.lo, a.lo / b.hi, a.hi / b.lo, a.hi / b.hi, a.nan || b.nan, false);
  r.nan |= infinite(a) && infinite(b);
  return r;
}
ATTUNE_HD inline NumberRange floor_of(NumberRange a) { return {::floor(a.lo), ::floor(a.hi), a.nan, true}; }
ATTUNE_HD inline NumberRange modulo(NumberRange a, NumberRange b) {
  const NumberRange floored = floor_of(divide(a, b));
  NumberRange r = add(a, negative(multiply(b, floored)));
  r.whole = a.whole && b.whole;
  // The quotient of such whole numbers is never rounded up to a whole number.
  constexpr double kExact = 0x1p26;
  if (!r.whole || r.nan || a.lo < -kExact || a.hi > kExact || b.lo < -kExact || b.hi > kExact) return r;
  if (b.lo > 0) r.lo = most(r.lo, 0), r.hi = least(r.hi, b.hi - 1);
  if (b.hi < 0) r.lo = most(r.lo, b.lo + 1), r.hi = least(r.hi, 0);
  return r;
}
ATTUNE_HD inline NumberRange minimum(NumberRange a, NumberRange b) {  // b < a ? b : a
  const NumberRange r{least(a.lo, b.lo), least(a.hi, b.hi), a.nan, a.whole && b.whole};
  return b.nan ? hull(r, a) : r;
}
ATTUNE_HD inline NumberRange maximum(NumberRange a, NumberRange b) {  // a < b ? b : a
  const NumberRange r{most(a.lo, b.lo), most(a.hi, b.hi), a.nan, a.whole && b.whole};
  return b.nan ? hull(r, a) : r;
}
ATTUNE_HD inline NumberRange absolute(NumberRange a) {
  if (a.lo >= 0) return a;
  if (a.hi <= 0) return negative(a);
  return {0, most(-a.lo, a.hi), a.nan, a.whole};
}
ATTUNE_HD inline NumberRange widened(double lo, double hi, bool nan) {
  constexpr double kBy = 1e-14;
  return {lo - ::fabs(lo) * kBy - (lo == -INFINITY ? 0 : 1e-300), hi + ::fabs(hi) * kBy + 1e-300, nan, false};
}
ATTUNE_HD inline NumberRange exponential(NumberRange a) {
  NumberRange r = widened(::exp(a.lo), ::exp(a.hi), a.nan);
  r.lo = most(r.lo, 0);
  return r.lo != r.lo || r.hi != r.hi ? NumberRange{0, INFINITY, true, false} : r;
}
ATTUNE_HD inline NumberRange logarithm(NumberRange a) {
  if (a.hi < 0) return anything();
  const double lo = ::log(most(a.lo, 0)), hi = ::log(a.hi);
  if (infinite({lo, hi})) return {lo, INFINITY, a.nan || a.lo < 0, false};
  return widened(lo, hi, a.nan || a.lo < 0);
}
ATTUNE_HD inline NumberRange root(NumberRange a) {
  if (a.hi < 0) return anything();
  return {::sqrt(most(a.lo, 0)), ::sqrt(a.hi), a.nan || a.lo < 0, false};
}

ATTUNE_HD inline NumberRange less(NumberRange a, NumberRange b) {
  return truth(a.hi < b.lo && !a.nan && !b.nan, a.lo < b.hi);
}
ATTUNE_HD inline NumberRange less_equal(NumberRange a, NumberRange b) {
  return truth(a.hi <= b.lo && !a.nan && !b.nan, a.lo <= b.hi);
}
ATTUNE_HD inline NumberRange equal(NumberRange a, NumberRange b) {
  return truth(a.single() && b.single() && a.lo == b.lo, a.lo <= b.hi && b.lo <= a.hi);
}
ATTUNE_HD inline NumberRange opposite(NumberRange a) { return truth(a.hi == 0, a.lo == 0); }

ATTUNE_HD inline NumberRange apply(Op op, NumberRange a, NumberRange b, NumberRange c) {
  switch (op) {
    case Op::add: return add(a, b);
    case Op::subtract: return add(a, negative(b));
    case Op::multiply: return multiply(a, b);
    case Op::divide: return divide(a, b);
    case Op::floor_divide: return floor_of(divide(a, b));
    case Op::modulo: return modulo(a, b);
    case Op::minimum: return minimum(a, b);
    case Op::maximum: return maximum(a, b);
    case Op::negative: return negative(a);
    case Op::absolute: return absolute(a);
    case Op::tanh: return widened(::tanh(a.lo), ::tanh(a.hi), a.nan);
    case Op::exp: return exponential(a);
    case Op::log: return logarithm(a);
    case Op::sqrt: return root(a);
    case Op::floor: return floor_of(a);
    case Op::less: return less(a, b);
    case Op::less_equal: return less_equal(a, b);
    case Op::greater: return less(b, a);
    case Op::greater_equal: return less_equal(b, a);
    case Op::equal: return equal(a, b);
    case Op::unequal: return opposite(equal(a, b));
    case Op::both: return truth(a.lo == 1 && b.lo == 1, a.hi == 1 && b.hi == 1);
    case Op::either: return truth(a.lo == 1 || b.lo == 1, a.hi == 1 || b.hi == 1);
    case Op::opposite: return opposite(a);
    case Op::choose: return a.lo == 1 ? b : a.hi == 0 ? c : hull(b, c);
    default: return anything();
  }
}

}  // namespace formula

// The index of an element: rounded down and clamped; NaN is 0. For host and device alike.
ATTUNE_HD inline int64_t element_index(double x, int64_t extent) {
  return !(x >= 1) ? 0 : x >= double(extent - 1) ? extent - 1 : int64_t(x);
}

// Bounds of node `root`, and of all nodes before it in `value`. element(array, NumberRange* index) bounds elements.
template <class Element>
ATTUNE_HD NumberRange bound(const Formula& f, int root, const PairBox& x, Element element, NumberRange* value) {
  for (int n = 0; n <= root; ++n) {
    const FormulaNode& node = f.node[n];
    NumberRange operand[kMostIndices];
    for (int i = 0; i < node.operands; ++i) operand[i] = value[node.operand[i]];
    switch (node.op) {
      case Op::number:
        value[n] = {node.number, node.number, false, node.number == ::floor(node.number)};
        break;
      case Op::s: value[n] = formula::anything(); break;
      case Op::b: value[n] = formula::whole(x.b, x.b); break;
      case Op::h: value[n] = formula::whole(x.h_first, x.h_last); break;
      case Op::g: value[n] = formula::whole(x.h_first / x.group, x.h_last / x.group); break;
      case Op::q: value[n] = formula::whole(x.q_first, x.q_last); break;
      case Op::k: value[n] = formula::whole(x.k_first, x.k_last); break;
      case Op::len_q: value[n] = formula::whole(x.len_q, x.len_q); break;
      case Op::len_k: value[n] = formula::whole(x.len_k, x.len_k); break;
      case Op::element: value[n] = element(int(node.array), operand); break;
      default: value[n] = formula::apply(node.op, operand[0], operand[1], operand[2]);
    }
  }
  return value[root];
}

// What a kernel does with a box of pairs.
enum class BoxIs : int32_t { hidden, open, mixed };  // open: every pair is visible, with its score unchanged

template <class Element>
ATTUNE_HD BoxIs decide(const Formula& f, const PairBox& x, Element element, NumberRange* value) {
  const int last = f.score > f.mask ? f.score : f.mask;
  if (last < 0) return BoxIs::open;
  (void)bound(f, f.mask >= 0 && f.score < 0 ? f.mask : last, x, element, value);
  if (f.mask >= 0 && value[f.mask].hi == 0) return BoxIs::hidden;
  bool open = f.mask < 0 || value[f.mask].lo == 1;
  if (f.score >= 0) {
    const NumberRange s = value[f.score];
    if (s.hi == -INFINITY && !s.nan) return BoxIs::hidden;
    int at = f.score;  // the branch taken by every pair
    while (f.node[at].op == Op::choose && value[f.node[at].operand[0]].single())
      at = f.node[at].operand[value[f.node[at].operand[0]].lo == 1 ? 1 : 2];
    open = open && f.node[at].op == Op::s;
  }
  return open ? BoxIs::open : BoxIs::mixed;
}

}  // namespace attune
