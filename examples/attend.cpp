// SPDX-License-Identifier: Apache-2.0
// Attention from C++: a plan that explains its choice, a sliding window, and an error as an exception.
#include <attune/attune.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

int main() try {
  constexpr int kBatch = 2, kLen = 100, kHeads = 4, kDim = 64;
  const attune::Problem problem("forward f32 b2 h4 q100 k100 d64 window15,0");
  const attune::Plan plan(problem);
  std::printf("%s\n  %s\n", problem.line().c_str(), plan.why().c_str());

  // Keys are all zero, so every visible value has the same weight; value j holds j.
  std::vector<float> q(kBatch * kLen * kHeads * kDim, 1.f), k(q.size()), v(q.size()), out(q.size());
  for (size_t n = 0; n < v.size(); ++n) v[n] = float(n / (kHeads * kDim) % kLen);
  const attune::Tensor::Sizes shape{kBatch, kLen, kHeads, kDim};
  attune::Args args;
  args.set(ATTUNE_Q, {q.data(), "bshd", shape})
      .set(ATTUNE_K, {k.data(), "bshd", shape})
      .set(ATTUNE_V, {v.data(), "bshd", shape})
      .set(ATTUNE_OUT, {out.data(), "bshd", shape});
  plan.run(args);
  for (int i = 0; i < kLen; ++i) {
    const float first = std::fmax(0.f, float(i - 15)), mean = (first + float(i)) / 2;  // mean of first ... i
    if (!(std::fabs(out[size_t(i * kHeads * kDim)] - mean) < 1e-4f)) return std::printf("row %d is wrong\n", i), 1;
  }

  try {
    args.set(ATTUNE_OUT, {q.data(), "bshd", shape});
    attune::call(problem, args);
    return std::puts("an output on top of an input was not refused"), 1;
  } catch (const attune::Error& e) {
    std::printf("refused, as it should be: %s\n", e.what());
  }
  return 0;
} catch (const attune::Error& e) {
  return std::puts(e.what()), 1;
}
