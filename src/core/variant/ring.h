// Attention over ranks: `ring layout=ring|zigzag|striped|ulysses ranks=R tokens=N [inner=dilated ...]`. Every rank has
// its shard (shard.h) of a stream of N tokens, q and k cut alike, and a communicator in its arguments. The number of
// ranks is part of the problem because it is part of the code that runs: the heads of a rank, the masks of its parts,
// what travels. docs/ring.md is its page.
#pragma once
#include "core/variant/shard.h"
#include "core/variant/variants.h"

namespace attune {

struct Ring {
  Shards shards{};
  Variant inner{};  // of the whole problem, "" for plain attention
};

// Parameters, or a sentence. Allocates nothing where they are right.
Status read_ring(const Variant&, Ring& out);
inline Ring ring_of(const Problem& p) {  // of a valid problem
  Ring r;
  (void)read_ring(p.variant, r);
  return r;
}

std::string_view name(Cut);
Status valid_ring(const Problem&);
void declare_ring(const Problem&, const Args&, Declared&);

// Tensor 0 of the variant, of ragged problems: where the sequences of the whole stream begin, batch + 1 numbers.
inline constexpr int kRingSequences = 0;

// The problem of all ranks together, as one rank would run it: no variant but the inner one, and every token.
Problem whole_of(const Problem&, const Ring&);

}  // namespace attune
