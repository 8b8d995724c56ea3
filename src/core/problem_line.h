// SPDX-License-Identifier: Apache-2.0
// Where a problem line is wrong, for a caret below it; and the known word that a misspelt one resembles.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "core/problem.h"

namespace attune {

struct LinePlace {
  size_t at = 0, length = 0;  // of the wrong word; length 0 and at = line.size(): the line ends too early
  bool known = false;         // false: the error concerns no single word
};

// parse() of problem.h, which also reports the place of a mistake.
Status parse(std::string_view line, Problem& out, LinePlace& place);

// The candidate within few typing mistakes (a third of the letters, at least one) of the word; empty if there is none.
std::string_view closest_word(std::string_view word, std::span<const std::string_view> candidates);

// The sentence for an unknown variant: "'nsaa' is not a variant; accepted are ...; did you mean 'nsa'?"
std::string unknown_variant(std::string_view word);

}  // namespace attune
