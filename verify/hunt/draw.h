// What the draws of a hunt share: choices from small tables, and lengths around the edges of tiles.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "verify/hunt/hunt.h"

namespace attune {

// Draws from small tables. Probabilities are in percent.
struct Draw {
  Random random;

  bool chance(int percent) { return random.below(100) < percent; }
  template <class T>
  T of(std::initializer_list<T> all) { return all.begin()[random.below(int(all.size()))]; }
  int between(int low, int high) { return low + random.below(high - low + 1); }
};

// Lengths around the edges of tiles of 64, 80, 96, 128 and 192, or any length.
int edge_length(Draw&, int most);
void draw_types(Draw&, Problem&);

// A problem with a variant: Native Sparse Attention and its words, dilated, adaptive, a ring of one rank. May be
// invalid.
Case variant_case(Draw&, HuntKind);
// What a variant fixes follows from the rest: the compressed tokens of `compress`, the tokens of a ring.
void follow_sizes(Problem&);
// The parameters of a variant, each simplified alone: numbers halved, lists shortened, words left out. May be invalid.
std::vector<Variant> smaller_variants(const Variant&);

}  // namespace attune
