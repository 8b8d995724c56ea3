// SPDX-License-Identifier: Apache-2.0
// What a rank computes with another rank's keys, as plain attentions on views: one for each pair of pieces that see
// each other and, for a dilated problem, for each segment, rate and offset in which both have rows. Pure: planning and
// running use the same calls.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "core/variant/dilated.h"
#include "core/variant/ring.h"

namespace attune {

// Rows `rate` apart and heads `step` apart: of q and tensors with its rows, or of k.
struct Cutout {
  int64_t row = 0, rate = 1;
  int32_t count = 0;
  int32_t head = 0, heads = 1, step = 1;

  Tensor of(const Tensor& t) const {
    Tensor x = pick_rows(t, row, count, rate);
    x.data = row_address(x, 0, 0, head);
    x.extent.head = heads, x.stride.head *= step;
    return x;
  }
};

// Block sizes in rows of a piece: with striping, every rank has the same number of tokens of each block.
constexpr Blocks blocks_in_rows(const Blocks& size, const Shards& s) {
  return s.cut == Cut::striped ? Blocks{size.q / s.ranks, size.k / s.ranks, size.bound} : size;
}

// The tokens of a piece among those `rate` apart starting at `origin`, in [first, last): the first of them, their
// distance and their number. A striped piece has those in both residue classes: one per least common multiple, or none.
struct Chosen { int64_t token = 0, step = 1, count = 0; };
constexpr Chosen choose(const Piece& p, int64_t origin, int64_t rate, int64_t first, int64_t last) {
  const int64_t end = std::min(last, p.token(p.count - 1) + 1), step = std::lcm(rate, int64_t(p.step));
  const int64_t from = pick(origin, rate, std::max(first, p.first), end).first;
  int64_t at = from;
  while (at < from + step && (at - p.first) % p.step) at += rate;
  return {at, step, at < from + step && at < end ? ceil_div(end - at, step) : 0};
}

struct RingCall {
  Cutout q{}, k{};
  int q_piece = 0, k_piece = 0;
  bool first = false;  // first of these queries: nothing to accumulate onto; includes the sink
  Problem problem{};
};

class RingCalls {
 public:
  explicit RingCalls(const Problem&);

  const Shards& shards() const { return ring_.shards; }
  bool dilated() const { return dilated_.branches > 0; }
  // Whether queries of `rank` see keys of `other`.
  bool sees(int rank, int other) const;
  // Every problem that a call may have, each once.
  std::vector<Problem> parts() const;

  // Calls f(RingCall) until it fails. For a rank's own keys, a piece attends to itself first.
  template <class F>
  Status each(int rank, int other, F f) const {
    return dilated() ? each_segment(rank, other, f) : each_pair(rank, other, f);
  }

 private:
  Problem p_;
  Ring ring_;
  Problem whole_;
  Dilated dilated_{};
  int64_t left_, right_;
  Mask masks_[2];
  int mask_count_ = 1;

  Problem dense_part(int mask, bool first) const;
  bool causal() const { return p_.mask.kind == MaskKind::causal; }
  bool striped() const { return shards().cut == Cut::striped; }
  Problem dilated_part(int branch, const HeadSet&, bool masked) const;
  // Segments of a branch in which both pieces have rows, as queries and as keys.
  Rows segments(int branch, const Piece& q, const Piece& k) const;

  template <class F>
  Status each_pair(int rank, int other, F f) const {
    const Shards& s = shards();
    for (int q = 0; q < s.pieces(); ++q)
      for (int n = 0; n < s.pieces(); ++n) {
        const int k = (q + n) % s.pieces();
        const bool first = rank == other && !n;
        const Piece mine = s.piece(rank, q), theirs = s.piece(other, k);
        const Sight at = sight(s, left_, right_, mine, theirs);
        if (!mine.count || !theirs.count || (!at.any && !first)) continue;
        const RingCall call{.q = {.row = s.first_row(rank, q), .count = mine.count, .heads = p_.heads_q},
                            .k = {.row = s.first_row(other, k), .count = theirs.count, .heads = p_.heads_kv},
                            .q_piece = q, .k_piece = k, .first = first, .problem = dense_part(at.mask, first)};
        if (Status said = f(call); !said.ok()) return said;
      }
    return Status::good();
  }

  template <class F>
  Status each_segment(int rank, int other, F f) const {
    for (int q = 0; q < shards().pieces(); ++q)
      for (int k = 0; k < shards().pieces(); ++k)
        for (int n = 0; n < dilated_.branches; ++n) {
          const Rows both = segments(n, shards().piece(rank, q), shards().piece(other, k));
          for (int64_t at = both.first; at < both.last; ++at)
            for (int i = 0; i < head_sets(dilated_, whole_, n); ++i) {
              RingCall call{.q_piece = q, .k_piece = k};
              if (!in_segment(rank, other, n, at, head_set(dilated_, whole_, n, i), call)) continue;
              if (Status said = f(call); !said.ok()) return said;
            }
        }
    return Status::good();
  }

  // Sets the views of a call, within its pieces, and its problem; false: there is no work.
  bool in_segment(int rank, int other, int branch, int64_t segment, const HeadSet&, RingCall&) const;
};

}  // namespace attune
