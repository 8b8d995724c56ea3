// SPDX-License-Identifier: Apache-2.0
// Shards compared with their definition, pair by pair: every token belongs to exactly one shard, sizes differ by at
// most one per piece, and the mask of a part agrees with the mask of the whole.
#include <gtest/gtest.h>

#include <vector>

#include "core/variant/ring.h"

namespace attune {
namespace {

constexpr Cut kCuts[] = {Cut::ring, Cut::zigzag, Cut::striped, Cut::ulysses};

TEST(shard, every_token_belongs_to_one_rank_and_one_row) {
  for (const Cut cut : kCuts)
    for (int ranks = 1; ranks <= 9; ++ranks)
      for (int tokens = 1; tokens <= 40; ++tokens) {
        const Shards s{cut, tokens, ranks};
        std::vector<int> owners(static_cast<size_t>(tokens));
        int total = 0, most = 0;
        for (int r = 0; r < ranks; ++r) {
          total += s.count(r), most = std::max(most, s.count(r));
          for (int row = 0; row < s.count(r); ++row) {
            const int64_t t = s.token(r, row);
            ASSERT_TRUE(t >= 0 && t < tokens);
            ++owners[size_t(t)];
            ASSERT_TRUE(!row || t > s.token(r, row - 1)) << "rows are in the order of tokens";
          }
        }
        ASSERT_EQ(total, tokens);
        ASSERT_EQ(most, s.most());
        for (const int n : owners) ASSERT_EQ(n, 1);
      }
}

TEST(shard, sizes_differ_by_one_a_piece) {
  for (const Cut cut : kCuts)
    for (int ranks = 1; ranks <= 9; ++ranks)
      for (int tokens = 1; tokens <= 40; ++tokens) {
        const Shards s{cut, tokens, ranks};
        int least = tokens;
        for (int r = 0; r < ranks; ++r) least = std::min(least, s.count(r));
        ASSERT_LE(s.most() - least, s.pieces());
      }
}

TEST(shard, layouts_are_the_published_ones) {
  const auto tokens = [](Cut cut, int rank) {
    const Shards s{cut, 16, 4};
    std::vector<int64_t> all;
    for (int row = 0; row < s.count(rank); ++row) all.push_back(s.token(rank, row));
    return all;
  };
  using T = std::vector<int64_t>;
  EXPECT_EQ(tokens(Cut::ring, 1), (T{4, 5, 6, 7}));
  EXPECT_EQ(tokens(Cut::ulysses, 3), (T{12, 13, 14, 15}));
  EXPECT_EQ(tokens(Cut::zigzag, 0), (T{0, 1, 14, 15}));
  EXPECT_EQ(tokens(Cut::zigzag, 3), (T{6, 7, 8, 9}));
  EXPECT_EQ(tokens(Cut::striped, 2), (T{2, 6, 10, 14}));
}

TEST(shard, zigzag_gives_every_rank_the_same_causal_work) {
  const Shards s{Cut::zigzag, 64, 4};
  for (int r = 0; r < 4; ++r) {
    int64_t pairs = 0;
    for (int row = 0; row < s.count(r); ++row) pairs += s.token(r, row) + 1;
    EXPECT_EQ(pairs, 64 * 65 / 2 / 4) << r;
  }
}

TEST(shard, before_counts_the_tokens_that_come_first) {
  for (const Cut cut : kCuts)
    for (int r = 0; r < 3; ++r) {
      const Shards s{cut, 23, 3};
      for (int n = 0; n < s.pieces(); ++n)
        for (int t = 0; t <= 23; ++t) {
          int count = 0;
          for (int row = 0; row < s.piece(r, n).count; ++row) count += s.piece(r, n).token(row) < t;
          ASSERT_EQ(s.piece(r, n).before(t), count);
        }
    }
}

// Whether row i sees row j under a part's mask and positions.
bool seen(const Mask& part, const Sight& at, int i, int j) {
  return band_of(part, 1, 1, at.q_at, at.k_at).visible(i, j);
}

std::vector<Mask> masks() {
  std::vector<Mask> all{{.kind = MaskKind::full}, {.kind = MaskKind::causal}};
  for (const int left : {0, 1, 3, 7, 20, int(kNoLimit)})
    for (const int right : {0, 2, 5, 20, int(kNoLimit)})
      all.push_back({.kind = MaskKind::window, .left = left, .right = right});
  return all;
}

TEST(shard, parts_see_what_the_whole_sees) {
  int64_t pairs = 0;
  for (const Cut cut : {Cut::ring, Cut::zigzag, Cut::striped})
    for (const int ranks : {1, 2, 3, 5, 8})
      for (const int tokens : {1, 4, 17, 24})
        for (const Mask& m : masks()) {
          const Shards s{cut, tokens, ranks};
          const Band whole = band_of(m, tokens, tokens, 0, 0);
          Mask part[2];
          const int count = part_masks(m, s, part);
          for (int r = 0; r < ranks; ++r)
            for (int other = 0; other < ranks; ++other)
              for (int n = 0; n < s.pieces() * s.pieces(); ++n) {
                const Piece q = s.piece(r, n / s.pieces()), k = s.piece(other, n % s.pieces());
                const Sight at = sight(s, left_of(m), right_of(m), q, k);
                bool any = false;
                for (int i = 0; i < q.count; ++i)
                  for (int j = 0; j < k.count; ++j, ++pairs) {
                    const bool wanted = whole.visible(q.token(i), k.token(j));
                    any |= wanted;
                    if (at.any) {
                      ASSERT_LT(at.mask, count);
                      ASSERT_EQ(seen(part[at.mask], at, i, j), wanted);
                    }
                  }
                ASSERT_EQ(at.any, any) << "a pair of pieces is left out exactly where nothing is seen";
                ASSERT_TRUE(r != other || n / s.pieces() != n % s.pieces() || at.mask < count);
              }
        }
  EXPECT_GT(pairs, 100000);
}

TEST(shard, sequences_of_a_packed_stream_see_themselves_alone) {
  const std::vector<int32_t> starts{0, 5, 5, 12, 13, 24};
  const int batch = int(starts.size()) - 1;
  for (const Cut cut : {Cut::ring, Cut::zigzag, Cut::striped})
    for (const int ranks : {1, 2, 3, 5, 8})
      for (const Mask& m : masks()) {
        if (cut == Cut::striped && m.kind == MaskKind::window) continue;
        const Shards s{cut, 24, ranks};
        Mask part[2];
        part_masks(m, s, part);
        for (int r = 0; r < ranks; ++r) {
          ShardTables t{.shards = s, .rank = r, .batch = batch, .left = left_of(m), .right = right_of(m),
                        .sequences = starts.data()};
          std::vector<int64_t> positions(size_t(t.pairs()) * size_t(batch) * 2);
          std::vector<int32_t> rows(size_t(t.start(ranks, 0)));
          t.positions = positions.data(), t.starts = rows.data();
          for (int64_t n = 0; n < t.items(); ++n) t.fill(n);
          for (int other = 0; other < ranks; ++other)
            for (int n = 0; n < s.pieces() * s.pieces(); ++n)
              for (int b = 0; b < batch; ++b) {
                const int q_piece = n / s.pieces(), k_piece = n % s.pieces();
                const Piece q = s.piece(r, q_piece), k = s.piece(other, k_piece);
                const int32_t* at_q = &rows[size_t(t.start(r, q_piece) + b)];
                const int32_t* at_k = &rows[size_t(t.start(other, k_piece) + b)];
                const int64_t* at = &positions[size_t(t.pair(q_piece, other, k_piece) * batch + b) * 2];
                for (int i = at_q[0]; i < at_q[1]; ++i)
                  for (int j = at_k[0]; j < at_k[1]; ++j) {
                    const int64_t token_q = q.token(i), token_k = k.token(j);
                    ASSERT_TRUE(token_q >= starts[size_t(b)] && token_q < starts[size_t(b) + 1]);
                    ASSERT_TRUE(token_k >= starts[size_t(b)] && token_k < starts[size_t(b) + 1]);
                    const Sight in{.q_at = at[0], .k_at = at[1]};
                    ASSERT_EQ(seen(part[0], in, i - at_q[0], j - at_k[0]),
                              band_of(m, 24, 24, 0, 0).visible(token_q, token_k));
                  }
              }
        }
      }
}

Status asked(std::string_view line) {
  Problem p;
  return parse(line, p);
}

TEST(ring_problem, refusals_are_sentences) {
  const struct { std::string_view line, why; } all[] = {
      {"forward f32 b1 h4 q16 k16 d16 causal : ring layout=spiral ranks=2 tokens=32",
       "ring: layout=spiral is not one of ring, zigzag, striped, ulysses"},
      {"forward f32 b1 h4 q16 k16 d16 causal : ring layout=ring ranks=0 tokens=32",
       "ring: ranks=0 is not a number in 1 ... 65536"},
      {"forward f32 b1 h4 q16 k16 d16 causal : ring layout=ring ranks=2",
       "ring: tokens= is not a number in 1 ... 2147483647"},
      {"forward f32 b1 h4 q16 k16 d16 causal : ring layout=ring ranks=2 tokens=32 turns=3",
       "ring: turns=3 given without inner=; accepted: layout, ranks, tokens, inner"},
      {"forward f32 b1 h4 q15 k15 d16 causal : ring layout=ring ranks=2 tokens=32",
       "ring: len_q = 15 is below the 16 tokens of a shard"},
      {"forward f32 b1 h4 q16 k17 d16 causal : ring layout=ring ranks=2 tokens=32",
       "ring: len_q = 16 is not len_k = 17; q and k are divided alike"},
      {"forward f32 b1 h3 q16 k16 d16 causal : ring layout=ulysses ranks=2 tokens=32",
       "ring: heads_q = 3 is not divisible by 2 ranks"},
      {"forward f32 b1 h12/3 q16 k16 d16 causal : ring layout=ulysses ranks=2 tokens=32",
       "ring: heads_kv = 3 and 2 ranks: neither divides the other"},
      {"forward f32 b1 h4 q16 k16 d16 causal alibi : ring layout=striped ranks=2 tokens=32",
       "ring: layout striped cannot be combined with alibi, which depends on token positions"},
      {"forward f32 b1 h4 q16 k16 d16 full dropout : ring layout=ulysses ranks=2 tokens=32",
       "ring: layout ulysses cannot be combined with dropout: its mask depends on the head, and heads move"},
      {"forward f32 b1 h4 q16 k16 d16 causal bias : ring layout=ring ranks=2 tokens=32",
       "ring: cannot be combined with option bias"},
      {"forward f32 b1 h4 q16 k16 d16 causal@top_left/2+0 : ring layout=ring ranks=2 tokens=32",
       "ring: mask causal@top_left/2+0 has @absolute or a key step; neither is accepted"},
      {"forward f32 b1 h4 q16 k16 d16 causal paged16 : ring layout=ring ranks=2 tokens=32",
       "ring: keys must be linear or ragged, not paged"},
      {"forward f32 b1 h4 q16 k16 d16 causal blocks8x8x9 block_bias : ring layout=ring ranks=2 tokens=32",
       "ring: cannot be combined with option block_bias"},
      {"forward f32 b1 h4 q16 k16 d16 causal blocks16x16x9 : ring layout=zigzag ranks=2 tokens=32",
       "ring: the second piece of rank 0 begins at token 24, not at a multiple of the block sizes 16 and 16"},
      {"forward f32 b1 h4 q12 k12 d16 causal blocks16x12x9 : ring layout=striped ranks=3 tokens=36",
       "ring: layout striped requires block sizes that are multiples of the 3 ranks, not 16 and 12"},
      {"forward f32 b3 h4 q16 k16 d16 causal blocks16x16x9 ragged : ring layout=zigzag ranks=1 tokens=32",
       "ring: block lists require linear keys, not ragged"},
      {"forward f32 b1 h4 q16 k16 d16 causal : ring layout=zigzag ranks=2 tokens=32 inner=dilated norm=none rates=2 "
       "segments=8",
       "ring: layout zigzag requires norm=lse and gradient=exact of dilated: it merges one softmax over all keys"},
      {"forward f32 b1 h4 q16 k16 d16 causal : ring layout=ulysses ranks=2 tokens=32 inner=dilated offsets=contiguous "
       "rates=2 segments=8",
       "ring: layout ulysses requires offsets=cyclic of dilated: the heads of a rank would have other offsets"},
      {"forward f32 b1 h4 q17 k17 d16 causal blocks16x16x9 : ring layout=ring ranks=2 tokens=34",
       "ring: the shard of rank 1 begins at token 17, not at a multiple of the block sizes 16 and 16"},
  };
  for (const auto& [line, why] : all) EXPECT_EQ(asked(line).message, why) << line;
  EXPECT_TRUE(asked("forward f32 b1 h4 q16 k16 d16 causal : ring layout=zigzag ranks=2 tokens=32").ok());
}

}  // namespace
}  // namespace attune
