// SPDX-License-Identifier: Apache-2.0
// A module with random inputs for tests, all on the CPU, with poisoned memory.
#pragma once
#include <gtest/gtest.h>

#include <random>

#include "machine/host.h"
#include "modules/module.h"

namespace attune {

inline std::unique_ptr<Module> made(std::string_view line, const Module* shares = nullptr,
                                    const Device& d = this_cpu()) {
  Settings settings;
  std::unique_ptr<Module> module;
  Status s = read_settings(line, settings);
  if (s.ok()) s = Module::make(settings, d, shares, module);
  EXPECT_EQ(s.message, "") << line;
  return module;
}

inline std::vector<float> randoms(size_t count, unsigned seed, float scale = 1.f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.f, scale);
  std::vector<float> x(count);
  for (float& y : x) y = normal(random);
  return x;
}

// Changes all parameters: initial norms of 1 and biases of 0 would hide mistakes.
inline void disturb(const Module& m) {
  unsigned seed = 100;
  for (const Parameter& p : m.graph().parameters) {
    std::vector<float> all(size_t(p.count()));
    ASSERT_EQ(m.read(p, all.data()).message, "");
    const std::vector<float> by = randoms(all.size(), ++seed, 0.2f);
    for (size_t n = 0; n < all.size(); ++n) all[n] += by[n];
    ASSERT_EQ(m.write(p, all.data()).message, "");
  }
}

// The tensors of an f32 module, and a call over them.
struct ModuleWorld {
  const Module& module;
  std::vector<float> x, memory, out, d_out, dx, d_memory;
  std::vector<std::byte> tape, workspace;
  int64_t seed[2] = {11, 3};
  bool drops = false;

  explicit ModuleWorld(const Module& m) : module(m) {
    const Settings& s = m.settings();
    const size_t rows = size_t(s.batch) * size_t(s.len) * size_t(s.embed);
    const size_t rows_of_memory = size_t(s.batch) * size_t(s.memory) * size_t(s.embed);
    x = randoms(rows, 1), memory = randoms(rows_of_memory, 2), d_out = randoms(rows, 3);
    out.assign(rows, NAN), dx.assign(rows, NAN), d_memory.assign(rows_of_memory, NAN);
    tape.assign(m.graph().tape_bytes + 256, std::byte(0xFF));
    workspace.assign(std::max({m.workspace_bytes(Pass::backward, true), m.workspace_bytes(Pass::forward, true),
                               m.workspace_bytes(Pass::forward, false)}) + 256, std::byte(0xFF));
  }
  static std::byte* aligned(std::vector<std::byte>& v) {
    return v.data() + (256 - reinterpret_cast<uintptr_t>(v.data()) % 256) % 256;
  }
  Tensor tensor(std::vector<float>& v, int len) const {
    const Extents e = row_extent(module.settings().batch, len, module.settings().embed);
    return {.data = v.empty() ? nullptr : v.data(), .dtype = DType::f32, .extent = e, .stride = compact(e)};
  }
  ModuleCall call(bool with_tape = true) {
    const int len = module.settings().len, keys = module.settings().memory;
    ModuleCall c{.x = tensor(x, len), .memory = tensor(memory, keys), .out = tensor(out, len)};
    if (with_tape) c.tape = aligned(tape);
    c.workspace = aligned(workspace);
    if (drops) c.seed = {.data = seed, .dtype = DType::i64, .extent = {1, 1, 1, 2}};
    return c;
  }
  Status forward(bool with_tape = true) { return module.forward(call(with_tape)); }
  Status backward(bool add = false) {
    const int len = module.settings().len, keys = module.settings().memory;
    ModuleCall c = call();
    c.d_out = tensor(d_out, len), c.dx = tensor(dx, len), c.d_memory = tensor(d_memory, keys), c.add = add;
    return module.backward(c);
  }
  Status both() {  // a forward, then a backward
    const Status s = forward();
    return s.ok() ? backward() : s;
  }
  std::vector<float> parameter(const Parameter& p) const {
    std::vector<float> all(size_t(p.count()));
    EXPECT_EQ(module.read(p, all.data()).message, "");
    return all;
  }
  std::vector<float> gradient(const Parameter& p) const {
    std::byte* gradients = nullptr;
    EXPECT_EQ(module.gradients(gradients).message, "");
    const float* first = reinterpret_cast<const float*>(gradients + p.gradient_at);
    return {first, first + p.count()};
  }
  double loss() const {
    double sum = 0;
    for (size_t n = 0; n < out.size(); ++n) sum += double(out[n]) * double(d_out[n]);
    return sum;
  }
};

inline double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t n = 0; n < a.size(); ++n) sum += double(a[n]) * double(b[n]);
  return sum;
}

}  // namespace attune
