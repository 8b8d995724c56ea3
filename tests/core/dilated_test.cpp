// SPDX-License-Identifier: Apache-2.0
#include "core/variant/dilated.h"

#include <set>

#include "core/work.h"
#include "tests/asked.h"

using namespace attune;

namespace {

std::string refusal(std::string_view line) {
  Problem p;
  return parse(line, p).message;
}

std::string sized(std::string_view variant) { return join("forward f32 b1 h4 q64 k64 d16 causal : dilated ", variant); }

TEST(Dilated, words_become_branches) {
  const Dilated d = dilated_of(problem(sized("segments=8,64 rates=1,2")));
  EXPECT_EQ(d.branches, 2);
  EXPECT_EQ(d.segment[1], 64);
  EXPECT_EQ(d.rate[1], 2);
  EXPECT_TRUE(d.mode == Dilated::Mode::longnet && d.norm == Dilated::Norm::lse && !d.detached && d.sums());
  const Dilated other = dilated_of(problem(sized("mode=headgroup norm=divide segments=8,64,9 rates=1,2,9")));
  EXPECT_TRUE(other.mode == Dilated::Mode::headgroup && other.norm == Dilated::Norm::divide && !other.sums());
  EXPECT_FLOAT_EQ(other.factor(), 1.f / 3);
  EXPECT_TRUE(dilated_of(problem(sized("gradient=detached segments=8,64 rates=1,2"))).detached);
  EXPECT_EQ(dilated_of(problem(sized("norm=none segments=8,64 rates=1,2"))).factor(), 1.f);
}

TEST(Dilated, mistakes_are_sentences) {
  EXPECT_EQ(refusal(sized("rates=1")), "dilated: segments = '' is not a list of 1 ... 32 numbers");
  EXPECT_EQ(refusal(sized("rates=1, segments=8")), "dilated: rates = '1,' is not a list of 1 ... 32 numbers");
  EXPECT_EQ(refusal(sized("rates=1,2 segments=8")), "dilated: 1 segments and 2 rates given; each segment has one rate");
  EXPECT_EQ(refusal(sized("rates=9 segments=8")), "dilated: rate 9 is not in 1 ... 8, the length of its segment");
  EXPECT_EQ(refusal(sized("rates=0 segments=8")), "dilated: rate 0 is not in 1 ... 8, the length of its segment");
  EXPECT_EQ(refusal(sized("offset=1 rates=1 segments=8")),
            "dilated: unknown parameter 'offset'; accepted: gradient, mode, norm, offsets, rates, segments");
  EXPECT_EQ(refusal(sized("mode=ring rates=1 segments=8")), "dilated: mode = ring is not one of longnet, headgroup");
  EXPECT_EQ(refusal(sized("norm=softmax rates=1 segments=8")),
            "dilated: norm = softmax is not one of lse, divide, none");
  EXPECT_EQ(refusal(sized("gradient=none rates=1 segments=8")),
            "dilated: gradient = none is not one of exact, detached");
  EXPECT_EQ(refusal(sized("offsets=heads rates=1 segments=8")),
            "dilated: offsets = heads is not one of cyclic, contiguous");
  EXPECT_EQ(refusal(sized("mode=headgroup offsets=contiguous rates=1 segments=8")),
            "dilated: offsets=contiguous requires mode=longnet; heads of a group have the same offset");
  EXPECT_EQ(refusal(sized("gradient=detached norm=none rates=1 segments=8")),
            "dilated: gradient=detached requires mode=longnet and norm=lse");
  EXPECT_EQ(refusal(sized("mode=headgroup rates=1,1,1,1,1 segments=8,8,8,8,8")),
            "dilated: mode=headgroup requires a head per branch: 5 branches, heads_q = 4");
  const std::string_view end = " : dilated rates=1 segments=8";
  EXPECT_EQ(refusal(join("forward f32 b1 h4 q64 k65 d16 causal", end)),
            "dilated: q64 and k65 differ; queries and keys must be the same rows");
  EXPECT_EQ(refusal(join("forward f32 b1 h4 q64 k64 d16 window4,0", end)),
            "dilated: mask window4,0 is not full or causal");
  EXPECT_EQ(refusal(join("forward f32 b1 h4 q64 k64 d16 causal/2+0", end)),
            "dilated: mask causal/2+0 is not full or causal");
  EXPECT_EQ(refusal(join("forward f32 b1 h4 q64 k64 d16 causal softcap", end)),
            "dilated: options of dense attention are not accepted");
  EXPECT_EQ(refusal(join("forward f32 b1 h4 q64 k64 d16 causal ragged", end)),
            "dilated: keys must be linear, not ragged");
}

TEST(Dilated, first_groups_get_the_heads_that_are_left_over) {
  const int wanted[][4] = {{0, 3, 6, 8}, {0, 3, 5, 7}, {0, 2, 4, 6}, {0, 1, 2, 3}};
  const int heads[] = {8, 7, 6, 3};
  for (int n = 0; n < 4; ++n)
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(group_heads(heads[n], 3, i).first, wanted[n][i]);
      EXPECT_EQ(group_heads(heads[n], 3, i).last, wanted[n][i + 1]);
    }
}

