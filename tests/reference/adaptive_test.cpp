// SPDX-License-Identifier: Apache-2.0
// The gradients of `adaptive` compared with central differences of its own forward, all in f64: for queries, keys,
// values and every weight of the scorer. Also its choice of blocks for known scores.
#include "core/variant/adaptive.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plan/plan.h"
#include "tests/asked.h"
#include "verify/world.h"

namespace attune {
namespace {

using T = AdaptiveTensor;

// A world in f64 with i32 lists: nothing is rounded.
struct Exact {
  World world;
  std::list<Owned> owned{};
  Args args;
  Problem backward;

  explicit Exact(std::string_view line, uint32_t seed = 1)
      : world(problem(line), {.seed = seed, .pad = 0, .used_q = true}), args(world.args), backward(world.problem) {
    backward.pass = Pass::backward, backward.dtype.grad = DType::f64;
    const Problem& p = world.problem;
    for (int n = 0; n < int(Role::count); ++n) {
      const Tensor from = args[Role(n)];
      if (!from.data || from.dtype == DType::i32 || from.dtype == DType::i64) continue;
      Owned& o = add(Role(n), DType::f64, from.extent);
      o.each([&](int b, int s, int h, int d) { store(o.t, b, s, h, d, load(from, b, s, h, d)); });
    }
    const Extents q = args[Role::q].extent;
    add(Role::out, DType::f64, {q.batch, q.seq, q.head, p.dim_v});
    add(Role::lse, DType::f64, {q.batch, q.seq, q.head, 1});
    const Declared d = declared(p, args);
    for (const T t : {T::begin, T::column, T::scores})
      add(role(t), t == T::scores ? DType::f64 : DType::i32, d.tensor[int(t)].extent);
  }
  Owned& add(Role r, DType dtype, Extents e) {
    Owned& o = owned.emplace_back(dtype, e, Layout::bshd, 0);
    args[r] = o.t;
    return o;
  }
  void run(const Problem& p) {
    const Backend& reference = *find_backend("reference");
    EXPECT_EQ(reference.run({.problem = p}, args, {}, nullptr).message, "");
  }
  double loss(const Tensor& d_out, const Tensor& d_lse) {
    run(world.problem);
    double sum = 0;
    const Tensor &out = args[Role::out], &lse = args[Role::lse];
    for (int b = 0; b < out.extent.batch; ++b)
      for (int s = 0; s < out.extent.seq; ++s)
        for (int h = 0; h < out.extent.head; ++h) {
          for (int d = 0; d < out.extent.dim; ++d) sum += load(out, b, s, h, d) * load(d_out, b, s, h, d);
          sum += load(lse, b, s, h, 0) * load(d_lse, b, s, h, 0);
        }
    return sum;
  }
};

void expect_gradients(std::string_view line, uint32_t seed) {
  SCOPED_TRACE(line);
  Exact x(line, seed);
  Random random{99};
  Owned d_out(DType::f64, x.args[Role::out].extent, Layout::bshd, 0);
  Owned d_lse(DType::f64, x.args[Role::lse].extent, Layout::bshd, 0);
  for (Owned* o : {&d_out, &d_lse})
    o->each([&](int b, int s, int h, int d) { store(o->t, b, s, h, d, random.normal()); });
  x.run(x.world.problem);
  x.args[Role::d_out] = d_out.t, x.args[Role::d_lse] = d_lse.t;
  std::vector<std::pair<Role, Role>> checked = {{Role::q, Role::dq}, {Role::k, Role::dk}, {Role::v, Role::dv}};
  for (int n = 0; n <= int(T::log_temperature); ++n) checked.emplace_back(variant_tensor(n), d_variant_tensor(n));
  for (const auto& [input, gradient] : checked) x.add(gradient, DType::f64, x.args[input].extent);
  x.run(x.backward);
  for (const auto& [input, gradient] : checked) {
    const Owned& g = *std::find_if(x.owned.begin(), x.owned.end(),
                                   [&, to = gradient](const Owned& o) { return o.t.data == x.args[to].data; });
    double most = 0, size = 0;
    g.each([&, input = input](int b, int s, int h, int d) {  // clang 14 does not capture structured bindings
      constexpr double kStep = 1e-6;
      const Tensor& t = x.args[input];
      const double at = load(t, b, s, h, d), mine = load(g.t, b, s, h, d);
      store(t, b, s, h, d, at + kStep);
      const double above = x.loss(d_out.t, d_lse.t);
      store(t, b, s, h, d, at - kStep);
      const double below = x.loss(d_out.t, d_lse.t);
      store(t, b, s, h, d, at);
      most = std::fmax(most, std::fabs((above - below) / (2 * kStep) - mine));
      size = std::fmax(size, std::fabs(mine));
    });
    EXPECT_LT(most, 1e-5 * (1 + size)) << "of role " << int(input) << ", the largest is " << size;
    EXPECT_GT(size, 1e-3) << "of role " << int(input) << ": nothing reaches it";
  }
}

TEST(ReferenceAdaptive, gradients_reach_every_weight_of_the_scorer_exactly) {
  expect_gradients("forward f64 b1 h2/1 q13 k13 d4/3 causal : adaptive block=4 density=0.6 hidden=5", 3);
  expect_gradients("forward f64 b2 h2 q6 k11 d3 full : adaptive block=3 density=0.5 hidden=4 per_head=1", 2);
}

TEST(ReferenceAdaptive, a_row_keeps_its_best_blocks_and_the_lower_of_two_equal_ones) {
  Exact x("forward f64 b1 h1 q8 k16 d2 full : adaptive block=2 density=0.5 hidden=1");
  // score = relu(sum of the mean key), by hand.
  const auto fill = [&](T t, double value) {
    const Tensor& to = x.args[role(t)];
    for (int s = 0; s < to.extent.seq; ++s)
      for (int d = 0; d < to.extent.dim; ++d) store(to, 0, s, 0, d, value);
  };
  for (const T t : {T::wq, T::bq, T::bk, T::b1, T::b2, T::log_temperature}) fill(t, 0);
  fill(T::wk, 0), fill(T::w1, 1), fill(T::w2, 1);
  store(x.args[role(T::wk)], 0, 0, 0, 0, 1);  // the first dim
  const double key[8] = {1, 3, 2, 3, 9, 1, 2, 3};
  for (int j = 0; j < 16; ++j) store(x.args[Role::k], 0, j, 0, 0, key[j / 2]);
  x.run(x.world.problem);
  const auto* begin = static_cast<const int32_t*>(x.args[role(T::begin)].data);
  const auto* column = static_cast<const int32_t*>(x.args[role(T::column)].data);
  EXPECT_EQ(std::vector<int32_t>(begin, begin + 5), (std::vector<int32_t>{0, 4, 8, 12, 16}));
  for (int row = 0; row < 4; ++row)
    EXPECT_EQ(std::vector<int32_t>(column + 4 * row, column + 4 * row + 4), (std::vector<int32_t>{1, 3, 4, 7})) << row;
}

TEST(ReferenceAdaptive, density_1_is_dense_attention_with_a_bias) {
  Exact x("forward f64 b1 h2 q9 k9 d4 causal : adaptive block=2 density=1 hidden=3");
  for (int d = 0; d < 3; ++d) store(x.args[role(T::w2)], 0, 0, 0, d, 0);  // every score is b2, the same for all
  x.run(x.world.problem);
  std::vector<double> got;
  const Tensor out = x.args[Role::out];
  for (int s = 0; s < 9; ++s) got.push_back(load(out, 0, s, 1, 2));
  Problem dense = x.world.problem;
  dense.variant = {};
  x.run(dense);
  for (int s = 0; s < 9; ++s) EXPECT_NEAR(load(out, 0, s, 1, 2), got[size_t(s)], 1e-12);
}

TEST(ReferenceAdaptive, noise_changes_the_choice_and_repeats_with_its_seed) {
  const auto chosen = [](int64_t seed) {
    Exact x("forward f64 b1 h1 q64 k64 d2 full : adaptive block=2 density=0.25 hidden=1 noise=gumbel");
    for (const T t : {T::wk, T::w2}) store(x.args[role(t)], 0, 0, 0, 0, 0);
    static_cast<int64_t*>(x.args[role(T::noise)].data)[0] = seed;
    x.run(x.world.problem);
    const auto* column = static_cast<const int32_t*>(x.args[role(T::column)].data);
    return std::vector<int32_t>(column, column + 256);
  };
  EXPECT_EQ(chosen(1), chosen(1));
  EXPECT_NE(chosen(1), chosen(2));
}

TEST(Adaptive, a_bound_holds_whatever_the_lengths_are_and_takes_no_time_of_large_problems) {
  const Problem p = problem("forward f32 b1 h1 q200 k300 d16 causal : adaptive block=16 density=0.4");
  const Adaptive say = adaptive_of(p);
  for (int len_q = 1; len_q <= 200; ++len_q)
    for (int len_k = 1; len_k <= 300; ++len_k) {
      const BlockGrid grid{band_of(p.mask, len_q, len_k, 0, 0), len_q, len_k, {16, 16, 1}};
      int64_t kept = 0;
      for (int row = 0; row < grid.rows(); ++row) kept += say.kept(grid.shown(row).last - grid.shown(row).first);
      ASSERT_LE(kept, adaptive_bound(p, say)) << len_q << " " << len_k;
    }
  Problem large = p;
  large.len_q = large.len_k = large.batch = large.heads_q = INT32_MAX;
  EXPECT_GT(adaptive_bound(large, {.block = 1}), INT32_MAX);
}

TEST(Adaptive, bad_parameters_are_one_sentence) {
  const auto refusal = [](std::string_view variant) {
    Problem p;
    return parse(join("forward f32 b1 h2 q64 k64 d16 causal : adaptive ", variant), p).message;
  };
  EXPECT_EQ(refusal("block=64 density=0.5"), "");
  EXPECT_NE(refusal("block=0").find("block=0 is not in 1 ... 1048576"), std::string::npos);
  EXPECT_NE(refusal("density=1.5").find("density=1.5 is not in 0 ... 1"), std::string::npos);
  EXPECT_NE(refusal("hidden=0").find("hidden=0"), std::string::npos);
  EXPECT_NE(refusal("noise=loud").find("noise=loud is not gumbel or none"), std::string::npos);
  EXPECT_NE(refusal("depth=3").find("unknown parameter 'depth'"), std::string::npos);
  EXPECT_NE(refusal("per_head=2").find("per_head=2"), std::string::npos);
}

}  // namespace
}  // namespace attune
