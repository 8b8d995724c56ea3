// SPDX-License-Identifier: Apache-2.0
// Bounds over boxes against every pair in the box, for random formulas: no visible pair is ever skipped, no hidden pair
// ever passes for visible, and bounds of array blocks hold every element that an index can reach.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/formula/block_bounds.h"
#include "core/formula/of_problem.h"
#include "reference/formula.h"

using namespace attune;

namespace {

// Random expressions: numbers of a depth, and truths.
struct Draw {
  std::mt19937 random;
  int below(int n) { return int(random() % uint32_t(n)); }

  std::string number(int depth, bool with_s) {
    static const char* const kLeaves[] = {"q", "k", "h", "g", "b", "len_k", "len_q", "7", "0.5", "3", "64", "inf"};
    if (depth == 0) return with_s && below(3) == 0 ? "s" : kLeaves[below(below(8) ? 11 : 12)];
    const auto of = [&] { return number(depth - 1, with_s); };
    switch (below(16)) {
      case 0: return "(" + of() + "+" + of() + ")";
      case 1: case 2: return "(" + of() + "-" + of() + ")";
      case 3: return "(" + of() + "*" + of() + ")";
      case 4: return "(" + of() + "/" + of() + ")";
      case 5: return "(" + of() + "//" + of() + ")";
      case 6: return "(" + of() + "%" + of() + ")";
      case 7: return "min(" + of() + "," + of() + ")";
      case 8: return "max(" + of() + "," + of() + ")";
      case 9: return "abs(" + of() + ")";
      case 10: return below(2) ? "-" + of() : "floor(" + of() + ")";
      case 11: {
        static const char* const kFunctions[] = {"tanh(", "exp(", "log(", "sqrt("};
        return kFunctions[below(4)] + of() + ")";
      }
      case 12: return "(" + truth(depth - 1, with_s) + "?" + of() + ":" + of() + ")";
      case 13: return "doc[" + number(depth - 1, false) + "]";
      case 14: return "table[" + number(depth - 1, false) + "," + number(depth - 1, false) + "]";
      default: return number(0, with_s);
    }
  }
  std::string truth(int depth, bool with_s) {
    static const char* const kComparisons[] = {"<", "<=", ">", ">=", "==", "!="};
    if (depth > 0 && below(3) == 0) {
      const std::string a = truth(depth - 1, with_s), b = truth(depth - 1, with_s);
      return below(3) ? "(" + a + (below(2) ? "&&" : "||") + b + ")" : "!(" + a + ")";
    }
    return "(" + number(depth, with_s) + kComparisons[below(6)] + number(depth, with_s) + ")";
  }
};

struct World {
  std::vector<int32_t> doc;
  std::vector<float> table;
  std::vector<BlockBounds::Cell> cells;
  Args args{};

