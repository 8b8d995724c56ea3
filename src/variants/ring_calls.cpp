#include "variants/ring_calls.h"

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
  if (!dilated()) {
    for (int q = 0; q < s.pieces(); ++q)
      for (int k = 0; k < s.pieces(); ++k)
        if (sight(s, left_, right_, s.piece(rank, q), s.piece(other, k)).any) return true;
    return false;
  }
  if (p_.mask.kind == MaskKind::causal && other > rank) return false;
  for (int n = 0; n < dilated_.branches; ++n)
    if (const Rows both = segments(n, rank, other); both.first < both.last) return true;
  return false;
}

Rows RingCalls::segments(int branch, int rank, int other) const {
  const Piece q = shards().piece(rank, 0), k = shards().piece(other, 0);
  if (!q.count || !k.count) return {0, 0};
  const int64_t width = dilated_.segment[branch];
  return {int(std::max(q.first, k.first) / width),
          int(std::min(q.first + q.count - 1, k.first + k.count - 1) / width) + 1};
}

// Forward: the first of a chain, and those that accumulate onto it. Backward: all accumulate; the first gives the
// gradient of the sink, which is one more part of the softmax and belongs to one call.
Problem RingCalls::dense_part(int mask, bool first) const {
  Problem part = p_;
  part.variant = {};
  part.mask = masks_[mask];
  part.mask.blocks = p_.mask.blocks;
  // Of a full mask nobody asks where tokens stand, unless a score or a random number depends on it.
  if (p_.mask.kind == MaskKind::full && !p_.has(Option::alibi) && !p_.has(Option::dropout))
    part.mask.align = Align::bottom_right;
  const Shards& s = shards();
  const int most = int(ceil_div(s.tokens, int64_t(s.pieces()) * s.ranks));  // of a piece
  part.len_q = part.len_k = std::min(p_.len_q, most);
  widen(part);
  if (backward(p_) || !first) part.set(Option::accumulate);
  if (!first) part.clear(Option::sink);
  return part;
}

// Shards are in a row: of an earlier rank's keys a causal query sees all of its segment, of its own those up to itself.
Problem RingCalls::dilated_part(int branch, const HeadSet& set, bool own) const {
  Problem part = p_;
  part.variant = {};
  if (!own) part.mask.kind = MaskKind::full;
  part.heads_q = set.heads_q, part.heads_kv = set.heads_kv;
  const int64_t rows = std::min<int64_t>(dilated_.segment[branch], std::max(1, shards().most()));
  part.len_q = part.len_k = int32_t(ceil_div(rows, dilated_.rate[branch]));
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
      for (const bool own : {true, false})
        if (const HeadSet set = head_set(dilated_, whole_, n, i); set.heads_q) add(dilated_part(n, set, own));
  return all;
}

}  // namespace attune
