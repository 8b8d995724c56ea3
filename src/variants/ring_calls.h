// What a rank computes of another rank's keys, as plain attentions on views: for each pair of pieces that see each
// other, or, of a dilated problem, for each segment, rate and remainder that both have rows of. Pure: planning and
// running ask the same.
#pragma once
#include <algorithm>
#include <vector>

#include "core/dilated.h"
#include "core/ring.h"

namespace attune {

// Rows `rate` apart and heads `step` apart: of q and what has its rows, or of k.
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

struct RingCall {
  Cutout q{}, k{};
  int q_piece = 0, k_piece = 0;
  bool first = false;  // of these queries: nothing to accumulate onto, and the place of the sink
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

  // f(RingCall) until it fails. Of its own keys a piece sees itself first.
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
  Problem dilated_part(int branch, const HeadSet&, bool own) const;
  // Segments of a branch that both ranks have rows of.
  Rows segments(int branch, int rank, int other) const;

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
    const Piece mine = shards().piece(rank, 0), theirs = shards().piece(other, 0);
    for (int n = 0; sees(rank, other) && n < dilated_.branches; ++n) {
      const int64_t width = dilated_.segment[n], rate = dilated_.rate[n];
      const Rows both = segments(n, rank, other);
      for (int64_t at = both.first; at < both.last; ++at)
        for (int i = 0; i < head_sets(dilated_, whole_, n); ++i) {
          const HeadSet set = head_set(dilated_, whole_, n, i);
          const int64_t origin = at * width + set.offset, end = (at + 1) * width;
          const auto rows = [&](const Piece& p) {
            return pick(origin, rate, std::max(at * width, p.first), std::min(end, p.first + p.count));
          };
          const Picked q = rows(mine), k = rows(theirs);
          if (!set.heads_q || q.count < 1 || k.count < 1) continue;
          const int32_t q_rows = int32_t(q.count), k_rows = int32_t(k.count);
          const RingCall call{.q = {q.first - mine.first, rate, q_rows, set.head_q, set.heads_q, set.step_q},
                              .k = {k.first - theirs.first, rate, k_rows, set.head_kv, set.heads_kv, set.step_kv},
                              .problem = dilated_part(n, set, rank == other)};
          if (Status said = f(call); !said.ok()) return said;
        }
    }
    return Status::good();
  }
};

}  // namespace attune
