// SPDX-License-Identifier: Apache-2.0
// Causal masks, windows, ALiBi and softcap by formula equal the built-in ones, in both passes; gradients of an array
// equal differences of the reference; other backends refuse a formula.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "machine/host.h"
#include "plan/plan.h"

using namespace attune;

namespace {

constexpr int kHeads = 4, kKvHeads = 2, kQueries = 90, kKeys = 130, kDim = 16;

// Inputs, and the results of one run.
struct Trial {
  std::vector<float> q, k, v, out, lse, d_out, dq, dk, dv, slopes{0.5f, 0.25f, 0.125f, 0.0625f}, d_array;
  Args args{};

  Trial() {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, int rows, int heads) {
      x.resize(size_t(rows) * size_t(heads) * kDim);
      for (float& one : x) one = normal(random);
    };
    fill(q, kQueries, kHeads), fill(k, kKeys, kKvHeads), fill(v, kKeys, kKvHeads), fill(d_out, kQueries, kHeads);
    out = dq = q, dk = k, dv = v, lse.resize(kQueries * kHeads), d_array.resize(kHeads);
    const auto give = [&](Role r, std::vector<float>& x, int rows, int heads, int dim) {
      args[r] = {.data = x.data(), .dtype = DType::f32, .extent = {1, rows, heads, dim},
                 .stride = {0, heads * dim, dim}};
    };
    give(Role::q, q, kQueries, kHeads, kDim), give(Role::out, out, kQueries, kHeads, kDim);
    give(Role::k, k, kKeys, kKvHeads, kDim), give(Role::v, v, kKeys, kKvHeads, kDim);
    give(Role::lse, lse, kQueries, kHeads, 1);
    args.softcap = 0;
  }
  Status run(const std::string& tail, std::string_view backend = {}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      Problem p;
      const std::string line = "f32 b1 h4/2 q90 k130 d16 " + tail;
      if (Status s = parse((pass == Pass::forward ? "forward " : "backward ") + line, p); !s.ok()) return s;
      const auto vector = [](std::vector<float>& x, Extents e, int64_t head) {
        return Tensor{.data = x.data(), .dtype = DType::f32, .extent = e, .stride = {0, 0, head}};
      };
      if (p.has(Option::alibi)) args[Role::slopes] = vector(slopes, {1, 1, kHeads, 1}, 1);
      if (tail.find("slope[") != tail.npos) args[variant_tensor(0)] = vector(slopes, {1, 1, 1, kHeads}, 0);
      args.softcap = p.has(Option::softcap) ? 3.f : 0.f;
      if (pass == Pass::backward) {
        for (const auto& [gradient, of] : {std::pair{Role::dq, Role::q}, {Role::dk, Role::k}, {Role::dv, Role::v}})
          args[gradient] = args[of];
        args[Role::dq].data = dq.data(), args[Role::dk].data = dk.data(), args[Role::dv].data = dv.data();
        args[Role::d_out] = args[Role::out], args[Role::d_out].data = d_out.data();
        if (args.given(variant_tensor(0)))
          args[d_variant_tensor(0)] = vector(d_array, {1, 1, 1, kHeads}, 0);
      }
      Plan plan;
      if (Status s = Planner{.device = this_cpu(), .forced = backend}.plan(p, plan); !s.ok()) return s;
      std::vector<std::byte> memory(plan.workspace_bytes + 64);
      const uintptr_t at = (reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64;
      if (Status s = plan.backend->run(plan, args, {reinterpret_cast<std::byte*>(at)}, nullptr); !s.ok()) return s;
    }
    return Status::good();
  }
};

double apart(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t n = 0; n < a.size(); ++n) most = std::max(most, a[n] == b[n] ? 0 : double(std::fabs(a[n] - b[n])));
  return most;
}

TEST(formula_options, equal_the_built_in_ones) {
  const std::pair<std::string, std::string> all[] = {
      {"causal", "full mask{q>=k}"},
      {"causal@top_left", "full@top_left mask{q>=k}"},
      {"window20,5", "full mask{q-k<=20&&k-q<=5}"},
      {"causal alibi", "causal score{s-slope[h]*abs(k-q)}"},
      {"full softcap", "full score{3*tanh(s/3)}"},
      {"causal softcap alibi", "full mask{q>=k} score{3*tanh(s/3)-slope[h]*abs(k-q)}"},
      {"causal", "full score{k<=q?s:-inf}"},
  };
  for (const auto& [built_in, formula] : all) {
    Trial a, b;
    ASSERT_TRUE(a.run(built_in).ok()) << built_in;
    const Status s = b.run(formula);
    ASSERT_TRUE(s.ok()) << s.message;
    EXPECT_LT(apart(a.out, b.out), 2e-6) << formula;
    EXPECT_LT(apart(a.lse, b.lse), 4e-6) << formula;
    EXPECT_LT(apart(a.dq, b.dq), 2e-5) << formula;
    EXPECT_LT(apart(a.dk, b.dk), 2e-5) << formula;
    EXPECT_LT(apart(a.dv, b.dv), 2e-5) << formula;
  }
}

TEST(formula_options, a_mask_that_hides_nothing_keeps_every_bit) {
  for (const std::string formula : {"full mask{k>=0}", "full mask{q-k<1000&&h<9}"}) {
    Trial a, b;
    ASSERT_TRUE(a.run("full").ok() && b.run(formula).ok());
    EXPECT_EQ(a.out, b.out) << formula;
    EXPECT_EQ(a.dk, b.dk) << formula;
  }
}

TEST(formula_options, gradients_of_an_array_equal_differences) {
  Trial cpu, exact;
  const std::string line = "causal score{s-slope[h]*abs(k-q)/8}";
  ASSERT_TRUE(cpu.run(line).ok() && exact.run(line, "reference").ok());
  for (int h = 0; h < kHeads; ++h) EXPECT_NEAR(cpu.d_array[size_t(h)], exact.d_array[size_t(h)], 1e-3);
  const auto loss = [&](int h, float by) {
    Trial t;
    t.slopes[size_t(h)] += by;
    EXPECT_TRUE(t.run(line, "reference").ok());
    double sum = 0;
    for (size_t n = 0; n < t.out.size(); ++n) sum += double(t.out[n]) * t.d_out[n];
    return sum;
  };
  for (int h = 0; h < kHeads; ++h) {
    const double difference = (loss(h, 1.f / 64) - loss(h, -1.f / 64)) * 32;
    EXPECT_NEAR(difference, exact.d_array[size_t(h)], 0.02 * std::fabs(difference) + 0.02);
  }
}

TEST(formula_options, other_backends_refuse) {
  Problem p;
  ASSERT_TRUE(parse("forward f32 b1 h2 q64 k64 d64 causal mask{q>=k}", p).ok());
  const Device h200{.kind = DeviceKind::cuda, .arch = 90, .units = 132, .name = "NVIDIA H200"};
  for (const Backend* b : backends()) {
    if (b->name == "cpu_forward" || b->name == "reference") continue;
    for (const Device& d : {this_cpu(), h200}) {
      const Status s = b->supports(p, d);
      EXPECT_FALSE(s.ok()) << b->name;
      EXPECT_TRUE(s.message.starts_with(b->name)) << s.message;
    }
  }
}

}  // namespace
