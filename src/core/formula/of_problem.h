// SPDX-License-Identifier: Apache-2.0
// The formula of a problem. It is the variant "formula mask=q>=k score=..." in canonical text, which prints as
// mask{q>=k} score{...}; its arrays are the variant's tensors, in the order of their first appearance. An array with n
// indices has its last n axes: [dim], [head, dim], [seq, head, dim] or [batch, seq, head, dim].
#pragma once
#include "core/formula/interval.h"
#include "core/variant/variants.h"

namespace attune {

inline bool has_formula(const Problem& p) { return word(p.variant) == "formula"; }

// Array names are views of the problem's text. Allocates nothing on success.
Status read_formula(const Problem&, Formula& out);
inline Formula formula_of(const Problem& p) {  // requires a valid problem; {} without a formula
  Formula f;
  if (has_formula(p)) (void)read_formula(p, f);
  return f;
}

// Reads both texts ("" for none) and stores their canonical form. `wrong` is the text in which `place` lies.
Status assign_formula(std::string_view mask, std::string_view score, Variant& out, std::string_view& wrong,
                      FormulaPlace& place);

// Rewrites the text of a formula in canonical form; leaves what does not read to valid_formula, for its sentence.
void canonicalize_formula(Variant&);

Status valid_formula(const Problem&);
void declare_formula(const Problem&, const Args&, Declared&);

// The extents that an array needs so that no index is clamped, as far as the problem tells; each at most 2^20, and at
// most 2^26 elements together.
Extents extents_of(const Problem&, const Formula&, int array);

// Every pair of one problem, whatever its sequences are.
PairBox all_pairs(const Problem&);

}  // namespace attune
