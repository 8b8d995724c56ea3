// SPDX-License-Identifier: Apache-2.0
// Runs for tests: a case, with inputs that a test may change, on the CPU and on a GPU if there is one.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "core/check.h"
#include "core/forward_of.h"
#include "machine/cuda/runtime.h"
#include "machine/host.h"
#include "tests/asked.h"
#include "tests/asked_case.h"
#include "verify/compare.h"
#include "verify/on_gpu.h"

namespace attune {

inline std::vector<Device> devices() {
  std::vector<Device> all{this_cpu()};
  if (Device gpu; cuda::device(0, gpu).ok()) all.push_back(gpu);
  return all;
}

// Scratch memory on the CPU: filled with NaN, and aligned as the interface requires of a caller.
class Scratch {
 public:
  explicit Scratch(const Plan& plan) : memory_(plan.workspace_bytes + 256, std::byte{0xFF}) {}
  Workspace workspace() {
    return {reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory_.data()) + 255) / 256 * 256)};
  }

 private:
  std::vector<std::byte> memory_;
};

inline Status run_plan(const Plan& plan, const Args& on_cpu) {
  return plan.backend->run(plan, on_cpu, Scratch(plan).workspace(), nullptr);
}

// Runs the world's problem on the plan's device.
inline Status run_plan(const Plan& plan, const World& world, Outputs& got) {
  if (plan.device.kind != DeviceKind::cuda) return run_plan(plan, got.args);
  std::string unfit;
  if (Status s = run_on_gpu(plan, world, got, unfit); !s.ok()) return s;
  return unfit.empty() ? Status::good() : Status::no(unfit);
}

inline Status run_on(const Device& device, const World& world, Outputs& got) {
  Plan plan;
  if (Status s = Planner{.device = device}.plan(world.problem, plan); !s.ok()) return s;
  return run_plan(plan, world, got);
}

// Computes the forward outputs that a backward needs, with the reference. `forward` is World::forward_result().
inline void run_forward(const World& world, const Args& forward) {
  const Status s = find_backend("reference")->run(Plan{.problem = forward_of(world.problem)}, forward, {}, nullptr);
  EXPECT_TRUE(s.ok()) << s.message;
}

using Change = std::function<void(World&)>;

// A case and its result from the planner's choice on a device. A backward uses the reference's forward.
struct Ran {
  std::unique_ptr<World> world{};
  Outputs got{};

  Ran(std::string_view line, const Device& device, const Change& change = nullptr) {
    const Case c = case_of(line);
    world = std::make_unique<World>(c.problem, c.variation);
    if (change) change(*world);
    if (world->problem.pass == Pass::backward) run_forward(*world, world->forward_result());
    run(device);
  }
  // Runs again, into fresh outputs.
  void run(const Device& device) {
    const Problem& p = world->problem;
    got = world->outputs(false);
    Status s = check(p, got.args);
    if (s.ok()) s = check_values(p, got.args);
    if (s.ok()) s = run_on(device, *world, got);
    EXPECT_TRUE(s.ok()) << s.message << ", in: " << name(p);
  }
  double at(Role r, int b, int s, int h, int d = 0) const { return load(got.args[r], b, s, h, d); }
  double input(Role r, int b, int s, int h, int d = 0) const { return load(world->args[r], b, s, h, d); }
};

// Calls f(b, s, h, d) for every element of a tensor.
template <class F>
void each(const Tensor& t, F f) {
  for (int b = 0; b < t.extent.batch; ++b)
    for (int s = 0; s < t.extent.seq; ++s)
      for (int h = 0; h < t.extent.head; ++h)
        for (int d = 0; d < t.extent.dim; ++d) f(b, s, h, d);
}

// Sets every element of a tensor to f(b, s, h, d).
template <class F>
void set(const Tensor& t, F f) {
  each(t, [&](int b, int s, int h, int d) { store(t, b, s, h, d, f(b, s, h, d)); });
}

// Compares two outputs element by element: equal, or within the tolerance.
inline void expect_near(const Ran& a, Role of_a, const Ran& b, Role of_b, double tolerance) {
  double worst = 0;
  each(a.got.args[of_a], [&](int x, int s, int h, int d) {
    const double one = a.at(of_a, x, s, h, d), other = b.at(of_b, x, s, h, d);
    const double apart = one == other ? 0 : std::fabs(one - other);
    if (!(apart <= worst)) worst = apart;
  });
  EXPECT_LE(worst, tolerance) << name(of_a);
}

// Copies one tensor into another of the same extents.
inline void copy(const Tensor& from, const Tensor& to) {
  set(to, [&](int b, int s, int h, int d) { return load(from, b, s, h, d); });
}

}  // namespace attune
