// SPDX-License-Identifier: Apache-2.0
// Content-adaptive block-sparse attention, "adaptive block=64 density=0.1 hidden=128". A small network scores every
// visible pair of a query block and a key block, each block row keeps its best key blocks, and their scores are added
// to the logits. The selection has no gradient, but the scores have an exact one, through the softmax.
//
//   qbar, kbar  mean of the queries, and of the keys, of a block: one per query head, and one per KV head
//   score       w2 . relu(w1 [wq qbar + bq ; wk kbar + bk] + b1) + b2, divided by max(exp(log_temperature), 0.1)
//   kept        of c visible blocks in a row: max(1, floor(density c)), ordered by (score, then the lower block); with
//               noise=gumbel ordered by score + gumbel(seed, offset), which changes the selection but no score
//
// The input of relu is the sum of a query-block term and a key-block term. The network therefore costs blocks x hidden,
// and blocks^2 x hidden only for relu and w2. Only the kept entries are stored; nothing else is quadratic.
#pragma once
#include "core/args.h"
#include "core/variant/pattern.h"
#include "core/variant/variants.h"

namespace attune {

struct Adaptive {
  int32_t block = 64, hidden = 128;
  int32_t density = 100000;  // millionths
  int32_t per_head = 0;      // 1: every head has its own w1, b1, w2, b2
  int32_t gumbel = 0;        // 1: the selection is noisy

  ATTUNE_HD int kept(int shown) const {
    const int64_t n = int64_t(shown) * density / Pattern::kWhole;
    return shown ? (n ? int(n) : 1) : 0;
  }
};
inline constexpr float kLeastTemperature = 0.1f;

// The random word behind the noise of a block pair: a function of its coordinates, as in dropout.
ATTUNE_HD inline uint32_t noise_word(uint64_t seed, uint64_t offset, int list, int row, int column) {
  return philox({{uint32_t(column), uint32_t(row), uint32_t(list), uint32_t(offset)}}, uint32_t(seed),
                uint32_t(seed >> 32) ^ uint32_t(offset >> 32)).w[0];
}

// The variant's tensors, by number.
enum class AdaptiveTensor : int32_t {
  wq, bq, wk, bk,         // inputs f32: {1, dim, 1, dim}, {1, 1, 1, dim}
  w1, b1, w2, b2,         // {1, hidden, n, 2 dim}, {1, 1, n, hidden}, {1, 1, n, hidden}, {1, 1, n, 1}; n: 1, or heads
  log_temperature,        // {1, 1, 1, 1}
  noise,                  // list {1, 1, 1, 2} i64, with noise=gumbel: seed and offset
  begin, column, scores,  // saved: the list by query block {batch, 1, heads, query blocks + 1}, {1, 1, 1, bound}, and
                          // the score of each entry, f32; after the last entry, columns are -1 and scores 0
  count
};
constexpr Role role(AdaptiveTensor t) { return variant_tensor(int(t)); }
constexpr Role d_role(AdaptiveTensor t) { return d_variant_tensor(int(t)); }

Status read_adaptive(const Problem&, Adaptive& out);
inline Adaptive adaptive_of(const Problem& p) {  // requires a valid problem
  Adaptive a;
  (void)read_adaptive(p, a);
  return a;
}
Status valid_adaptive(const Problem&);
void declare_adaptive(const Problem&, const Args&, Declared&);

// The maximum number of entries in all lists, for any sequence lengths.
int64_t adaptive_bound(const Problem&, const Adaptive&);

}  // namespace attune
