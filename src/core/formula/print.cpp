// SPDX-License-Identifier: Apache-2.0
// Tree to text: no spaces, and parentheses only where reading would otherwise build another tree.
#include <cmath>

#include "core/formula/words.h"

namespace attune {
namespace {

// How tightly a node binds: its operands need parentheses if they bind less.
enum Binding { kChoice, kEither, kBoth, kComparison, kSum, kProduct, kUnary, kPrimary };

template <size_t N>
std::string_view symbol(Op op, const FormulaWord (&words)[N]) {
  for (const FormulaWord& w : words)
    if (w.op == op) return w.text;
  return {};
}

Binding binding(const FormulaNode& n) {
  if (n.op == Op::choose) return kChoice;
  if (n.op == Op::either) return kEither;
  if (n.op == Op::both) return kBoth;
  if (!symbol(n.op, kComparisons).empty()) return kComparison;
  if (!symbol(n.op, kSums).empty()) return kSum;
  if (!symbol(n.op, kProducts).empty()) return kProduct;
  return n.op == Op::negative || n.op == Op::opposite ? kUnary : kPrimary;
}

struct Printer {
  const Formula& f;
  std::string out{};

  void put(int at, Binding least) {
    const bool wrap = binding(f.node[at]) < least;
    if (wrap) out += '(';
    inside(f.node[at]);
    if (wrap) out += ')';
  }
  void two(const FormulaNode& n, std::string_view symbol, Binding left, Binding right) {
    put(n.operand[0], left);
    out += symbol;
    put(n.operand[1], right);
  }
  void listed(const FormulaNode& n, std::string_view name, char open, char close) {
    out += name, out += open;
    for (int i = 0; i < n.operands; ++i) {
      if (i) out += ',';
      put(n.operand[i], kChoice);
    }
    out += close;
  }
  void inside(const FormulaNode& n) {
    const Binding own = binding(n);
    switch (own) {
      case kChoice:
        put(n.operand[0], kEither), out += '?';
        put(n.operand[1], kChoice), out += ':';
        return put(n.operand[2], kChoice);
      case kEither: return two(n, "||", kEither, kBoth);
      case kBoth: return two(n, "&&", kBoth, kComparison);
      case kComparison: return two(n, symbol(n.op, kComparisons), kSum, kSum);
      case kSum: return two(n, symbol(n.op, kSums), kSum, kProduct);
      case kProduct: return two(n, symbol(n.op, kProducts), kProduct, kUnary);
      case kUnary: return out += n.op == Op::negative ? '-' : '!', put(n.operand[0], kUnary);
      case kPrimary: break;
    }
    if (n.op == Op::element) return listed(n, f.array[n.array].name, '[', ']');
    if (n.operands) return listed(n, symbol(n.op, kFunctions), '(', ')');
    if (n.op != Op::number || std::isinf(n.number)) out += symbol(n.op, kNames);
    else append(out, n.number);
  }
};

}  // namespace

std::string text_of(const Formula& f, int root) {
  Printer p{f};
  p.put(root, kChoice);
  return p.out;
}

}  // namespace attune
