// SPDX-License-Identifier: Apache-2.0
// The reference compared with numbers worked out by hand. Everything else is compared with the reference, so nothing
// here may come from code under test.
#include "reference/definition.h"
#include "tests/asked.h"
#include "tests/reference/sample.h"

using namespace attune;

namespace {

constexpr double kTight = 1e-14;
using Values = std::vector<double>;

void expect_near(const Values& got, const Values& want, double tolerance = kTight) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t n = 0; n < got.size(); ++n) {
    if (std::isfinite(want[n])) EXPECT_NEAR(got[n], want[n], tolerance) << "element " << n;
    else EXPECT_EQ(got[n], want[n]) << "element " << n;
  }
}

// One head, dims 1, q = 0: all visible keys have equal weight. Value j is 10^j, so the output shows which keys were
// seen.
Sample counting(const std::string& line) {
  Sample s(line);
  s.dense().fill(Role::q, 0).fill(Role::k, 1);
  Values v;
  for (int j = 0; j < s.problem.len_k; ++j) v.push_back(std::pow(10, j));
  s.set(Role::v, v);
  return s;
}

TEST(ReferenceForward, equal_logits_give_the_mean) {
  Sample s("forward f64 b1 h1 q2 k4 d3/2 full");
  s.dense().fill(Role::q, 0).normal(Role::k, 1).set(Role::v, {1, 2, 3, 4, 5, 6, 7, 16}).run();
  expect_near(s.values(Role::out), {4, 7, 4, 7});
  expect_near(s.values(Role::lse), {std::log(4), std::log(4)});
}

TEST(ReferenceForward, weights_are_exponentials_of_the_scaled_product) {
  Sample s("forward f64 b1 h1 q1 k2 d4/1 full");  // scale 1 / 2
  s.dense().fill(Role::q, 1).set(Role::k, {0, 0, 0, 0, 2 * std::log(3), 0, 0, 0}).set(Role::v, {8, 4}).run();
  expect_near(s.values(Role::out), {8 * 0.25 + 4 * 0.75});
  expect_near(s.values(Role::lse), {std::log(4)});
  s.args.scale = 1.f;
  s.run();
  expect_near(s.values(Role::lse), {std::log(10)});
}

TEST(ReferenceForward, large_logits_do_not_overflow) {
  Sample s("forward f64 b1 h1 q1 k2 d1 full");
  s.dense().set(Role::q, {1e4}).set(Role::k, {1e4, -1e4}).set(Role::v, {3, 5}).run();
  expect_near(s.values(Role::out), {3});
  expect_near(s.values(Role::lse), {1e8});
}

TEST(ReferenceForward, one_causal_query_sees_every_key) {
  Sample s = counting("forward f64 b1 h1 q1 k3 d1 causal");
  expect_near(s.run().values(Role::out), {111.0 / 3});
}

TEST(ReferenceForward, alignment_says_where_query_0_stands) {
  Sample bottom = counting("forward f64 b1 h1 q2 k3 d1 causal");
  expect_near(bottom.run().values(Role::out), {11.0 / 2, 111.0 / 3});
  Sample top = counting("forward f64 b1 h1 q2 k3 d1 causal@top_left");
  expect_near(top.run().values(Role::out), {1, 11.0 / 2});
  Sample given = counting("forward f64 b1 h1 q2 k3 d1 causal@absolute");
  given.integers(Role::positions, {1, 1, 1, 2}, {(int64_t(1) << 40) - 1, (int64_t(1) << 40) - 2}, DType::i64);
  expect_near(given.run().values(Role::out), {11.0 / 2, 111.0 / 3});
}

TEST(ReferenceForward, row_that_sees_nothing_is_zero_and_minus_infinity) {
  Sample s = counting("forward f64 b1 h1 q3 k2 d1 causal");
  s.run();
  expect_near(s.values(Role::out), {0, 1, 11.0 / 2});
  expect_near(s.values(Role::lse), {-INFINITY, 0, std::log(2)});
}

