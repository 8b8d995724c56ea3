// SPDX-License-Identifier: Apache-2.0
// The dropout mask: a counter-based function of token positions, not of indices in a tile, chunk or shard. Backward,
// other tilings, other machines, chunked prefill and every rank of a ring therefore see the same mask.
#pragma once
#include "core/args.h"

namespace attune {

// Philox4x32-10 (Salmon et al. 2011): random words as a pure function of a counter and a key.
struct Words4 { uint32_t w[4]; };
ATTUNE_HD constexpr Words4 philox(Words4 c, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) {
    const uint64_t a = uint64_t(0xD2511F53u) * c.w[0], b = uint64_t(0xCD9E8D57u) * c.w[2];
    c = {{uint32_t(b >> 32) ^ c.w[1] ^ key0, uint32_t(b), uint32_t(a >> 32) ^ c.w[3] ^ key1, uint32_t(a)}};
  }
  return c;
}

struct Dropout {
  uint64_t seed = 0, offset = 0;
  uint32_t below = 0;  // drops where the random word is below this; 0 drops nothing
  float kept = 1.f;    // scale of a kept weight

  // Four adjacent keys share one philox call, one word each.
  ATTUNE_HD Words4 words(uint32_t batch_head, int64_t q_position, int64_t k_position) const {
    return philox({{uint32_t(k_position >> 2), uint32_t(q_position), batch_head, uint32_t(offset)}}, uint32_t(seed),
                  uint32_t(seed >> 32) ^ uint32_t(offset >> 32));
  }
  ATTUNE_HD float factor(uint32_t batch_head, int64_t q_position, int64_t k_position) const {
    return words(batch_head, q_position, k_position).w[k_position & 3] < below ? 0.f : kept;
  }
};

// Dropout::below and Dropout::kept of a fraction of weights to drop.
ATTUNE_HD constexpr uint32_t drop_below(float dropout) { return uint32_t(dropout * 4294967296.0); }
ATTUNE_HD constexpr float kept_scale(float dropout) { return 1.f / (1.f - dropout); }

// Reads seed and offset on the device that runs the kernel, so a captured graph replays with new values.
template <int Roles>
ATTUNE_HD Dropout dropout_of(const Problem& p, const ArgsOf<Roles>& a) {
  if (!p.has(Option::dropout)) return {};
  const int64_t* seed = a.template row<const int64_t>(Role::seed);
  return {uint64_t(seed[0]), uint64_t(seed[1]), drop_below(a.dropout), kept_scale(a.dropout)};
}

ATTUNE_HD inline uint32_t batch_head(const Problem& p, int b, int h) {
  return uint32_t(b) * uint32_t(p.heads_q) + uint32_t(h);
}

}  // namespace attune
