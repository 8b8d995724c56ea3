// SPDX-License-Identifier: Apache-2.0
#include "core/variant/nsa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

namespace attune {
namespace {

// The number of tokens in both half-open intervals.
int64_t overlap(int64_t a, int64_t b, int64_t c, int64_t d) {
  return std::max<int64_t>(0, std::min(b, d) - std::max(a, c));
}

TEST(Nsa, taps_are_the_overlap_of_compressed_tokens_and_selection_blocks) {
  for (const auto& [l, d, s] : {std::array{32, 16, 64}, {16, 8, 32}, {4, 4, 4}, {1, 1, 1}, {32, 16, 16}, {8, 2, 4},
                                {64, 64, 64}, {12, 3, 6}}) {
    const Nsa nsa{.d = d, .l = l, .s = s};
    for (int64_t m = 0; m < 9; ++m)
      for (int64_t i = 0; i < 12 * s / d; ++i) {
        const int64_t k = i - nsa.first_tap(m);
        const int64_t tap = k >= 0 && k < nsa.taps() ? nsa.tap(int(k)) : 0;
        EXPECT_EQ(tap * d, overlap(i * d, i * d + l, m * s, (m + 1) * s))
            << "l " << l << " d " << d << " s " << s << " block " << m << " token " << i;
      }
    // A compressed token distributes its entire weight.
    for (int64_t i = 0; i < 20; ++i) {
      int64_t sum = 0;
      for (int64_t m = 0; m < 40; ++m)
        if (const int64_t k = i - nsa.first_tap(m); k >= 0 && k < nsa.taps()) sum += nsa.tap(int(k));
      EXPECT_EQ(sum * d, l);
    }
  }
}

TEST(Nsa, the_papers_filter_has_five_taps) {
  const Nsa nsa{.d = 16, .l = 32, .s = 64};
  ASSERT_EQ(nsa.taps(), 5);
  EXPECT_EQ(nsa.first_tap(3), 11);
  std::vector<int> taps;
  for (int k = 0; k < 5; ++k) taps.push_back(nsa.tap(k));
  EXPECT_EQ(taps, (std::vector{1, 2, 2, 2, 1}));
}

TEST(Nsa, a_compressed_token_needs_all_of_its_tokens) {
  const Nsa nsa{.d = 16, .l = 32, .s = 64};
  const int64_t tokens[] = {0, 1, 15, 16, 31, 32, 33, 47, 48, 63, 64, 1000};
  const int64_t made[] = {0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 61};
  for (size_t n = 0; n < std::size(tokens); ++n) {
    EXPECT_EQ(nsa.compressed(tokens[n]), made[n]) << tokens[n];
    int64_t counted = 0;
    for (int64_t i = 0; i * 16 + 32 <= tokens[n]; ++i) ++counted;
    EXPECT_EQ(nsa.compressed(tokens[n]), counted);
    EXPECT_EQ(nsa.visible(tokens[n] - 1), made[n]);
  }
}

TEST(Nsa, forced_blocks_and_candidates_are_told_apart) {
  const Nsa nsa{.d = 2, .l = 4, .s = 4, .n = 5};
  for (int64_t t = 0; t < 60; ++t) {
    const int64_t own = t / 4;
    std::vector<int64_t> forced{0, std::max<int64_t>(0, own - 1), own};
    std::sort(forced.begin(), forced.end());
    forced.erase(std::unique(forced.begin(), forced.end()), forced.end());
    int64_t candidates = 0;
    for (int64_t m = 0; m < 20; ++m)
      candidates += (m + 1) * 4 <= t + 1 && std::find(forced.begin(), forced.end(), m) == forced.end();
    EXPECT_EQ(nsa.forced(t), int(forced.size())) << t;
    EXPECT_EQ(nsa.candidates(t), candidates) << t;
    EXPECT_EQ(nsa.chosen(t), std::min<int64_t>(5 - nsa.forced(t), candidates)) << t;
  }
}

TEST(Nsa, keys_of_a_block_end_at_the_query_and_bad_entries_have_none) {
  const Nsa nsa{.s = 4};
  const auto keys = [&](int32_t block, int32_t before, int64_t t, int len_k) {
    const Rows r = block_keys(nsa, block, before, t, len_k);
    return std::pair(r.first, std::max(r.first, r.last));
  };
  EXPECT_EQ(keys(1, 0, 20, 30), std::pair(4, 8));
  EXPECT_EQ(keys(1, 0, 5, 30), std::pair(4, 6));
  EXPECT_EQ(keys(1, -1, 20, 7), std::pair(4, 7));
  for (const auto& [block, before] : {std::pair(-1, -1), {1, 1}, {1, 2}, {8, 0}, {INT32_MAX, 0}, {INT32_MIN, -1}}) {
    const auto [first, last] = keys(block, before, 100, 30);
    EXPECT_EQ(first, last) << block << " " << before;
  }
  const auto [first, last] = keys(3, 0, 5, 30);  // the block begins behind the query
  EXPECT_EQ(first, last);
}

Status parameters(std::string_view variant) {
  Problem p;
  p.heads_q = 4, p.heads_kv = 2, p.len_q = p.len_k = 64, p.mask.kind = MaskKind::causal;
  if (Status s = assign(p.variant, variant); !s.ok()) return s;
  Nsa out;
  return read_nsa(p, out);
}

TEST(Nsa, parameters_that_do_not_fit_are_refused_with_a_sentence) {
  EXPECT_TRUE(parameters("nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512").ok());
  EXPECT_TRUE(parameters("nsa d=16 gate=none l=32 n=16 only=sel phi=mlp hidden=7 s=64 w=0").ok());
  const std::pair<std::string_view, std::string_view> wrong[] = {
      {"nsa d=12 gate=sigmoid l=32 n=16 phi=mean s=64 w=512", "nsa: d = 12 does not divide l = 32"},
      {"nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=40 w=512", "nsa: d = 16 does not divide s = 40"},
      {"select d=16 l=40 n=16 s=64", "select: d = 16 does not divide l = 40"},
      {"nsa d=0 gate=sigmoid l=32 n=16 phi=mean s=64 w=512", "nsa: d = 0 is not a number in 1 ... 1048576"},
      {"nsa d=16 gate=sigmoid l=32 n=2 phi=mean s=64 w=512", "nsa: n = 2 is not a number in 3 ... 4096"},
      {"nsa d=16 gate=tanh l=32 n=16 phi=mean s=64 w=512", "nsa: gate = tanh is not one of sigmoid, softmax, none"},
      {"nsa d=16 gate=none l=32 n=16 only=all phi=mean s=64 w=512", "nsa: only = all is not one of cmp, sel, win"},
      {"nsa d=16 gate=none l=32 n=16 phi=max s=64 w=512", "nsa: phi = max is not one of mean, conv, mlp, none"},
      {"nsa d=16 gate=none l=32 n=16 hidden=8 phi=mean s=64 w=512", "nsa: hidden = 8 requires phi=mlp"},
      {"selected n=16", "selected: s= not given; required: n s"},
      {"selected n=16 s=64 w=3", "selected: unknown parameter 'w'; required: n s"},
      {"select d=16 l=32 n=16x s=64", "select: n = 16x is not a number in 3 ... 4096"},
      {"gate act=sigmoid", "gate: mask causal is not full"},
      {"compress d=16 l=32 phi=mean", "compress: mask causal is not full"},
      {"dilated rates=1", "'dilated' is not a word of native sparse attention"}};
  for (const auto& [variant, sentence] : wrong) EXPECT_EQ(parameters(variant).message, sentence) << variant;
}

TEST(Nsa, sequences_of_compressed_tokens_lie_apart) {
  const Nsa nsa{.d = 4, .l = 8};
  Problem p;
  p.batch = 5, p.len_q = 40;
  const int32_t cu[] = {0, 5, 7, 7, 40, 47};
  Args a;
  a[Role::q] = {.data = const_cast<int32_t*>(cu), .dtype = DType::f32, .extent = {1, 47, 1, 8}};
  a[Role::cu_q] = {.data = const_cast<int32_t*>(cu), .dtype = DType::i32, .extent = {1, 1, 1, 6}};
  int end = 0;
  for (int b = 0; b < 5; ++b) {
    const CompressSequence s = compress_sequence(p, a, nsa, b, 47 / 4);
    EXPECT_EQ(s.tokens, cu[b + 1] - cu[b]);
    EXPECT_EQ(s.count, nsa.compressed(s.tokens)) << b;
    EXPECT_GE(s.out_first, end);
    end = s.out_first + s.count;
  }
  EXPECT_LE(end, 47 / 4);
}

// For every list of four entries, including invalid ones, the compacted list has the same keys as the single entries.
TEST(Nsa, a_compact_list_has_the_entries_that_count) {
  const Nsa nsa{.s = 4};
  constexpr int kBlocks = 3, kEntries[] = {-5, -1, 0, 1, 2, 3, INT32_MAX};
  for (const int a : kEntries)
    for (const int b : kEntries)
      for (const int c : kEntries)
        for (const int d : kEntries) {
          std::array<int32_t, 4> list{a, b, c, d};
          std::vector<int> want;
          int before = -1;
          for (const int m : list) {
            const Rows keys = block_keys(nsa, m, before, kBlocks * 4, kBlocks * 4);
            if (keys.first < keys.last) want.push_back(keys.first / 4);
            before = std::max(before, m);
          }
          const int kept = compact_blocks(list.data(), 4, kBlocks);
          EXPECT_EQ(std::vector<int>(list.begin(), list.begin() + kept), want) << a << ' ' << b << ' ' << c << ' ' << d;
        }
}

}  // namespace
}  // namespace attune
