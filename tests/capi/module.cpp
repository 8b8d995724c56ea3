// SPDX-License-Identifier: Apache-2.0
// Modules through the installed headers: a tiny training run, saving to a file, shared parameters, and refusals.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "expect.h"

namespace {

std::vector<float> wave(size_t count, float by) {
  std::vector<float> x(count);
  for (size_t n = 0; n < count; ++n) x[n] = std::sin(by * float(n) + 0.3f);
  return x;
}

void* aligned(std::vector<char>& memory, size_t bytes) {
  memory.resize(bytes + 64);
  return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
}

// Plain gradient descent towards a target reduces the loss.
void train() {
  attune::Module module("llama f32 b2 s8 e32 h4/2 seed=3");
  const attune_module_sizes sizes = module.sizes();
  expect(sizes.parameters == 9 && module.parameters().size() == 9, "nine parameters");
  std::vector<float> x = wave(2 * 8 * 32, 0.7f), want = wave(x.size(), 1.3f), y(x.size()), dy(x.size()), dx(x.size());
  std::vector<char> memory;
  void* tape = aligned(memory, sizes.tape);
  const attune::Tensor tx(x.data(), "bsd", {2, 8, 32}), ty(y.data(), "bsd", {2, 8, 32}),
      tdy(dy.data(), "bsd", {2, 8, 32}), tdx(dx.data(), "bsd", {2, 8, 32});
  double first = 0, loss = 0;
  for (int step = 0; step < 60; ++step) {
    module.forward({.x = &tx, .out = &ty, .tape = tape});
    loss = 0;
    for (size_t n = 0; n < y.size(); ++n) dy[n] = y[n] - want[n], loss += 0.5 * double(dy[n]) * double(dy[n]);
    if (!step) first = loss;
    module.backward({.x = &tx, .d_out = &tdy, .dx = &tdx, .tape = tape});
    for (const std::string& name : module.parameters()) {
      const attune_tensor p = module.parameter(name), g = module.gradient(name);
      int64_t count = 1;
      for (int32_t n = 0; n < p.ndim; ++n) count *= p.shape[n];
      for (int64_t n = 0; n < count; ++n) static_cast<float*>(p.data)[n] -= 0.001f * static_cast<float*>(g.data)[n];
    }
  }
  expect(std::isfinite(loss) && loss < 0.5 * first,
         "training makes the loss smaller: " + std::to_string(first) + " -> " + std::to_string(loss));

  // Saves to a file, then creates a module of another length that shares the parameters.
  const std::string path =
      std::string(std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") + "/attune_capi_module.safetensors";
  module.save(path, "layer.");
  attune::Module again("llama f32 b2 s8 e32 h4/2 seed=9"), shorter("llama f32 b2 s4 e32 h4/2", nullptr, &module);
  again.load(path, "layer.");
  std::remove(path.c_str());
  std::vector<float> y2(x.size());
  const attune::Tensor ty2(y2.data(), "bsd", {2, 8, 32});
  expect(module.tape() == module.tape() && module.tape() != again.tape(), "a tape of the module's own");
  module.forward({.x = &tx, .out = &ty, .tape = module.tape()});
  again.forward({.x = &tx, .out = &ty2});
  expect(!std::memcmp(y.data(), y2.data(), y.size() * sizeof(float)), "what was saved is loaded");
  expect(shorter.parameter("mlp.up_proj.weight").data == module.parameter("mlp.up_proj.weight").data, "shared");
  expect(module.text() == "llama f32 b2 s8 e32 h4/2 seed=3 | causal", module.text());
  expect(module.why().find("forward: cpu_forward") != std::string::npos, module.why());
}

void refusals() {
  attune::Module module("feed_forward f32 b1 s2 e8");
  std::vector<float> x(16), y(16);
  std::vector<char> memory;
  void* tape = aligned(memory, module.sizes().tape);
  const attune::Tensor tx(x.data(), "bsd", {1, 2, 8}), ty(y.data(), "bsd", {1, 2, 8}), wide(x.data(), "bsd", {2, 1, 8}),
      heads(x.data(), "bshd", {1, 2, 2, 4});
  refused([] { attune::Module("lama f32 b1 s1 e1"); },
          "module: 'lama' is not one of multihead, feed_forward, longnet_encoder, longnet_decoder, llama");
  refused([] { attune::Module("llama f32 b1 s1 e8 h2", "h200"); }, "module: device NVIDIA H200 is not present");
  refused([&] { module.forward({.x = &tx}); }, "module: out not given");
  refused([&] { module.forward({.x = &wide, .out = &ty}); }, "module: x is [2, 1, 1, 8], not a compact [1, 2, 8]");
  refused([&] { module.forward({.x = &heads, .out = &ty}); }, "module: x is [1, 2, 2, 4], not a compact [1, 2, 8]");
  refused([&] { module.forward({.x = &tx, .out = &tx}); }, "module: out shares memory with x");
  refused([&] { module.forward({.x = &tx, .memory = &tx, .out = &ty}); },
          "module: memory given, but the module has no memory");
  refused([&] { module.backward({.x = &tx, .d_out = &ty}); }, "module: tape not given, but a backward requires it");
  refused([&] { module.forward({.x = &tx, .out = &ty, .tape = static_cast<char*>(tape) + 1}); },
          "module: tape is not aligned to 64 bytes");
  refused(
      [&] { module.forward({.x = &tx, .out = &ty, .workspace = tape, .workspace_bytes = 1}); },
      "module: workspace: 1 bytes given, the module needs " + std::to_string(module.sizes().forward_only));
  refused([&] { module.parameter("x"); }, "module: 'x' is not a parameter of 'feed_forward f32 b1 s2 e8'");
  attune_module_options later{};
  attune_module* none = nullptr;
  later.size = 3;
  expect(attune_module_create("feed_forward f32 b1 s2 e8", &later, &none) == 1 && !none, "a size that is none");
  expect(attune_module_create(nullptr, nullptr, &none) == 1 && attune_module_forward(nullptr, nullptr, nullptr) == 1 &&
             attune_module_load(nullptr, nullptr, nullptr, 0) == 1 && attune_module_measure(nullptr, nullptr) == 1 &&
             attune_module_parameter(nullptr, nullptr, nullptr) == 1 && !attune_module_parameter_name(nullptr, 0),
         "null is refused");
  attune_module_destroy(nullptr);
}

void factory() {
  const attune::Made dilated = attune::make("dilated", {.len = 64, .heads = 2, .dim = 16, .causal = true});
  expect(!dilated.is_module() && dilated.problem().line() == dilated.line(), dilated.line());
  const attune::Made module = attune::make("multihead_auto", {.len = 32, .heads = 2, .dim = 16});
  expect(module.is_module() && module.name() == "multihead_dense", module.name());
  expect(module.module().text() == "multihead f32 b1 s32 e32 h2 norm=1 | full", module.module().text());
  expect(module.why().find("so attention is exact") != std::string::npos, module.why());
  const attune::Made sparse = attune::make("block_sparse", {.len = 512, .density = 0.1f});
  expect(sparse.pattern() == "random density=0.1 seed=0", sparse.pattern());
  refused([] { attune::make("dilated", {.heads = -1}); }, "make: heads = -1 is below 1");
}

}  // namespace

int main() try {
  train();
  factory();
  refusals();
  return finish("module");
} catch (const attune::Error& e) {
  return std::puts(e.what()), 1;
}
