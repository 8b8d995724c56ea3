// SPDX-License-Identifier: Apache-2.0
// Attention over ranks: `ring layout=ring|zigzag|striped|ulysses ranks=R tokens=N [inner=dilated ...]`. Every rank has
// its shard (shard.h) of a stream of N tokens, with q and k divided alike, and a communicator in its arguments. The
// number of ranks is part of the problem because it determines the code that runs: the heads of a rank, the masks of
// its parts, the data exchanged. See docs/ring.md.
#pragma once
#include "core/variant/shard.h"
#include "core/variant/variants.h"

namespace attune {

struct Ring {
  Shards shards{};
  Variant inner{};  // variant of the whole problem; "" for plain attention
};

// Reads the parameters, or explains what is wrong. Allocates nothing on success.
Status read_ring(const Variant&, Ring& out);
inline Ring ring_of(const Problem& p) {  // requires a valid problem
  Ring r;
  (void)read_ring(p.variant, r);
  return r;
}

std::string_view name(Cut);
Status valid_ring(const Problem&);
void declare_ring(const Problem&, const Args&, Declared&);

// Variant tensor 0 of ragged problems: the first token of each sequence of the whole stream, batch + 1 numbers.
inline constexpr int kRingSequences = 0;

// The problem of all ranks together, as one rank would run it: only the inner variant, and every token.
Problem whole_of(const Problem&, const Ring&);

}  // namespace attune