TEST(ReferenceForward, window_is_inclusive_at_both_ends) {
  Sample s = counting("forward f64 b1 h1 q4 k4 d1 window1,1");
  expect_near(s.run().values(Role::out), {11.0 / 2, 111.0 / 3, 1110.0 / 3, 1100.0 / 2});
  Sample back = counting("forward f64 b1 h1 q3 k3 d1 window*,-1");
  expect_near(back.run().values(Role::out), {0, 1, 11.0 / 2});
  Sample ahead = counting("forward f64 b1 h1 q3 k3 d1 window0,*");
  expect_near(ahead.run().values(Role::out), {111.0 / 3, 110.0 / 2, 100});
}

TEST(ReferenceForward, compressed_keys_stand_a_step_apart) {
  // Keys are at positions 1, 3, 5; queries at 0 ... 5.
  Sample s = counting("forward f64 b1 h1 q6 k3 d1 causal@top_left/2+1");
  expect_near(s.run().values(Role::out), {0, 1, 1, 11.0 / 2, 11.0 / 2, 111.0 / 3});
  // Bottom-right: the last query is at the position of the last key.
  Sample end = counting("forward f64 b1 h1 q2 k3 d1 causal/2+1");
  expect_near(end.run().values(Role::out), {11.0 / 2, 111.0 / 3});
}

TEST(ReferenceForward, block_list_cuts_the_band) {
  Sample s = counting("forward f64 b1 h1 q4 k6 d1 causal@top_left blocks2x2x8");
  s.integers(Role::block_begin, {1, 1, 1, 3}, {1, 3, 4});
  s.integers(Role::block_column, {1, 1, 1, 8}, {2, 0, 1, 1, 0, 0, 0, 0});
  expect_near(s.run().values(Role::out), {1, 11.0 / 2, 100, 1100.0 / 2});
}

TEST(ReferenceForward, block_lists_are_per_batch_and_head) {
  Sample s("forward f64 b2 h2 q1 k2 d1 full blocks1x1x4");
  s.dense().fill(Role::q, 0).fill(Role::k, 1).set(Role::v, {1, 1, 10, 10, 2, 2, 20, 20});
  s.integers(Role::block_begin, {2, 1, 2, 2}, {0, 1, 1, 2, 2, 2, 2, 4});
  s.integers(Role::block_column, {1, 1, 1, 4}, {1, 0, 0, 1});
  expect_near(s.run().values(Role::out), {10, 1, 0, 11});
}

TEST(ReferenceForward, sink_takes_its_share_and_is_in_the_lse) {
  Sample s = counting("forward f64 b1 h1 q2 k1 d1 causal sink");
  s.add(Role::sinks, {}).set(Role::sinks, {std::log(3)}).run();
  expect_near(s.values(Role::out), {0, 0.25});
  expect_near(s.values(Role::lse), {std::log(3), std::log(4)});
}

TEST(ReferenceForward, softcap_comes_before_bias_and_alibi) {
  Sample s("forward f64 b1 h1 q1 k2 d1 full softcap alibi bias.f64");
  s.dense().set(Role::q, {3}).set(Role::k, {1, 2}).set(Role::v, {1, 0});
  s.add(Role::slopes, {}).set(Role::slopes, {0.5}).add(Role::bias, {1, 1, 1, 2}).set(Role::bias, {0.25, -4});
  s.args.softcap = 2.f;
  s.run();
  const double near = 2 * std::tanh(3.0) - 4, far = 2 * std::tanh(1.5) + 0.25 - 0.5;
  expect_near(s.values(Role::lse), {std::log(std::exp(near) + std::exp(far))});
  expect_near(s.values(Role::out), {1 / (1 + std::exp(near - far))});
}

TEST(ReferenceForward, alibi_uses_positions_and_the_slope_of_the_head) {
  Sample s("forward f64 b1 h2/1 q1 k3 d1 full@top_left/4+1 alibi");
  s.dense().fill(Role::q, 0).fill(Role::k, 0).fill(Role::v, 1);
  s.add(Role::slopes, {1, 1, 2, 1}).set(Role::slopes, {1, -0.5}).run();
  expect_near(s.values(Role::lse), {std::log(std::exp(-1) + std::exp(-5) + std::exp(-9)),
                                    std::log(std::exp(0.5) + std::exp(2.5) + std::exp(4.5))});
}

