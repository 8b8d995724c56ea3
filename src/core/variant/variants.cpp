// SPDX-License-Identifier: Apache-2.0
#include "core/variant/variants.h"

#include <iterator>
#include <vector>

#include "core/formula/of_problem.h"
#include "core/problem_line.h"
#include "core/variant/adaptive.h"
#include "core/variant/dilated.h"
#include "core/variant/nsa.h"
#include "core/variant/ring.h"

namespace attune {
namespace {

// One line per variant. Its functions are declared in the variant's header, next to its parameters.
constexpr VariantWord kWords[] = {
    {"compress", valid_nsa, declare_nsa}, {"select", valid_nsa, declare_nsa}, {"selected", valid_nsa, declare_nsa},
    {"gate", valid_nsa, declare_nsa},     {"reads", valid_nsa, declare_nsa},  {"nsa", valid_nsa, declare_nsa},
    {"dilated", valid_dilated, declare_dilated},
    {"ring", valid_ring, declare_ring},
    {"adaptive", valid_adaptive, declare_adaptive},
    {"formula", valid_formula, declare_formula},
};

}  // namespace

const VariantWord* find_variant(std::string_view word) {
  for (const VariantWord& w : kWords)
    if (!word.empty() && w.word == word) return &w;
  return nullptr;
}

std::string unknown_variant(std::string_view word) {
  std::vector<std::string_view> all;
  std::string accepted;
  for (const VariantWord& w : kWords) all.push_back(w.word), accepted += join(accepted.empty() ? "" : ", ", w.word);
  const std::string_view best = closest_word(word, all);
  return join("'", word, "' is not a variant; accepted are ", accepted,
              best.empty() ? "" : join("; did you mean '", best, "'?"));
}

Declared declared(const Problem& p, const Args& a) {
  Declared d;
  if (!p.variant.text[0]) return d;
  if (const VariantWord* w = find_variant(word(p.variant))) w->declare(p, a, d);
  return d;
}

}  // namespace attune