  explicit World(Draw& d) : doc(300), table(2 * 130) {
    for (size_t n = 0; n < doc.size(); ++n) doc[n] = int(n) / 37 + d.below(20) / 19;
    for (float& x : table) x = float(d.below(200) - 100) / 8;
    if (d.below(3) == 0) table[size_t(d.below(260))] = d.below(2) ? NAN : INFINITY;
  }
  // Arrays may come in either order.
  void place(const Formula& f) {
    for (int n = 0; n < f.arrays; ++n) {
      Tensor& t = args[variant_tensor(n)];
      if (f.array[n].name == "doc")
        t = {.data = doc.data(), .dtype = DType::i32, .extent = {1, 1, 1, 300}, .stride = {}};
      else
        t = {.data = table.data(), .dtype = DType::f32, .extent = {1, 1, 2, 130}, .stride = {0, 0, 130}};
    }
  }
};

using reference_detail::FormulaPair;
using reference_detail::FormulaWalk;

struct Seen { int boxes = 0, hidden = 0, open = 0; };

// One random box of one random formula.
void check(Draw& d, bool score, Seen& seen) {
  Formula f;
  FormulaPlace place;
  const std::string text = score ? d.truth(1, true) + "?s:" + (d.below(2) ? "-inf" : d.number(2, true))
                                 : d.truth(d.below(3), false);
  const Status read = score ? read_score(text, f, place) : read_mask(text, f, place);
  if (!read.ok()) return;  // too many parts
  World world(d);
  world.place(f);
  Problem p;
  p.heads_q = 4, p.heads_kv = 2, p.len_q = p.len_k = 300;
  std::vector<std::byte> memory(1 << 21);
  Workspace ws{memory.data()};
  FormulaBounds bounds;
  place_bounds(p, f, ws, bounds);
  ASSERT_LE(ws.used, memory.size());
  build_bounds(f, world.args, bounds);
  PairBox x{.q_first = d.below(300), .q_last = 0, .k_first = d.below(300), .k_last = 0, .h_first = d.below(4),
            .h_last = 0, .b = 1, .group = 2, .len_q = 250, .len_k = 300};
  x.q_last = x.q_first + d.below(9), x.k_last = x.k_first + d.below(9), x.h_last = std::min(3, x.h_first + d.below(2));
  const BoxIs is = bounds.decide(f, x);
  ++seen.boxes, seen.hidden += is == BoxIs::hidden, seen.open += is == BoxIs::open;
  NumberRange value[kMostNodes];
  (void)bound(f, f.nodes - 1, x,
              [&](int n, const NumberRange* index) { return bounds.array[n].bound(index, f.array[n].indices); }, value);
  for (int64_t q = x.q_first; q <= x.q_last; ++q)
    for (int64_t k = x.k_first; k <= x.k_last; ++k)
      for (int h = x.h_first; h <= x.h_last; ++h) {
        const FormulaPair pair{double(d.below(100) - 50) / 4, 1, h, h / 2, q, k, 250, 300};
        const FormulaWalk walk{f, world.args, pair, -1};
        for (int n = 0; n < f.nodes; ++n) {
          const double at = walk.walk(n).value;
          ASSERT_TRUE(at != at ? value[n].nan : value[n].lo <= at && at <= value[n].hi)
              << text << ": node " << n << " is " << at << " at q " << q << " k " << k << " h " << h << ", outside "
              << value[n].lo << " ... " << value[n].hi;
        }
        const double last = walk.walk(f.nodes - 1).value;
        const bool visible = score ? last != -INFINITY : last != 0;
        ASSERT_FALSE(is == BoxIs::hidden && visible) << text;
        ASSERT_TRUE(is != BoxIs::open || (score ? last == pair.s : visible)) << text;
      }
}

TEST(formula_intervals, hold_every_pair_of_random_formulas) {
  Draw d{std::mt19937(11)};
  Seen masks, scores;
  for (int n = 0; n < 4000 && !testing::Test::HasFatalFailure(); ++n) check(d, false, masks);
  for (int n = 0; n < 2000 && !testing::Test::HasFatalFailure(); ++n) check(d, true, scores);
  // Most boxes of most formulas are decided, so the assertions above are not empty.
  EXPECT_GT(masks.hidden, masks.boxes / 5);
  EXPECT_GT(masks.open, masks.boxes / 5);
  EXPECT_GT(scores.hidden + scores.open, scores.boxes / 5);
}

TEST(formula_intervals, decide_the_usual_masks) {
  const auto is = [](std::string_view text, PairBox x) {
    Formula f;
    FormulaPlace place;
    EXPECT_TRUE((text.starts_with("s") || text.ends_with("inf") ? read_score : read_mask)(text, f, place).ok()) << text;
    NumberRange value[kMostNodes];
    return decide(f, x, [](int, const NumberRange*) { return NumberRange{0, 9, false, true}; }, value);
  };
  const PairBox below{.q_first = 128, .q_last = 191, .k_first = 0, .k_last = 63, .h_first = 0, .h_last = 3, .b = 0,
                      .group = 1, .len_q = 512, .len_k = 512};
  PairBox above = below, diagonal = below;
  above.k_first = 256, above.k_last = 319, diagonal.k_first = 128, diagonal.k_last = 191;
  EXPECT_EQ(is("q>=k", below), BoxIs::open);
  EXPECT_EQ(is("q>=k", above), BoxIs::hidden);
  EXPECT_EQ(is("q>=k", diagonal), BoxIs::mixed);
  EXPECT_EQ(is("q>=k?s:-inf", below), BoxIs::open);
  EXPECT_EQ(is("q>=k?s:-inf", above), BoxIs::hidden);
  EXPECT_EQ(is("s*2", below), BoxIs::mixed);
  EXPECT_EQ(is("abs(q//64-k//64)<2", below), BoxIs::hidden);
  EXPECT_EQ(is("abs(q//64-k//64)<=2", below), BoxIs::open);
  EXPECT_EQ(is("q-k<65", below), BoxIs::hidden);
  EXPECT_EQ(is("d[q]==d[k]", below), BoxIs::mixed);
  EXPECT_EQ(is("d[q]<10&&q%64<64", below), BoxIs::open);
}

TEST(formula_intervals, bounds_of_arrays_skip_whole_blocks) {
  Problem p;
  ASSERT_TRUE(parse("forward f32 b1 h1 q65536 k65536 d8 full mask{doc[q]==doc[k]}", p).ok());
  std::vector<int32_t> doc(65536);
  for (size_t n = 0; n < doc.size(); ++n) doc[n] = int32_t(n / 2048);
  Args a;
  a[variant_tensor(0)] = {.data = doc.data(), .dtype = DType::i32, .extent = {1, 1, 1, 65536}};
  std::vector<std::byte> memory(1 << 20);
  Workspace ws{memory.data()};
  const Formula f = formula_of(p);
  FormulaBounds bounds;
  place_bounds(p, f, ws, bounds);
  build_bounds(f, a, bounds);
  PairBox x{.q_first = 0, .q_last = 0, .k_first = 0, .k_last = 0, .h_first = 0, .h_last = 0, .b = 0, .group = 1,
            .len_q = 65536, .len_k = 65536};
  int open = 0, mixed = 0;
  for (int i = 0; i < 512; ++i)
    for (int j = 0; j < 512; ++j) {
      x.q_first = 128 * i, x.q_last = x.q_first + 127, x.k_first = 128 * j, x.k_last = x.k_first + 127;
      const BoxIs is = bounds.decide(f, x);
      open += is == BoxIs::open, mixed += is == BoxIs::mixed;
    }
  EXPECT_EQ(open, 32 * 16 * 16);  // all that a document sees, and nothing else
  EXPECT_EQ(mixed, 0);
}

}  // namespace
