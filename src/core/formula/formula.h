// SPDX-License-Identifier: Apache-2.0
// A mask and a score that the user writes: mask{q>=k && doc[q]==doc[k]} score{s + slope[h]*(k-q)}. One expression each,
// without loops, assignments or pointers. The meaning is arithmetic in double, as in IEEE 754.
//
//   names      s, the logit in base e after every option (score only); b batch; h query head; g KV head; q, k
//              positions, as in a mask; len_q, len_k; inf
//   arrays     doc[k], table[h,k-q]: 1 to 4 indices, each rounded down and clamped to the array; NaN is index 0
//   operators  ?: || && < <= > >= == != + - * / // % - !       a//b = floor(a/b), a%b = a - b*(a//b)
//   functions  min max (two values) abs tanh exp log sqrt floor; min(a,b) = b<a ? b : a, max(a,b) = a<b ? b : a
//
// A truth (a comparison, && || !) is not a number: a mask is a truth, a score a number. The tree is plain data: a
// reference walks it, a CPU interprets it, and a GPU may print it as code.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "core/status.h"

namespace attune {

enum class Op : uint8_t {
  number, s, b, h, g, q, k, len_q, len_k,                         // leaves
  element,                                                        // of an array, by its indices
  add, subtract, multiply, divide, floor_divide, modulo,          // two numbers
  minimum, maximum,
  negative, absolute, tanh, exp, log, sqrt, floor,                // one number
  less, less_equal, greater, greater_equal, equal, unequal,       // two numbers, to a truth
  both, either, opposite,                                         // && || !
  choose,                                                         // condition ? a : b
  count
};

inline constexpr int kMostNodes = 160, kMostArrays = 8, kMostIndices = 4;
inline constexpr size_t kMostFormulaText = 4096;  // bytes of one expression as given

struct FormulaNode {
  Op op = Op::number;
  uint8_t array = 0, operands = 0;   // array: of an element
  uint8_t truth = 0;                 // 1: a truth
  int16_t operand[kMostIndices] = {};  // nodes before this one
  double number = 0;
};

// Nodes in an order where operands come first. Both trees share the arrays, in the order of their first appearance.
struct Formula {
  FormulaNode node[kMostNodes];
  int nodes = 0, mask = -1, score = -1;  // roots; -1: not given
  struct Array {
    std::string_view name;  // in the text that was read
    int indices = 0;
    bool in_score = false;
  } array[kMostArrays];
  int arrays = 0;
};

struct FormulaPlace { size_t at = 0, length = 0; };  // of a mistake, in the text

// Reads an expression into `out`, as its mask or its score.
Status read_mask(std::string_view text, Formula& out, FormulaPlace& place);
Status read_score(std::string_view text, Formula& out, FormulaPlace& place);

// Canonical text, without spaces; reading it yields the same nodes.
std::string text_of(const Formula&, int root);

// True if the value of a node may differ from pair to pair of one (batch, head): it depends on s, q or k.
bool depends_on(const Formula&, int root, Op leaf);

}  // namespace attune
