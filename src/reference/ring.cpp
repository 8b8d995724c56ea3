// SPDX-License-Identifier: Apache-2.0
// Attention over ranks equals attention over the whole stream, so the definition runs as a single rank.
#include "core/variant/ring.h"
#include "reference/variants.h"

namespace attune {

extern const Backend reference;

namespace reference_detail {

Status run_ring(const Problem& p, const Args& a) {
  const Ring ring = ring_of(p);
  if (ring.shards.ranks != 1)
    return Status::unsupported("reference: ", ring.shards.ranks, " ranks given, but it computes on one");
  return reference.run(Plan{.backend = &reference, .problem = whole_of(p, ring)}, a, {}, nullptr);
}

}  // namespace reference_detail
}  // namespace attune