TEST(ReferenceForward, bias_of_extent_1_is_broadcast) {
  const Extents shapes[] = {{2, 2, 2, 2}, {1, 2, 2, 2}, {2, 1, 2, 2}, {2, 2, 1, 2}, {2, 2, 2, 1}, {1, 1, 1, 1}};
  for (const Extents e : shapes) {
    Sample s("forward f64 b2 h2/1 q2 k2 d1 full bias.f64");
    s.dense().fill(Role::q, 0).fill(Role::k, 0).fill(Role::v, 1).add(Role::bias, e).normal(Role::bias, 3).run();
    s.each(Role::lse, [&](int b, int i, int h, int) {
      double sum = 0;
      for (int j = 0; j < 2; ++j)
        sum += std::exp(s.at(Role::bias, b % e.batch, i % e.seq, h % e.head, j % e.dim));
      EXPECT_NEAR(s.at(Role::lse, b, i, h), std::log(sum), kTight);
    });
  }
}

TEST(ReferenceForward, bias_of_minus_infinity_hides) {
  Sample s = counting("forward f64 b1 h1 q2 k2 d1 full bias.f64");
  s.add(Role::bias, {1, 2, 1, 2}).set(Role::bias, {-INFINITY, 0, -INFINITY, -INFINITY}).run();
  expect_near(s.values(Role::out), {10, 0});
  expect_near(s.values(Role::lse), {0, -INFINITY});
}

TEST(ReferenceForward, nan_is_never_hidden) {
  Sample s = counting("forward f64 b1 h1 q1 k2 d1 full");
  s.set(Role::k, {NAN, 1}).run();
  EXPECT_TRUE(std::isnan(s.at(Role::out, 0, 0, 0)) && std::isnan(s.at(Role::lse, 0, 0, 0)));
  s.set(Role::k, {1, 1}).set(Role::v, {1, NAN}).run();
  EXPECT_TRUE(std::isnan(s.at(Role::out, 0, 0, 0)));
  expect_near(s.values(Role::lse), {std::log(2)});
}

TEST(ReferenceForward, dropout_scales_what_it_keeps_and_not_the_lse) {
  Sample s("forward f64 b1 h1 q40 k50 d1 full dropout");
  s.dense().fill(Role::q, 0).fill(Role::k, 1).fill(Role::v, 1).integers(Role::seed, {1, 1, 1, 2}, {5, 6}, DType::i64);
  s.args.dropout = 0.25f;
  s.run();
  double mean = 0, differ = 0;
  for (const double x : s.values(Role::out)) {
    const double kept = x * 50 * 0.75;          // number of kept keys out of 50
    EXPECT_NEAR(kept, std::round(kept), 1e-5);  // the factor 1 / 0.75 is an f32
    mean += kept / 50 / 40, differ += x != s.at(Role::out, 0, 0, 0);
  }
  EXPECT_NEAR(mean, 0.75, 0.04);
  EXPECT_GT(differ, 20);
  expect_near(s.values(Role::lse), Values(40, std::log(50)));
}

TEST(ReferenceForward, dropout_is_a_function_of_positions) {
  Sample s("forward f64 b2 h2/1 q2 k9 d1 full@absolute/3+1 dropout");
  s.dense().fill(Role::q, 0).fill(Role::k, 1).fill(Role::v, 1).integers(Role::seed, {1, 1, 1, 2}, {5, 6}, DType::i64);
  s.integers(Role::positions, {2, 1, 1, 2}, {100, 90, -3, 1000}, DType::i64);
  s.args.dropout = 0.5f;
  s.run();
  const Dropout mask{.seed = 5, .offset = 6, .below = 0x80000000, .kept = 2.f};
  s.each(Role::out, [&](int b, int i, int h, int) {
    double sum = 0;
    for (int j = 0; j < 9; ++j)
      sum += mask.factor(uint32_t(2 * b + h), i + (b ? -3 : 100), 3 * j + 1 + (b ? 1000 : 90));
    EXPECT_NEAR(s.at(Role::out, b, i, h), sum / 9, kTight);
  });
}

