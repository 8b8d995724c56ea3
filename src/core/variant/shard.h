// SPDX-License-Identifier: Apache-2.0
// Which tokens a rank has, and which of another rank's keys its queries see. A stream of tokens (every row of the
// batch, or all sequences packed) is divided into pieces whose sizes differ by at most one.
//   ring, ulysses   rank r has one contiguous piece: tokens [r N / R, (r + 1) N / R)
//   zigzag          2 R pieces, of which rank r has numbers r and 2 R - 1 - r: equal work under a causal mask
//   striped         tokens r, r + R, r + 2 R, ...
// Pure arithmetic, on host and device: transports and kernels never decide placement.
#pragma once
#include "core/mask.h"

namespace attune {

enum class Cut : int32_t { ring, zigzag, striped, ulysses };

struct Piece {
  int64_t first = 0;   // first token
  int32_t count = 0;   // number of tokens
  int32_t step = 1;    // distance between tokens

  ATTUNE_HD constexpr int64_t token(int64_t row) const { return first + row * step; }
  // The number of its tokens before token t of the stream.
  ATTUNE_HD constexpr int32_t before(int64_t t) const { return clamp(ceil_div(t - first, step), 0, count); }
};

struct Shards {
  Cut cut = Cut::ring;
  int32_t tokens = 1, ranks = 1;

  ATTUNE_HD constexpr int pieces() const { return cut == Cut::zigzag ? 2 : 1; }
  ATTUNE_HD constexpr Piece piece(int rank, int n) const {
    if (cut == Cut::striped)
      return {rank, int32_t(tokens > rank ? ceil_div(tokens - rank, ranks) : 0), ranks};
    const int64_t all = int64_t(pieces()) * ranks, number = n ? all - 1 - rank : rank;
    const int64_t first = number * tokens / all;
    return {first, int32_t((number + 1) * tokens / all - first), 1};
  }
  ATTUNE_HD constexpr int count(int rank) const {
    return piece(rank, 0).count + (pieces() == 2 ? piece(rank, 1).count : 0);
  }
  // The shard row at which its n-th piece starts.
  ATTUNE_HD constexpr int first_row(int rank, int n) const { return n ? piece(rank, 0).count : 0; }
  ATTUNE_HD constexpr int64_t token(int rank, int row) const {
    const int n = row >= piece(rank, 0).count && pieces() == 2;
    return piece(rank, n).token(row - first_row(rank, n));
  }
  constexpr int most() const {
    int largest = 0;
    for (int r = 0; r < ranks; ++r) largest = count(r) > largest ? count(r) : largest;
    return largest;
  }
};

// Which keys of one piece the queries of another see, in terms of their rows: the mask of a part (an index into
// part_masks) and the positions of query 0 and key 0. Rows of striped pieces are R tokens apart. With key token t' = j
// R + r' and query token t = i R + r, a window t - left <= t' <= t + right is
//   i - floor((left + r' - r) / R)  <=  j  <=  i + floor((right + r - r') / R)
// which is again a window, of width floor((left + right) / R) or one less. Two masks therefore serve all pairs of
// ranks.
struct Sight {
  bool any = false;  // some query sees some key, unless sequence boundaries of a packed stream separate them
  int mask = 0;
  int64_t q_at = 0, k_at = 0;
};

constexpr int64_t left_of(const Mask& m) {
  return m.kind == MaskKind::window && m.left != kNoLimit ? m.left : kUnbounded;
}
constexpr int64_t right_of(const Mask& m) {
  return m.kind == MaskKind::causal ? 0 : m.kind == MaskKind::window && m.right != kNoLimit ? m.right : kUnbounded;
}

// For striped pieces that start at tokens q and k of a sequence, with stride R.
ATTUNE_HD constexpr Sight striped_sight(int64_t left, int64_t right, int64_t q, int64_t k, int ranks) {
  const bool from = left != kUnbounded, to = right != kUnbounded;
  const int64_t back = from ? floor_div(left + k - q, ranks) : 0, ahead = to ? floor_div(right + q - k, ranks) : 0;
  if (from && to) {
    const int64_t widest = floor_div(left + right, ranks), width = back + ahead;
    return {.mask = int(widest - width), .q_at = ahead};
  }
  return {.q_at = to ? ahead : -back};
}

// Fills the masks of the parts and returns their number.
constexpr int part_masks(const Mask& m, const Shards& s, Mask out[2]) {
  const int64_t left = left_of(m), right = right_of(m);
  const bool from = left != kUnbounded, to = right != kUnbounded;
  out[0] = {.kind = m.kind, .align = Align::absolute, .left = m.left, .right = m.right};
  if (s.cut != Cut::striped || (!from && !to)) return 1;
  if (!from) return out[0] = {.kind = MaskKind::causal, .align = Align::absolute}, 1;
  if (!to) return out[0] = {.kind = MaskKind::window, .align = Align::absolute, .left = 0, .right = kNoLimit}, 1;
  const int32_t widest = int32_t(floor_div(left + right, s.ranks));
  for (int n = 0; n < 2; ++n)
    out[n] = {.kind = MaskKind::window, .align = Align::absolute, .left = widest - n, .right = 0};
  return widest ? 2 : 1;
}

// Whether a key of `k` lies in the window of a query of `q`; both have the same step.
ATTUNE_HD constexpr bool meets(const Piece& q, const Piece& k, int64_t left, int64_t right) {
  if (!q.count || !k.count) return false;
  // Distances run from `from` to `to`, one step apart; `least` is the first that is at least -left.
  const int64_t from = k.first - q.token(q.count - 1), to = k.token(k.count - 1) - q.first;
  const int64_t least = from >= -left ? from : from + ceil_div(-left - from, q.step) * q.step;
  return least <= to && least <= right;
}

ATTUNE_HD constexpr Sight sight(const Shards& s, int64_t left, int64_t right, const Piece& q, const Piece& k) {
  Sight at{.q_at = q.first, .k_at = k.first};
  if (s.cut == Cut::striped) at = striped_sight(left, right, q.first, k.first, s.ranks);
  at.any = meets(q, k, left, right);
  return at;
}

// The same for the sequence of a packed stream that starts at token `start`: positions count from there. Distances
// within a sequence equal those in the stream, so sight() decides whether any key is seen at all.
ATTUNE_HD constexpr Sight sight_in(const Shards& s, int64_t left, int64_t right, const Piece& q, const Piece& k,
                                   int64_t start) {
  const int64_t q_at = q.token(q.before(start)) - start, k_at = k.token(k.before(start)) - start;
  if (s.cut == Cut::striped) return striped_sight(left, right, q_at, k_at, s.ranks);
  return {.q_at = q_at, .k_at = k_at};
}

// The small tables that parts read, for one rank: built on the device of the data, once per run.
struct ShardTables {
  Shards shards{};
  int32_t rank = 0, batch = 1;         // batch: 1 if all batch rows are divided alike
  int64_t left = 0, right = 0;         // mask window
  const int32_t* sequences = nullptr;  // [batch + 1], packed streams; else null
  int64_t* positions = nullptr;        // [pieces][ranks][pieces][batch][2]: by query piece, other rank, key piece
  int32_t* starts = nullptr;           // [ranks][pieces][batch + 1]: first row of a sequence in a piece; packed only

