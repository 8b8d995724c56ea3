// SPDX-License-Identifier: Apache-2.0
// The meaning of a formula for one pair: the tree, walked in double with dual numbers. A value carries its slope by s,
// or by one element that the score reads.
#pragma once
#include <cmath>

#include "core/args.h"
#include "core/formula/formula.h"

namespace attune::reference_detail {

struct Dual { double value = 0, slope = 0; };
struct ElementPlace { int64_t b, s, h, d; };

struct FormulaPair {
  double s;
  int64_t b, h, g, q, k, len_q, len_k;
};

struct FormulaWalk {
  const Formula& f;
  const Args& a;
  const FormulaPair& at;
  int by;  // the element's node by which slopes are taken; -1: by s

  Dual walk(int n) const {
    const FormulaNode& node = f.node[n];
    const auto of = [&](int i) { return walk(node.operand[i]); };
    switch (node.op) {
      case Op::number: return {node.number};
      case Op::s: return {at.s, by < 0 ? 1. : 0.};
      case Op::b: return {double(at.b)};
      case Op::h: return {double(at.h)};
      case Op::g: return {double(at.g)};
      case Op::q: return {double(at.q)};
      case Op::k: return {double(at.k)};
      case Op::len_q: return {double(at.len_q)};
      case Op::len_k: return {double(at.len_k)};
      case Op::element: return {element(n), n == by ? 1. : 0.};
      case Op::choose: return of(0).value != 0 ? of(1) : of(2);
      case Op::both: return {double(of(0).value != 0 && of(1).value != 0)};
      case Op::either: return {double(of(0).value != 0 || of(1).value != 0)};
      case Op::opposite: return {double(of(0).value == 0)};
      default: return node.operands == 2 ? two(node.op, of(0), of(1)) : one(node.op, of(0));
    }
  }

  static Dual two(Op op, Dual x, Dual y) {
    switch (op) {
      case Op::add: return {x.value + y.value, x.slope + y.slope};
      case Op::subtract: return {x.value - y.value, x.slope - y.slope};
      case Op::multiply: return {x.value * y.value, part(x.slope, y.value) + part(y.slope, x.value)};
      case Op::divide:
        return {x.value / y.value, part(x.slope, 1 / y.value) - part(y.slope, x.value / (y.value * y.value))};
      case Op::floor_divide: return {std::floor(x.value / y.value)};
      case Op::modulo: {
        const double whole = std::floor(x.value / y.value);
        return {x.value - y.value * whole, x.slope - part(y.slope, whole)};
      }
      case Op::minimum: return y.value < x.value ? y : x;
      case Op::maximum: return x.value < y.value ? y : x;
      case Op::less: return {double(x.value < y.value)};
      case Op::less_equal: return {double(x.value <= y.value)};
      case Op::greater: return {double(x.value > y.value)};
      case Op::greater_equal: return {double(x.value >= y.value)};
      case Op::equal: return {double(x.value == y.value)};
      default: return {double(!(x.value == y.value))};
    }
  }
  static Dual one(Op op, Dual x) {
    const double y = x.value;
    switch (op) {
      case Op::negative: return {-y, -x.slope};
      case Op::absolute: return {std::fabs(y), y < 0 ? -x.slope : y > 0 ? x.slope : 0};
      case Op::tanh: return {std::tanh(y), part(x.slope, 1 - std::tanh(y) * std::tanh(y))};
      case Op::exp: return {std::exp(y), part(x.slope, std::exp(y))};
      case Op::log: return {std::log(y), part(x.slope, 1 / y)};
      case Op::sqrt: return {std::sqrt(y), part(x.slope, 0.5 / std::sqrt(y))};
      default: return {std::floor(y)};
    }
  }
  // What does not depend on the variable has slope 0, even next to an infinity.
  static double part(double slope, double by) { return slope == 0 ? 0 : slope * by; }

  ElementPlace place(int n) const {
    const FormulaNode& node = f.node[n];
    const Extents& e = a[variant_tensor(node.array)].extent;
    const int64_t extent[] = {e.batch, e.seq, e.head, e.dim};
    int64_t index[] = {0, 0, 0, 0};
    for (int i = 0; i < node.operands; ++i) {
      const int axis = 4 - node.operands + i;
      const double x = std::floor(walk(node.operand[i]).value), last = double(extent[axis] - 1);
      index[axis] = std::isnan(x) ? 0 : int64_t(std::fmin(std::fmax(x, 0), last));
    }
    return {index[0], index[1], index[2], index[3]};
  }
  double element(int n) const {
    const Tensor& t = a[variant_tensor(f.node[n].array)];
    const auto [b, s, h, d] = place(n);
    const int64_t at = b * t.stride.batch + s * t.stride.seq + h * t.stride.head + d;
    switch (t.dtype) {
      case DType::f64: return static_cast<const double*>(t.data)[at];
      case DType::f32: return static_cast<const float*>(t.data)[at];
      case DType::i64: return double(static_cast<const int64_t*>(t.data)[at]);
      default: return static_cast<const int32_t*>(t.data)[at];
    }
  }
};

}  // namespace attune::reference_detail