TEST(ReferenceForward, accumulating_over_halves_of_the_keys_is_one_run) {
  Sample whole("forward f64 b1 h2/1 q3 k6 d4/2 full sink");
  whole.dense().normal(Role::q, 1).normal(Role::k, 2).normal(Role::v, 3);
  whole.add(Role::sinks, {1, 1, 2, 1}).set(Role::sinks, {0.3, -0.2}).run();
  Sample half("forward f64 b1 h2/1 q3 k3 d4/2 full accumulate");
  half.args = whole.args;
  half.outputs().fill(Role::lse, -INFINITY);  // out stays NaN: it must not be read
  for (const int first : {0, 3}) {
    half.args[Role::k] = pick_rows(whole.args[Role::k], first, 3);
    half.args[Role::v] = pick_rows(whole.args[Role::v], first, 3);
    if (first) half.problem.set(Option::sink);  // only the last run of a chain has the sink
    half.run();
  }
  expect_near(half.values(Role::out), whole.values(Role::out));
  expect_near(half.values(Role::lse), whole.values(Role::lse));
}

TEST(ReferenceForward, query_heads_share_the_keys_of_their_group) {
  Sample s("forward f64 b1 h4/2 q1 k1 d1 full");
  s.dense().fill(Role::q, 1).fill(Role::k, 1).set(Role::v, {3, 7}).run();
  expect_near(s.values(Role::out), {3, 3, 7, 7});
}

TEST(ReferenceForward, lse_may_be_left_out) {
  Sample s = counting("forward f64 b1 h1 q1 k2 d1 full");
  s.args[Role::lse] = {};
  expect_near(s.run().values(Role::out), {5.5});
}

TEST(ReferenceForward, every_dtype_is_read_and_written) {
  for (const std::string dtype : {"f64", "f32", "f16", "bf16", "e4m3"}) {
    Sample s("forward " + dtype + " b1 h1 q1 k2 d1 full");
    const DType t = s.problem.dtype.q;
    s.add(Role::q, {}, t).add(Role::k, {1, 2, 1, 1}, t).add(Role::v, {1, 2, 1, 1}, t).add(Role::out, {}, t);
    s.set(Role::q, {-2}).set(Role::k, {1.5, 1.5}).set(Role::v, {-2.5, 4}).add(Role::lse, {}, DType::f32).run();
    expect_near(s.values(Role::out), {0.75});
    expect_near(s.values(Role::lse), {std::log(2) - 3}, 1e-6);
  }
}

// Batch 2 with heads 2/1. The keys of both sequences are listed explicitly and then looked up in every kind of storage.
struct Stored : testing::Test {
  const int len_q[2] = {2, 3}, len_k[2] = {4, 3};
  Sample dense[2] = {Sample("forward f64 b1 h2/1 q2 k4 d2/3 causal"), Sample("forward f64 b1 h2/1 q3 k3 d2/3 causal")};
  void SetUp() override {
    for (unsigned b = 0; b < 2; ++b)
      dense[b].dense().normal(Role::q, b + 1).normal(Role::k, b + 3).normal(Role::v, b + 5).run();
  }
  void copy(Sample& to, Role r, int b, int s, int from_b, int from_s) {
    const Extents e = to.args[r].extent;
    for (int h = 0; h < e.head; ++h)
      for (int d = 0; d < e.dim; ++d)
        reference_detail::save(to.args[r], b, s, h, d, dense[from_b].at(r, 0, from_s, h, d));
  }
  void expect_rows(const Sample& got, int b, int row, int sequence) {
    for (int i = 0; i < len_q[sequence]; ++i)
      for (int h = 0; h < 2; ++h) {
        const Sample& want = dense[sequence];
        EXPECT_EQ(got.at(Role::lse, b, row + i, h), want.at(Role::lse, 0, i, h));
        for (int d = 0; d < 3; ++d) EXPECT_EQ(got.at(Role::out, b, row + i, h, d), want.at(Role::out, 0, i, h, d));
      }
  }
};

TEST_F(Stored, ragged_sequences_lie_one_behind_the_other) {
  Sample s("forward f64 b2 h2/1 q3 k4 d2/3 causal ragged");
  s.add(Role::q, {1, 7, 2, 2}).add(Role::k, {1, 8, 1, 2}).add(Role::v, {1, 8, 1, 3}).outputs();
  s.integers(Role::cu_q, {1, 1, 1, 3}, {1, 3, 6}).integers(Role::cu_k, {1, 1, 1, 3}, {0, 4, 7});
  for (int b = 0; b < 2; ++b) {
    for (int i = 0; i < len_q[b]; ++i) copy(s, Role::q, 0, (b ? 3 : 1) + i, b, i);
    for (const Role r : {Role::k, Role::v})
      for (int j = 0; j < len_k[b]; ++j) copy(s, r, 0, b * 4 + j, b, j);
  }
  s.run();
  expect_rows(s, 0, 1, 0), expect_rows(s, 0, 3, 1);
  EXPECT_TRUE(std::isnan(s.at(Role::out, 0, 0, 0)) && std::isnan(s.at(Role::lse, 0, 6, 1))) << "rows of no sequence";
}