TEST(Dilated, picked_rows_are_those_on_the_remainder) {
  for (int origin = 0; origin < 12; ++origin)
    for (int rate = 1; rate < 6; ++rate)
      for (int first = 0; first < 20; ++first)
        for (int last = first; last < 20; ++last) {
          std::vector<int> wanted;
          for (int row = first; row < last; ++row)
            if (row >= origin && (row - origin) % rate == 0) wanted.push_back(row);
          const Picked got = pick(origin, rate, first, last);
          ASSERT_EQ(got.count, int64_t(wanted.size())) << origin << " " << rate << " " << first << " " << last;
          if (!wanted.empty()) {
            ASSERT_EQ(got.first, wanted[0]);
          }
        }
}

// Every query head belongs to exactly one set of each branch that includes it, with its own remainder and KV head.
TEST(Dilated, sets_of_heads_are_the_heads) {
  for (const std::string_view mode : {"longnet", "headgroup", "longnet offsets=contiguous"})
    for (int kv = 1; kv <= 6; ++kv)
      for (int group = 1; group <= 6; ++group)
        for (int rate = 1; rate <= 9; ++rate) {
          const int heads = kv * group;
          if (mode == "headgroup" && heads < 3) continue;
          const Problem p = problem(join("forward f32 b1 h", heads, "/", kv, " q64 k64 d16 full : dilated mode=", mode,
                                         " rates=", rate, ",", rate, ",", rate, " segments=16,32,9"));
          const Dilated d = dilated_of(p);
          for (int n = 0; n < 3; ++n) {
            const Rows own = group_heads(heads, 3, n);
            std::multiset<int> seen;
            for (int i = 0; i < head_sets(d, p, n); ++i) {
              const HeadSet s = head_set(d, p, n, i);
              ASSERT_GE(s.heads_q, 0) << name(p);
              if (!s.heads_q) continue;
              ASSERT_EQ(s.heads_q % s.heads_kv, 0) << name(p);
              for (int m = 0; m < s.heads_q; ++m) {
                const int head = s.head_q + m * s.step_q;
                seen.insert(head);
                ASSERT_EQ(s.head_kv + m / (s.heads_q / s.heads_kv) * s.step_kv, head / group) << name(p);
                const int each = (heads + rate - 1) / rate;
                ASSERT_EQ(s.offset, mode == "longnet" ? head % rate : mode == "headgroup" ? n % rate : head / each)
                    << name(p);
              }
            }
            std::multiset<int> wanted;
            for (int h = 0; h < heads; ++h)
              if (mode != "headgroup" || (own.first <= h && h < own.last)) wanted.insert(h);
            ASSERT_EQ(seen, wanted) << name(p);
          }
        }
}

// Compares with a count of single pairs.
TEST(Dilated, cost_is_of_the_pairs_that_are_multiplied) {
  for (const std::string_view mask : {"full", "causal"})
    for (const std::string_view mode : {"longnet", "headgroup", "longnet offsets=contiguous"}) {
      const Problem p = problem(join("forward f32 b3 h5 q47 k47 d16 ", mask, " : dilated mode=", mode,
                                     " rates=1,2,7 segments=10,20,64"));
      const Dilated d = dilated_of(p);
      int pairs = 0;
      for (int n = 0; n < 3; ++n)
        for (int h = 0; h < 5; ++h)
          for (int i = 0; i < 47; ++i)
            for (int j = 0; j < 47; ++j) {
              const bool dealt = mode == "headgroup";
              const int w = d.segment[n], r = d.rate[n];
              const int o = dealt ? n % r : mode == "longnet" ? h % r : h / ((5 + r - 1) / r);
              if (dealt && (h < group_heads(5, 3, n).first || h >= group_heads(5, 3, n).last)) continue;
              pairs += i / w == j / w && i % w % r == o && j % w % r == o && (mask == "full" || j <= i);
            }
      EXPECT_EQ(cost(p).pairs, 3. * pairs);
      EXPECT_EQ(cost(p).flops, 3. * pairs * 2 * 32);
    }
}

}  // namespace
