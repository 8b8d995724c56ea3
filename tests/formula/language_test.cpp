// SPDX-License-Identifier: Apache-2.0
// Formulas as text: what reads, what it prints, and the sentence and place of every mistake.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "core/formula/formula.h"
#include "core/formula/of_problem.h"
#include "core/problem_line.h"

using namespace attune;

namespace {

std::string printed(std::string_view text, bool score) {
  Formula f;
  FormulaPlace place;
  const Status s = score ? read_score(text, f, place) : read_mask(text, f, place);
  return s.ok() ? text_of(f, score ? f.score : f.mask) : s.message;
}

TEST(formula, prints_without_spaces_and_with_needed_parentheses_only) {
  for (const auto& [given, canonical] : {std::pair<std::string_view, std::string_view>{" q >= k ", "q>=k"},
                                         {"(q>=k)&&((doc[q])==doc[k])", "q>=k&&doc[q]==doc[k]"},
                                         {"(q>k||q<k)&&q!=0", "(q>k||q<k)&&q!=0"},
                                         {"!(q>k)", "!(q>k)"},
                                         {"q>k ? q<9 : k<9", "q>k?q<9:k<9"},
                                         {"q-(k-1) > (q-k)-1", "q-(k-1)>q-k-1"},
                                         {"- -q < - ( q + 1 )", "--q<-(q+1)"},
                                         {"q//(k//2)%3 == q/k*2", "q//(k//2)%3==q/k*2"},
                                         {"a[q, k+1 , b] > 1e-3", "a[q,k+1,b]>0.001"},
                                         {"(q>k?k:q)+1 > min( q , k )", "(q>k?k:q)+1>min(q,k)"},
                                         {"k < 0.5*len_k", "k<0.5*len_k"}})
    EXPECT_EQ(printed(given, false), canonical) << given;
  for (const auto& [given, canonical] : {std::pair<std::string_view, std::string_view>{"s + slope[h] * (k-q)",
                                                                                       "s+slope[h]*(k-q)"},
                                         {"20*tanh(s/20)", "20*tanh(s/20)"},
                                         {"q>=k ? s : -inf", "q>=k?s:-inf"},
                                         {"1e300*1e20", "1e+300*1e+20"}})
    EXPECT_EQ(printed(given, true), canonical) << given;
}

struct Mistake {
  std::string_view text;
  bool score;
  std::string_view sentence;  // a part of it
  size_t at;
};

TEST(formula, says_what_is_wrong_and_where) {
  const Mistake all[] = {
      {"", false, "is empty", 0},
      {"q>=", false, "ends where a value belongs", 3},
      {"lenq>k", false, "'lenq' is not a name; accepted are b, h", 0},
      {"i>=k", false, "did you mean 'q'?", 0},
      {"q>=k and k>3", false, "found 'and' behind the end of the expression; write &&", 5},
      {"where(q,1,2)>0", false, "'where' is not a function; write c ? x : y", 0},
      {"slope(h)>0", false, "and arrays with an index, such as slope[q]", 0},
      {"lenq>k", false, "did you mean 'len_q'?", 0},
      {"tanhh(q)>k", false, "did you mean 'tanh'?", 0},
      {"sin(q)>k", false, "'sin' is not a function; accepted are min, max", 0},
      {"q=k", false, "has a single '='", 1},
      {"q>k&q<9", false, "has a single '&'", 3},
      {"0<q<k", false, "chains comparisons; write a<b && b<c", 3},
      {"q+k", false, "is a number; a mask is a truth", 0},
      {"q>k", true, "is a truth; a score is a number", 0},
      {"s>0", false, "'s' is the logit, which a mask does not see", 0},
      {"(q>k)+1>0", false, "is a truth, where + takes a number", 0},
      {"doc[q]&&q>k", false, "is a number, where && takes a truth", 0},
      {"!q>k", false, "is a number, where ! takes a truth", 1},
      {"q?k:q", true, "is a number, where the condition of ?: takes a truth", 0},
      {"q>k?1:k<q", true, "has a truth on one side of ':' and a number on the other", 4},
      {"q>k?1", true, "where the ':' of '?' belongs", 5},
      {"(q>k", false, "found the end where a ')' belongs", 4},
      {"q>k)", false, "found ')' behind the end", 3},
      {"doc[q>k", false, "is a truth, where an index takes a number", 4},
      {"doc[q][k]>0", false, "has a second '['; indices are separated by commas, as in doc[b,q]", 6},
      {"a[q]+a[q,k]>0", false, "has 2 indices here and 1 before", 5},
      {"a[b,h,q,k,g]>0", false, "has more than 4 indices", 10},
      {"s+t[s]", true, "is an index that depends on s", 4},
      {"q[k]>0", false, "is not an array; its name is taken", 0},
      {"Doc[k]>0", false, "has a capital letter", 0},
      {"doC[k]>0", false, "has a capital letter", 0},
      {"min(q)>0", false, "has a wrong number of values; min takes 2; found ')'", 5},
      {"abs(q,k)>0", false, "has a wrong number of values; abs takes 1; found 'k'", 6},
      {"1e999>q", false, "is not a double", 0},
      {"12x>q", false, "has a wrong number", 0},
      {"q;k", false, "found ';' behind the end", 1},
      {"q>\x01", false, "a character that formulas do not have", 2},
  };
  for (const Mistake& m : all) {
    Formula f;
    FormulaPlace place;
    const Status s = m.score ? read_score(m.text, f, place) : read_mask(m.text, f, place);
    EXPECT_FALSE(s.ok()) << m.text;
    EXPECT_NE(s.message.find(m.sentence), std::string::npos) << m.text << ": " << s.message;
    EXPECT_EQ(place.at, m.at) << m.text << ": " << s.message;
  }
}

TEST(formula, bounds_depth_size_and_arrays) {
  const auto repeat = [](std::string_view x, int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all += x;
    return all;
  };
  EXPECT_NE(printed(repeat("(", 100000), false).find("characters long; at most 4096"), std::string::npos);
  EXPECT_NE(printed(repeat("(", 3000), false).find("nested more than 48 deep"), std::string::npos);
  EXPECT_NE(printed(repeat("-", 3000), false).find("nested more than 48 deep"), std::string::npos);
  EXPECT_NE(printed(repeat("a[", 2000), false).find("nested more than 48 deep"), std::string::npos);
  EXPECT_NE(printed(repeat("q+", 500) + "q>0", false).find("more than 160 parts"), std::string::npos);
  EXPECT_EQ(printed(repeat("q+", 70) + "q>0", false), repeat("q+", 70) + "q>0");
  std::string arrays = "0";
  for (const char* n : {"a", "c", "d", "e", "f", "i", "j", "l", "m"}) arrays += std::string("+") + n + "[q]";
  EXPECT_NE(printed(arrays, true).find("'m' is array 9; a formula has at most 8"), std::string::npos);
}

// Random text from the pieces of the language, and random bytes: a tree or a sentence, and what reads prints and reads.
TEST(formula, random_text_is_a_tree_or_a_sentence) {
  std::mt19937 random(7);
  constexpr std::string_view kPieces[] = {"q", "k", "s", "h", "doc[", "]", "(", ")", "+", "-", "*", "//", "%", "/", "<",
                                          ">=", "==", "&&", "||", "!", "?", ":", ",", "min(", "abs(", "1", "0.5", "inf",
                                          "len_k", " ", "t[q,", "=", "{", "1e9", "..", "_", "\xff", "e"};
  int read = 0;
  for (int n = 0; n < 40000; ++n) {
    std::string text;
    for (int length = int(random() % 14), i = 0; i < length; ++i)
      text += n % 4 ? std::string(kPieces[random() % std::size(kPieces)]) : std::string(1, char(random()));
    for (const bool score : {false, true}) {
      Formula f, again;
      FormulaPlace place;
      const Status s = score ? read_score(text, f, place) : read_mask(text, f, place);
      ASSERT_EQ(s.ok(), s.message.empty());
      ASSERT_LE(place.at, text.size());
      if (!s.ok()) continue;
      ++read;
      const std::string canonical = text_of(f, score ? f.score : f.mask);
      const Status t = score ? read_score(canonical, again, place) : read_mask(canonical, again, place);
      ASSERT_TRUE(t.ok()) << canonical << ": " << t.message;
      ASSERT_EQ(text_of(again, score ? again.score : again.mask), canonical);
      ASSERT_EQ(again.nodes, f.nodes) << canonical;
    }
  }
  EXPECT_GT(read, 200);
}

TEST(formula, stands_in_a_problem_line) {
  Problem p, again;
  const std::string line = "forward f32 b1 h2 q8 k8 d8 causal mask{doc[q]==doc[k]} score{s+slope[h]*(k-q)}";
  ASSERT_TRUE(parse(line, p).ok());
  EXPECT_EQ(name(p), line);
  ASSERT_TRUE(parse("forward f32 b1 h2 score{ s + slope[h] * (k - q) } q8 k8 d8 mask{doc[q] == doc[k]} causal", again)
                  .ok());
  EXPECT_EQ(p, again);
  const Formula f = formula_of(p);
  ASSERT_EQ(f.arrays, 2);
  EXPECT_EQ(f.array[0].name, "doc");
  EXPECT_EQ(f.array[1].name, "slope");

  const auto message = [&](std::string_view text, LinePlace& place) {
    return parse(std::string("forward f32 b1 h2 q8 k8 d8 full ") + std::string(text), again, place).message;
  };
  LinePlace place;
  EXPECT_NE(message("mask{q>=kk}", place).find("'kk' is not a name"), std::string::npos);
  EXPECT_TRUE(place.known);
  EXPECT_EQ(place.at, 32u + 8u);
  EXPECT_NE(message("mask{q>=k", place).find("lacks its '}'"), std::string::npos);
  EXPECT_NE(message("mask{ }", place).find("is empty; an example is mask{q>=k}"), std::string::npos);
  EXPECT_NE(message("mask {q>=k}", place).find("'mask' lacks its expression"), std::string::npos);
  EXPECT_NE(message("mask{q>k} mask{q<k}", place).find("accepted is one of them"), std::string::npos);
  EXPECT_NE(message("mask{q>k} : nsa", place).find("exclude each other"), std::string::npos);
  EXPECT_NE(message(": formula mask=q>k", place).find("is written mask{q>=k} score{s} instead"), std::string::npos);
  EXPECT_NE(message("mask{q>k&&k>1023456789&&k>2023456789&&k>3023456789&&k>4023456789&&k>5023456789&&k>6023456789&&"
                    "k>7023456789&&k>8023456789&&k>9023456789&&k>1123456789&&k>1223456789&&k>1323456789}", place)
                .find("characters without spaces; at most 151 are accepted"), std::string::npos);
}

TEST(formula, variant_text_is_canonical) {
  Problem p;
  ASSERT_TRUE(parse("forward f32 b1 h2 q8 k8 d8 full mask{q>=k}", p).ok());
  EXPECT_STREQ(p.variant.text, "formula mask=q>=k");
  ASSERT_TRUE(assign(p.variant, "formula mask=(q>=k)").ok());
  EXPECT_NE(valid(p).message.find("is not in canonical form; expected 'formula mask=q>=k'"), std::string::npos);
  ASSERT_TRUE(assign(p.variant, "formula").ok());
  EXPECT_NE(valid(p).message.find("neither a mask nor a score is given"), std::string::npos);
}

TEST(formula, arrays_have_the_extents_that_no_index_exceeds) {
  Problem p;
  ASSERT_TRUE(parse("forward f32 b2 h6/3 q100 k300 d8 causal mask{doc[b,q]==doc[b,k]} score{s+t[g,q-k+7]*x[h]}", p)
                  .ok());
  const Formula f = formula_of(p);
  const auto extents = [&](int n) {
    const Extents e = extents_of(p, f, n);
    return std::to_string(e.batch) + " " + std::to_string(e.seq) + " " + std::to_string(e.head) + " " +
           std::to_string(e.dim);
  };
  EXPECT_EQ(extents(0), "1 1 2 300");
  EXPECT_EQ(extents(1), "1 1 3 307");
  EXPECT_EQ(extents(2), "1 1 1 6");

  ASSERT_TRUE(parse("forward f32 b2 h6/3 q100 k300 d8 causal mask{a[exp(q),exp(k),exp(q),exp(k)]>0}", p).ok());
  const Extents e = extents_of(p, formula_of(p), 0);
  EXPECT_EQ(e.dim, 1 << 20);
  EXPECT_EQ(double(e.batch) * e.seq * e.head * e.dim, 1 << 26) << "as large as a machine can hold";
}

}  // namespace
