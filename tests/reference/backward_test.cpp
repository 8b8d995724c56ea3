// SPDX-License-Identifier: Apache-2.0
// The gradients of the reference compared with central differences of its own forward: L = sum of d_out * out + d_lse *
// lse with random d_out and d_lse, perturbing every element of every input. All in f64, on shapes small enough for
// that; one case per option, then many at once.
#include <algorithm>
#include <ostream>

#include "tests/reference/sample.h"

using namespace attune;

namespace {

struct Case {
  const char* name;
  const char* line;  // of the forward
  enum : unsigned { none = 0, packed_q = 1, used_q = 2, used_k = 4, left_pad = 8, cache_index = 16, no_d_lse = 32 };
  unsigned extra = none;
  Extents bias{2, 3, 4, 5};
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.line; }

constexpr int kCapacity = 7;  // rows of a cache, more than len_k
constexpr Role kInputs[] = {Role::q, Role::k, Role::v, Role::bias, Role::sinks};
constexpr Role kGradients[] = {Role::dq, Role::dk, Role::dv, Role::d_bias, Role::d_sinks};

// Batch 2, h4/2 q3 k5 d3/2 throughout; the second sequence is shorter where possible.
Sample make(const Case& c) {
  Sample s(c.line);
  const Problem& p = s.problem;
  const bool ragged = p.keys == KeySource::ragged, paged = p.keys == KeySource::paged;
  const bool cache = c.extra & (Case::used_k | Case::left_pad | Case::cache_index);
  if (ragged || c.extra & Case::packed_q) s.integers(Role::cu_q, {1, 1, 1, 3}, {0, 3, 5});
  s.add(Role::q, s.args.given(Role::cu_q) ? Extents{1, 6, 4, 3} : Extents{2, 3, 4, 3});
  Extents k = ragged ? Extents{1, 10, 2, 3} : paged ? Extents{5, 2, 2, 3} : Extents{2, cache ? kCapacity : 5, 2, 3};
  s.add(Role::k, k);
  k.dim = 2;
  s.add(Role::v, k).outputs();
  if (ragged) s.integers(Role::cu_k, {1, 1, 1, 3}, {1, 6, 9});
  if (paged) s.integers(Role::page_table, {2, 1, 1, 3}, {3, 0, 1, 3, 4, 1});  // the first page is shared
  if (paged || c.extra & Case::used_k) s.integers(Role::used_k, {2}, {5, 4});
  if (c.extra & Case::used_q) s.integers(Role::used_q, {2}, {3, 1});
  if (c.extra & Case::left_pad) s.integers(Role::left_pad, {2}, {0, 2});
  if (c.extra & Case::left_pad && !paged && !ragged) s.integers(Role::used_k, {2}, {5, 7});
  if (c.extra & Case::cache_index) s.integers(Role::cache_index, {2}, {1, 1});  // both read the same row
  if (c.extra & Case::cache_index && !s.args.given(Role::used_k)) s.integers(Role::used_k, {2}, {5, 3});
  if (p.mask.align == Align::absolute) s.integers(Role::positions, {2, 1, 1, 2}, {11, 8, 5, 7}, DType::i64);
  if (p.mask.blocks.q) {  // blocks of 2 x 2, per head: 2 rows of at most 3 entries; some rows are empty
    std::vector<int64_t> begin, column;
    for (int64_t list = 0; list < 8; ++list)
      for (int64_t row = 0; row <= 2; ++row) {
        begin.push_back(int64_t(column.size()));
        for (int64_t block = 0; row < 2 && block < 3; ++block)
          if ((list * 5 + row * 3 + block * 7) % 4 < 2) column.push_back(block);
      }
    column.resize(size_t(p.mask.blocks.bound), 0);
    s.integers(Role::block_begin, {2, 1, 4, 3}, begin);
    s.integers(Role::block_column, {1, 1, 1, p.mask.blocks.bound}, column);
  }
  if (p.has(Option::bias)) s.add(Role::bias, c.bias);
  if (p.has(Option::sink)) s.add(Role::sinks, {1, 1, 4, 1});
  if (p.has(Option::alibi)) s.add(Role::slopes, {1, 1, 4, 1}).normal(Role::slopes, 8, 0.3);
  if (p.has(Option::dropout)) s.integers(Role::seed, {1, 1, 1, 2}, {77, 3}, DType::i64);
  s.args.softcap = p.has(Option::softcap) ? 0.7f : 0.f;
  s.args.dropout = p.has(Option::dropout) ? 0.4f : 0.f;
  for (unsigned n = 0; n < std::size(kInputs); ++n)
    if (s.args.given(kInputs[n])) s.normal(kInputs[n], n + 1);
  s.add(Role::d_out, s.args[Role::out].extent).normal(Role::d_out, 20);
  if (!(c.extra & Case::no_d_lse)) s.add(Role::d_lse, s.args[Role::lse].extent).normal(Role::d_lse, 21);
  return s;
}

// Rows that are not written stay 0 and do not count; neither does the lse of a row that sees no key.
double loss(Sample& s) {
  s.fill(Role::out, 0).fill(Role::lse, 0).run();
  double sum = 0;
  s.each(Role::out, [&](int b, int i, int h, int d) {
    sum += s.at(Role::out, b, i, h, d) * s.at(Role::d_out, b, i, h, d);
  });
  if (!s.args.given(Role::d_lse)) return sum;
  s.each(Role::lse, [&](int b, int i, int h, int) {
    if (s.at(Role::lse, b, i, h) != -INFINITY) sum += s.at(Role::lse, b, i, h) * s.at(Role::d_lse, b, i, h);
  });
  return sum;
}

// Runs a forward, then changes the sample into the backward of the same problem, with all applicable gradients.
void differentiate(Sample& s) {
  loss(s);
  for (size_t n = 0; n < std::size(kInputs); ++n)
    if (s.args.given(kInputs[n])) s.add(kGradients[n], s.args[kInputs[n]].extent);
  s.problem.pass = Pass::backward;
  s.problem.dtype.grad = DType::f64;
  s.run();
}

class Differences : public testing::TestWithParam<Case> {};

TEST_P(Differences, agree_with_the_backward) {
  Sample s = make(GetParam()), gradient = make(GetParam());
  differentiate(gradient);
  for (size_t n = 0; n < std::size(kInputs); ++n) {
    const Role input = kInputs[n];
    if (!s.args.given(input)) continue;
    const bool is_q = input == Role::q;
    double largest = 0;
    s.each(input, [&](int b, int i, int h, int d) {
      constexpr double kStep = 1e-5;
      const int at[] = {b, i, h, d};
      const double x = s.at(input, b, i, h, d), got = gradient.at(kGradients[n], b, i, h, d);
      const auto moved = [&](double by) {
        reference_detail::save(s.args[input], b, i, h, d, x + by);
        return loss(s);
      };
      const double want = (moved(kStep) - moved(-kStep)) / (2 * kStep);
      reference_detail::save(s.args[input], b, i, h, d, x);
      largest = std::max(largest, std::fabs(want));
      if (is_q && std::isnan(got)) EXPECT_EQ(want, 0) << "a row of dq was not written";
      else ASSERT_NEAR(got, want, 2e-8 * (1 + std::fabs(want))) << "input " << n << testing::PrintToString(at);
    });
    EXPECT_GT(largest, 1e-3) << "input " << n << " changes nothing: the case tests nothing";
  }
}

#define BASE "forward f64 b2 h4/2 q3 k5 d3/2 "
const Case kCases[] = {
    {"full", BASE "full"},
    {"without_d_lse", BASE "full", Case::no_d_lse},
    {"causal", BASE "causal"},
    {"causal_top_left", BASE "causal@top_left"},
    {"causal_absolute", BASE "causal@absolute"},
    {"window", BASE "window1,1"},
    {"window_of_the_past", BASE "window*,-1@top_left"},  // query 0 sees no key
    {"compressed_keys", BASE "causal@top_left/2+-1"},
    {"blocks", BASE "causal blocks2x2x24"},
    {"softcap", BASE "full softcap"},
    {"alibi", BASE "causal alibi"},
    {"bias", BASE "full bias.f64"},
    {"bias_for_all_batches", BASE "full bias.f64", Case::none, {1, 3, 4, 5}},
    {"bias_for_all_queries", BASE "full bias.f64", Case::none, {2, 1, 4, 5}},
    {"bias_for_all_heads", BASE "full bias.f64", Case::none, {2, 3, 1, 5}},
    {"bias_for_all_keys", BASE "causal bias.f64", Case::none, {2, 3, 4, 1}},
    {"bias_for_all", BASE "causal bias.f64", Case::none, {1, 1, 1, 1}},
    {"dropout", BASE "full dropout"},
    {"sink", BASE "full sink"},
    {"sink_of_empty_rows", BASE "window*,-1@top_left sink"},
    {"packed_queries", BASE "causal", Case::packed_q},
    {"used_lengths", BASE "causal", Case::used_q | Case::used_k},
    {"left_padding", BASE "causal", Case::left_pad},
    {"shared_cache_row", BASE "causal", Case::cache_index},
    {"shared_padded_cache_row", BASE "causal", Case::cache_index | Case::left_pad | Case::packed_q},
    {"ragged", BASE "causal ragged"},
    {"ragged_in_part", BASE "causal ragged", Case::used_q | Case::left_pad},
    {"paged", BASE "causal paged2"},
    {"paged_with_padding", BASE "causal paged2", Case::packed_q | Case::left_pad},
    {"everything_linear", BASE "window3,1 blocks2x2x24 softcap alibi bias.f64 dropout sink",
     Case::used_q | Case::used_k},
    {"everything_ragged", BASE "causal softcap alibi bias.f64 dropout sink ragged", Case::none, {1, 3, 4, 1}},
    {"everything_paged", BASE "causal/2+3 softcap alibi bias.f64 dropout sink paged2", Case::used_q, {2, 1, 1, 5}},
};
INSTANTIATE_TEST_SUITE_P(Reference, Differences, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ReferenceBackward, keys_nobody_sees_get_zero_and_rows_beyond_used_q_are_left_alone) {
  Sample s = make({"", BASE "causal paged2", Case::used_q});
  differentiate(s);
  for (int h = 0; h < 4; ++h) {
    EXPECT_FALSE(std::isnan(s.at(Role::dq, 1, 0, h, 0)));
    EXPECT_TRUE(std::isnan(s.at(Role::dq, 1, 1, h, 0))) << "beyond used_q of sequence 1";
  }
  for (int h = 0; h < 2; ++h) {
    EXPECT_EQ(s.at(Role::dk, 2, 0, h, 0), 0) << "a page in no table";
    EXPECT_EQ(s.at(Role::dv, 1, 1, h, 1), 0) << "a slot beyond used_k";
    EXPECT_NE(s.at(Role::dk, 3, 1, h, 0), 0) << "the shared page";
  }
}

TEST(ReferenceBackward, row_that_sees_nothing_has_no_gradient) {
  Sample s = make({"", BASE "window*,-1@top_left", Case::none});
  differentiate(s);
  for (int h = 0; h < 4; ++h) {
    EXPECT_EQ(s.at(Role::lse, 0, 0, h), -INFINITY);
    EXPECT_EQ(s.at(Role::dq, 0, 0, h, 0), 0);
  }
}

TEST(ReferenceBackward, row_hidden_by_its_bias_has_no_gradient) {
  Sample s = make({"", BASE "full bias.f64", Case::none});
  std::vector<double> bias = s.values(Role::bias);
  std::fill(bias.begin(), bias.begin() + 4 * 5, -INFINITY);  // query 0 of sequence 0
  s.set(Role::bias, bias);
  differentiate(s);
  for (const Role r : {Role::dq, Role::dk, Role::dv, Role::d_bias})
    for (const double x : s.values(r)) EXPECT_TRUE(std::isfinite(x));
  EXPECT_EQ(s.at(Role::dq, 0, 0, 3, 0), 0);
  EXPECT_EQ(s.at(Role::d_bias, 0, 0, 3, 4), 0);
}

TEST(ReferenceBackward, gradient_alone_is_the_gradient_among_others) {
  const Case c{"", BASE "causal bias.f64 sink"};
  Sample all = make(c);
  differentiate(all);
  for (const Role one : kGradients) {
    Sample s = make(c);
    differentiate(s);
    for (const Role r : kGradients)
      if (r == one) s.add(r, s.args[r].extent);
      else s.args[r] = {};
    s.run();
    EXPECT_EQ(s.values(one), all.values(one));
  }
}

TEST(ReferenceBackward, takes_the_weights_from_the_given_lse_and_the_sum_from_the_given_out) {
  Sample s = make({"", BASE "full", Case::no_d_lse});
  differentiate(s);
  const double dv = s.at(Role::dv, 0, 0, 0, 0);
  std::vector<double> lse = s.values(Role::lse);
  for (double& x : lse) x += std::log(2);
  s.set(Role::lse, lse).run();
  EXPECT_NEAR(s.at(Role::dv, 0, 0, 0, 0), dv / 2, 1e-15);
  // With out and v at 0, nothing depends on q; with only out at 0, D is 0.
  s.fill(Role::v, 0).fill(Role::out, 0).run();
  for (const double x : s.values(Role::dq)) EXPECT_EQ(x, 0);
  s.fill(Role::out, 1).run();
  EXPECT_NE(s.at(Role::dq, 0, 0, 0, 0), 0);
}

TEST(ReferenceBackward, gradients_are_written_in_their_own_dtype) {
  Sample s = make({"", BASE "causal"});
  differentiate(s);
  const std::vector<double> dk = s.values(Role::dk);
  s.add(Role::dk, s.args[Role::dk].extent, DType::bf16).run();
  const std::vector<double> rounded = s.values(Role::dk);
  for (size_t n = 0; n < dk.size(); ++n) EXPECT_EQ(rounded[n], float(Bf16(float(dk[n]))));
}

}  // namespace
