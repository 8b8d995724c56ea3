// Content-adaptive block-sparse attention, "adaptive block=64 density=0.1 hidden=128": a small network scores every
// pair of a query block and a key block that the band shows, each row of blocks keeps its best, and the scores of those
// are added to their logits. So the choice itself has no gradient, but the scores have: exactly, through the softmax.
//
//   qbar, kbar  mean of the queries, and of the keys, of a block: one for each head, and each head of keys
//   score       w2 . relu(w1 [wq qbar + bq ; wk kbar + bk] + b1) + b2, divided by max(exp(log_temperature), 0.1)
//   kept        of a row that is shown c blocks: max(1, floor(density c)), by (score, then the lower block); with
//               noise=gumbel by score + gumbel(seed, offset), which changes the choice and no score
//
// What comes before relu is a sum of one term of the query block and one of the key block, so the network costs
// blocks x hidden, and blocks^2 x hidden only for relu and w2. Nothing quadratic is stored but the kept entries.
#pragma once
#include "core/args.h"
#include "core/variant/pattern.h"
#include "core/variant/variants.h"

namespace attune {

struct Adaptive {
  int32_t block = 64, hidden = 128;
  int32_t density = 100000;  // millionths
  int32_t per_head = 0;      // 1: every head has a w1, b1, w2, b2 of its own
  int32_t gumbel = 0;        // 1: the choice is noisy

  ATTUNE_HD int kept(int shown) const {
    const int64_t n = int64_t(shown) * density / Pattern::kWhole;
    return shown ? (n ? int(n) : 1) : 0;
  }
};
inline constexpr float kLeastTemperature = 0.1f;

// The random word behind the noise of a pair of blocks: a function of its place, as that of dropout is.
ATTUNE_HD inline uint32_t noise_word(uint64_t seed, uint64_t offset, int list, int row, int column) {
  return philox({{uint32_t(column), uint32_t(row), uint32_t(list), uint32_t(offset)}}, uint32_t(seed),
                uint32_t(seed >> 32) ^ uint32_t(offset >> 32)).w[0];
}

// Its tensors, by number.
enum class AdaptiveTensor : int32_t {
  wq, bq, wk, bk,         // inputs f32: {1, dim, 1, dim}, {1, 1, 1, dim}
  w1, b1, w2, b2,         // {1, hidden, n, 2 dim}, {1, 1, n, hidden}, {1, 1, n, hidden}, {1, 1, n, 1}; n: 1, or heads
  log_temperature,        // {1, 1, 1, 1}
  noise,                  // list {1, 1, 1, 2} i64, with noise=gumbel: seed and offset
  begin, column, scores,  // saved: the list by query block {batch, 1, heads, query blocks + 1}, {1, 1, 1, bound}, and
                          // the score of each entry, f32; behind the last entry columns are -1 and scores 0
  count
};
constexpr Role role(AdaptiveTensor t) { return variant_tensor(int(t)); }
constexpr Role d_role(AdaptiveTensor t) { return d_variant_tensor(int(t)); }

Status read_adaptive(const Problem&, Adaptive& out);
inline Adaptive adaptive_of(const Problem& p) {  // of a valid problem
  Adaptive a;
  (void)read_adaptive(p, a);
  return a;
}
Status valid_adaptive(const Problem&);
void declare_adaptive(const Problem&, const Args&, Declared&);

// The most entries of all lists, whatever the lengths of the sequences are.
int64_t adaptive_bound(const Problem&, const Adaptive&);

}  // namespace attune