TEST_F(Stored, pages_are_found_through_the_table) {
  Sample s("forward f64 b2 h2/1 q3 k4 d2/3 causal paged2");
  s.add(Role::q, {2, 3, 2, 2}).add(Role::k, {5, 2, 1, 2}).add(Role::v, {5, 2, 1, 3}).outputs();
  const int64_t table[2][3] = {{3, 0, 4}, {2, 1, 4}};
  s.integers(Role::page_table, {2, 1, 1, 3}, {3, 0, 4, 2, 1, 4});
  s.integers(Role::used_q, {2}, {2, 3}).integers(Role::used_k, {2}, {4, 4}).integers(Role::left_pad, {2}, {0, 1});
  for (int b = 0; b < 2; ++b) {
    for (int i = 0; i < len_q[b]; ++i) copy(s, Role::q, b, i, b, i);
    for (const Role r : {Role::k, Role::v})
      for (int j = 0; j < len_k[b]; ++j) copy(s, r, int(table[b][(j + b) / 2]), (j + b) % 2, b, j);
  }
  s.run();
  expect_rows(s, 0, 0, 0), expect_rows(s, 1, 0, 1);
  EXPECT_TRUE(std::isnan(s.at(Role::out, 0, 2, 0)) && std::isnan(s.at(Role::lse, 0, 2, 0))) << "beyond used_q";
}

TEST_F(Stored, cache_rows_are_found_by_index_behind_their_padding) {
  Sample s("forward f64 b2 h2/1 q3 k4 d2/3 causal");
  s.add(Role::q, {1, 5, 2, 2}).add(Role::k, {3, 6, 1, 2}).add(Role::v, {3, 6, 1, 3}).outputs();
  s.integers(Role::cu_q, {1, 1, 1, 3}, {0, 2, 5}).integers(Role::cache_index, {2}, {2, 0});
  s.integers(Role::used_k, {2}, {5, 5}).integers(Role::left_pad, {2}, {1, 2});
  for (int b = 0; b < 2; ++b) {
    for (int i = 0; i < len_q[b]; ++i) copy(s, Role::q, 0, 2 * b + i, b, i);
    for (const Role r : {Role::k, Role::v})
      for (int j = 0; j < len_k[b]; ++j) copy(s, r, b ? 0 : 2, 1 + b + j, b, j);
  }
  s.run();
  expect_rows(s, 0, 0, 0), expect_rows(s, 0, 2, 1);
}

TEST(Reference, reads_every_f16_as_it_is) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    F16 x;
    x.bits = uint16_t(bits);
    const double got = reference_detail::to_double(x), wanted = double(float(x));
    ASSERT_TRUE(got == wanted ? std::signbit(got) == std::signbit(wanted) : got != got && wanted != wanted) << bits;
  }
}

TEST(ReferenceSupports, refusals_are_sentences) {
  const auto refusal = [](const std::string& line, const Device& d) {
    return reference.supports(problem(line), d).message;
  };
  const Device cpu, gpu{.kind = DeviceKind::cuda, .name = "NVIDIA H200"};
  EXPECT_EQ(refusal("forward f32 b1 h1 q1 k1 d8 full", gpu), "reference: requires a CPU, but NVIDIA H200 is a GPU");
  EXPECT_EQ(refusal("forward f32 b1 h1 q1 k1 d8 full descale", cpu), "reference: does not support the option descale");
  EXPECT_EQ(refusal("forward f32 b1 h1 q1 k1 d8 full : unheard x=1", cpu),
            "reference: does not implement the variant unheard");
  EXPECT_EQ(refusal("forward f32 b1 h1 q1 k1 d8 full", cpu), "");
  EXPECT_TRUE(reference.only_by_name);
}

}  // namespace
