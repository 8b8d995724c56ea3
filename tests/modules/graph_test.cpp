// SPDX-License-Identifier: Apache-2.0
// Graphs that no module has: values read by several steps, in every order.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "machine/host.h"
#include "modules/steps.h"

namespace attune {
namespace {

// y = c + x + (x + x), with c = b W and so on: x is a residual twice and an input once.
TEST(Graph, gradients_of_a_value_with_several_readers_add_up) {
  constexpr int kRows = 3, kWidth = 4;
  Graph g;
  g.device = this_cpu(), g.batch = 1, g.len = kRows;
  const auto value = [&] { return g.value(row_extent(1, kRows, kWidth), DType::f32); };
  const auto matrix = [&](const char* name) { return g.matrix({{name, kWidth, {}}}, kWidth, DType::f32); };
  const int x = g.input(Argument::x, row_extent(1, kRows, kWidth), DType::f32), a = value(), b = value(), out = value();
  const int w[3] = {matrix("1"), matrix("2"), matrix("3")};
  g.step<Linear>(g, x, w[0], -1, -1, a);
  g.step<Linear>(g, a, w[1], -1, x, b);
  g.step<Linear>(g, b, w[2], -1, x, out);
  g.finish(out);

  std::vector<float> in(kRows * kWidth), result(in.size()), d_out(in.size()), dx(in.size());
  std::vector<std::byte> tape(g.tape_bytes), work(g.backward_bytes), parameters(g.parameter_bytes),
      grads(g.gradient_bytes);
  for (size_t n = 0; n < in.size(); ++n) in[n] = std::sin(float(n)), d_out[n] = std::cos(float(n));
  const auto element = [&](int which, int o, int i) -> float& {
    return reinterpret_cast<float*>(parameters.data() + g.weights[size_t(w[which])].at)[o * kWidth + i];
  };
  for (int which = 0; which < 3; ++which)
    for (int o = 0; o < kWidth; ++o)
      for (int i = 0; i < kWidth; ++i) element(which, o, i) = std::sin(float(which * 31 + o * 7 + i * 3));
  attune::Run r{.graph = g};
  const auto tensor = [](std::vector<float>& v) {
    const Extents e = row_extent(1, kRows, kWidth);
    return Tensor{.data = v.data(), .dtype = DType::f32, .extent = e, .stride = compact(e)};
  };
  r.given[int(Argument::x)] = tensor(in), r.given[int(Argument::out)] = tensor(result);
  r.gradient_given[int(Argument::x)] = tensor(dx), r.gradient_given[int(Argument::out)] = tensor(d_out);
  r.tape = tape.data(), r.workspace = work.data(), r.scratch = work.data() + g.gradients_end;
  r.parameters = parameters.data(), r.parameter_gradients = grads.data();
  for (const auto& step : g.steps) ASSERT_EQ(step->forward(r).message, "");
  for (size_t n = g.steps.size(); n-- > 0;) ASSERT_EQ(g.steps[n]->backward(r).message, "");

  // With row vectors: out = x (W1' W2' W3' + W3' + 1), so dx = d_out (W3 W2 W1 + W3 + 1).
  for (int row = 0; row < kRows; ++row) {
    double by3[kWidth] = {}, by2[kWidth] = {}, want[kWidth] = {};
    const float* d = &d_out[size_t(row * kWidth)];
    for (int i = 0; i < kWidth; ++i)
      for (int o = 0; o < kWidth; ++o) by3[i] += d[o] * element(2, o, i);
    for (int i = 0; i < kWidth; ++i)
      for (int o = 0; o < kWidth; ++o) by2[i] += by3[o] * element(1, o, i);
    for (int i = 0; i < kWidth; ++i) {
      want[i] = by3[i] + d[i];
      for (int o = 0; o < kWidth; ++o) want[i] += by2[o] * element(0, o, i);
      EXPECT_NEAR(dx[size_t(row * kWidth + i)], want[i], 1e-5);
    }
  }
}

TEST(Graph, values_that_live_at_once_never_share_memory) {
  Graph g;
  g.device = this_cpu(), g.batch = 1, g.len = 8;
  int last = g.input(Argument::x, row_extent(1, 8, 16), DType::f32);
  std::vector<std::pair<int, int>> pairs;  // values that a step reads and writes
  for (int n = 0; n < 6; ++n) {
    const int next = g.value(row_extent(1, 8, 16), DType::f32);
    g.step<Activated>(g, last, next, Activation::gelu);
    pairs.push_back({last, next});
    last = next;
  }
  g.finish(last);
  for (const auto& [from, to] : pairs) {
    const Value &a = g.values[size_t(from)], &b = g.values[size_t(to)];
    if (a.argument != Argument::none || b.argument != Argument::none) continue;
    EXPECT_NE(a.lean_at, b.lean_at);
    EXPECT_NE(a.tape_at, b.tape_at);
    EXPECT_NE(a.gradient_at, b.gradient_at);
  }
  EXPECT_EQ(g.tape_bytes, 5u * 512);
  EXPECT_EQ(g.lean_bytes - g.forward_bytes, 2u * 512) << "two at a time";
  EXPECT_EQ(g.gradients_end, 2u * 512);
}

}  // namespace
}  // namespace attune
