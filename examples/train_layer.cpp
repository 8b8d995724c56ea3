// SPDX-License-Identifier: Apache-2.0
// Trains one Llama-shaped block on the CPU to shift a sequence by one position, saves it and loads it again.
#include <attune/attune.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

int main() try {
  constexpr int kBatch = 4, kLen = 16, kWidth = 32, kSteps = 200;
  attune::Module block("llama f32 b4 s16 e32 h4/2 seed=1");
  std::printf("%s\n%s\n", block.text().c_str(), block.why().c_str());

  // x is random. The target of token t is token t - 1, which only attention can move there.
  std::vector<float> x(kBatch * kLen * kWidth), y(x.size()), dy(x.size());
  uint32_t random = 1;
  for (float& v : x) random = random * 1664525u + 1013904223u, v = float(random >> 8) / float(1 << 23) - 1.f;
  const auto wanted = [&](size_t n) { return n / kWidth % kLen ? x[n - kWidth] : 0.f; };
  const attune::Tensor::Sizes shape{kBatch, kLen, kWidth};
  const attune::Tensor tx(x.data(), "bsd", shape), ty(y.data(), "bsd", shape), tdy(dy.data(), "bsd", shape);
  void* tape = block.tape();

  double first = 0, loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    block.forward({.x = &tx, .out = &ty, .tape = tape});
    loss = 0;
    for (size_t n = 0; n < y.size(); ++n) {
      dy[n] = (y[n] - wanted(n)) / (kBatch * kLen);
      loss += 0.5 * double(y[n] - wanted(n)) * double(y[n] - wanted(n)) / (kBatch * kLen);
    }
    if (!step) first = loss;
    if (step % 50 == 0) std::printf("step %d: loss %.4f\n", step, loss);
    block.backward({.x = &tx, .d_out = &tdy, .tape = tape});
    for (const std::string& name : block.parameters()) {
      const attune_tensor p = block.parameter(name), g = block.gradient(name);
      int64_t count = 1;
      for (int32_t n = 0; n < p.ndim; ++n) count *= p.shape[n];
      for (int64_t n = 0; n < count; ++n) static_cast<float*>(p.data)[n] -= 0.05f * static_cast<float*>(g.data)[n];
    }
  }
  std::printf("step %d: loss %.4f\n", kSteps, loss);
  if (!(loss < 0.5 * first)) return std::puts("it did not learn"), 1;

  block.save("train_layer.safetensors");
  attune::Module again("llama f32 b4 s16 e32 h4/2 seed=2");
  again.load("train_layer.safetensors");
  std::remove("train_layer.safetensors");
  std::vector<float> same(y.size());
  const attune::Tensor tsame(same.data(), "bsd", shape);
  block.forward({.x = &tx, .out = &ty});
  again.forward({.x = &tx, .out = &tsame});
  return same == y ? 0 : (std::puts("what was loaded is not what was saved"), 1);
} catch (const attune::Error& e) {
  return std::puts(e.what()), 1;
}