  ATTUNE_HD constexpr int64_t pairs() const { return int64_t(shards.pieces()) * shards.ranks * shards.pieces(); }
  ATTUNE_HD constexpr int64_t pair(int q_piece, int other, int k_piece) const {
    return (int64_t(q_piece) * shards.ranks + other) * shards.pieces() + k_piece;
  }
  ATTUNE_HD constexpr int64_t start(int other, int piece) const {
    return (int64_t(other) * shards.pieces() + piece) * (batch + 1);
  }
  // Fills item n of `items()`: one sequence of one pair, with its table entries.
  ATTUNE_HD constexpr int64_t items() const { return pairs() * (batch + 1); }
  ATTUNE_HD void fill(int64_t n) const {
    const int b = int(n % (batch + 1)), k_piece = int(n / (batch + 1) % shards.pieces());
    const int other = int(n / (batch + 1) / shards.pieces() % shards.ranks);
    const int q_piece = int(n / (batch + 1) / shards.pieces() / shards.ranks);
    const Piece q = shards.piece(rank, q_piece), k = shards.piece(other, k_piece);
    const int64_t start_b = sequences ? clamp(sequences[b], 0, shards.tokens) : 0;
    if (starts && !q_piece) starts[start(other, k_piece) + b] = k.before(start_b);
    if (b == batch) return;
    const Sight at = sequences ? sight_in(shards, left, right, q, k, start_b) : sight(shards, left, right, q, k);
    int64_t* to = positions + (pair(q_piece, other, k_piece) * batch + b) * 2;
    to[0] = at.q_at, to[1] = at.k_at;
  }
};

// Block lists of all tokens, restricted to some rows and to key blocks [first, last), renumbered from 0. A list keeps
// its place among the entries: its remainder starts where its first row started.
struct ListCut {
  const int32_t* begin = nullptr;   // [batches, heads, all rows + 1]
  int64_t stride_batch = 0, stride_head = 0;
  const int32_t* column = nullptr;  // [bound]
  int32_t bound = 0, batches = 1, heads = 1;
  int32_t row = 0, rows = 0, first = 0, last = 0;
  int32_t* to_begin = nullptr;      // [batches, heads, rows + 1]
  int32_t* to_column = nullptr;     // [bound]

  ATTUNE_HD const int32_t* list(int n) const {
    return begin + n / heads * stride_batch + n % heads * stride_head + row;
  }
  ATTUNE_HD int32_t entry(const int32_t* at) const { return clamp(*at, 0, bound); }
  ATTUNE_HD bool kept(int32_t entry) const { return column[entry] >= first && column[entry] < last; }
  ATTUNE_HD void fill(int n) const {
    const int32_t* const from = list(n);
    int32_t* const to = to_begin + int64_t(n) * (rows + 1);
    int32_t next = entry(from);
    for (int r = 0; r < rows; ++r) {
      to[r] = next;
      for (int32_t e = entry(from + r); e < entry(from + r + 1); ++e)
        if (kept(e) && next < bound) to_column[next++] = column[e] - first;
    }
    to[rows] = next;
  }
};

}  // namespace attune
