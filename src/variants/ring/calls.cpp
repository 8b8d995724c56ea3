// SPDX-License-Identifier: Apache-2.0
#include "variants/ring/calls.h"

#include <algorithm>

namespace attune {
namespace {

bool backward(const Problem& p) { return p.pass == Pass::backward; }

// Sums of parts are f32: the running output, or the gradients.
void widen(Problem& part) { (backward(part) ? part.dtype.grad : part.dtype.out) = DType::f32; }

}  // namespace

RingCalls::RingCalls(const Problem& p)
    : p_(p), ring_(ring_of(p)), whole_(whole_of(p, ring_)), left_(left_of(p.mask)), right_(right_of(p.mask)) {
  mask_count_ = part_masks(p.mask, ring_.shards, masks_);
  if (ring_.inner.text[0]) dilated_ = dilated_of(whole_);
}

bool RingCalls::sees(int rank, int other) const {
  const Shards& s = shards();
  for (int q = 0; q < s.pieces(); ++q)
    for (int k = 0; k < s.pieces(); ++k) {
      const Piece mine = s.piece(rank, q), theirs = s.piece(other, k);
      if (!dilated() && sight(s, left_, right_, mine, theirs).any) return true;
      for (int n = 0; n < dilated_.branches; ++n)
        if (const Rows both = segments(n, mine, theirs); both.first < both.last) return true;
    }
  return false;
}

Rows RingCalls::segments(int branch, const Piece& q, const Piece& k) const {
  if (!q.count || !k.count || (causal() && k.first > q.token(q.count - 1))) return {0, 0};
  // Striped pieces whose tokens never share an offset.
  if (striped() && (q.first - k.first) % std::gcd(dilated_.rate[branch], shards().ranks)) return {0, 0};
  const int64_t width = dilated_.segment[branch];
  return {int(std::max(q.first, k.first) / width),
          int(std::min(q.token(q.count - 1), k.token(k.count - 1)) / width) + 1};
}

// If the tokens of two pieces interleave, both with the same stride, query i sees the keys up to key i. If the keys
// start later, it sees one key less: the first query then sees none and is left out.
bool RingCalls::in_segment(int rank, int other, int branch, int64_t segment, const HeadSet& set, RingCall& call) const {
  const Piece mine = shards().piece(rank, call.q_piece), theirs = shards().piece(other, call.k_piece);
  const int64_t width = dilated_.segment[branch], first = segment * width;
  const auto chosen = [&](const Piece& p) {
    return choose(p, first + set.offset, dilated_.rate[branch], first, first + width);
  };
  Chosen q = chosen(mine), k = chosen(theirs);
  const bool masked = striped() || mine.first == theirs.first;
  if (masked && causal() && q.token < k.token) q.token += q.step, --q.count;
  if (!set.heads_q || q.count < 1 || k.count < 1) return false;
  const auto rows = [&](const Chosen& c, const Piece& p, int64_t before, int32_t head, int32_t heads, int32_t step) {
    return Cutout{before + (c.token - p.first) / p.step, c.step / p.step, int32_t(c.count), head, heads, step};
  };
  call.q = rows(q, mine, shards().first_row(rank, call.q_piece), set.head_q, set.heads_q, set.step_q);
  call.k = rows(k, theirs, shards().first_row(other, call.k_piece), set.head_kv, set.heads_kv, set.step_kv);
  call.problem = dilated_part(branch, set, masked);
  return true;
}

// Forward: the first call of a chain, or those that accumulate onto it. Backward: all accumulate; the first computes
// the gradient of the sink, which is one more part of the softmax and belongs to one call.
Problem RingCalls::dense_part(int mask, bool first) const {
  Problem part = p_;
  part.variant = {};
  part.mask = masks_[mask];
  part.mask.blocks = blocks_in_rows(p_.mask.blocks, shards());
  // A full mask needs no positions, unless a score or a random number depends on them.
  if (p_.mask.kind == MaskKind::full && !p_.has(Option::alibi) && !p_.has(Option::dropout))
    part.mask.align = Align::bottom_right;
  const Shards& s = shards();
  const int most = int(ceil_div(s.tokens, int64_t(s.pieces()) * s.ranks));  // tokens per piece
  part.len_q = part.len_k = std::min(p_.len_q, most);
  widen(part);
  if (backward(p_) || !first) part.set(Option::accumulate);
  if (!first) part.clear(Option::sink);
  return part;
}

// A causal query sees its whole segment of an earlier piece's keys. Of its own piece, and of one whose tokens
// interleave with its own, it sees keys up to itself.
Problem RingCalls::dilated_part(int branch, const HeadSet& set, bool masked) const {
  Problem part = p_;
  part.variant = {};
  if (!masked) part.mask.kind = MaskKind::full;
  if (striped() && causal()) part.mask.align = Align::top_left;
  part.heads_q = set.heads_q, part.heads_kv = set.heads_kv;
  const Shards& s = shards();
  const int64_t span = striped() ? s.tokens : ceil_div(s.tokens, int64_t(s.pieces()) * s.ranks);  // of a piece
  const int64_t apart = std::lcm<int64_t>(dilated_.rate[branch], striped() ? s.ranks : 1);
  part.len_q = part.len_k = int32_t(ceil_div(std::min<int64_t>(dilated_.segment[branch], span), apart));
  widen(part);
  part.set(Option::accumulate);
  return part;
}

std::vector<Problem> RingCalls::parts() const {
  std::vector<Problem> all;
  const auto add = [&](const Problem& one) {
    if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
  };
  for (int mask = 0; !dilated() && mask < mask_count_; ++mask)
    for (const bool first : {true, false}) add(dense_part(mask, first));
  for (int n = 0; n < dilated_.branches; ++n)
    for (int i = 0; i < head_sets(dilated_, whole_, n); ++i)
      for (const bool masked : {true, false})
        if (const HeadSet set = head_set(dilated_, whole_, n, i); set.heads_q && (masked || !striped()))
          add(dilated_part(n, set, masked));
  return all;
}

}  // namespace attune
