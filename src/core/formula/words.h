// SPDX-License-Identifier: Apache-2.0
// The words and symbols of formulas, for reading and printing. A symbol comes before those that it begins with.
#pragma once
#include <span>

#include "core/formula/formula.h"

namespace attune {

struct FormulaWord { std::string_view text; Op op; };

inline constexpr FormulaWord kNames[] = {{"s", Op::s},         {"b", Op::b},         {"h", Op::h},
                                         {"g", Op::g},         {"q", Op::q},         {"k", Op::k},
                                         {"len_q", Op::len_q}, {"len_k", Op::len_k}, {"inf", Op::number}};
inline constexpr FormulaWord kFunctions[] = {{"min", Op::minimum}, {"max", Op::maximum}, {"abs", Op::absolute},
                                             {"tanh", Op::tanh},   {"exp", Op::exp},     {"log", Op::log},
                                             {"sqrt", Op::sqrt},   {"floor", Op::floor}};
inline constexpr FormulaWord kComparisons[] = {{"<=", Op::less_equal}, {">=", Op::greater_equal}, {"==", Op::equal},
                                               {"!=", Op::unequal},    {"<", Op::less},           {">", Op::greater}};
inline constexpr FormulaWord kSums[] = {{"+", Op::add}, {"-", Op::subtract}};
inline constexpr FormulaWord kProducts[] = {
    {"*", Op::multiply}, {"//", Op::floor_divide}, {"/", Op::divide}, {"%", Op::modulo}};

}  // namespace attune
