// SPDX-License-Identifier: Apache-2.0
// The C++ wrapper as a user sees it: only the installed headers and the shared library.
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "expect.h"

namespace {

attune::Args args_of(const std::vector<float>& q, std::vector<float>& out) {
  const attune::Tensor::Sizes shape{1, 4, 2, 8};
  attune::Args args;
  args.set(ATTUNE_Q, {q.data(), "bshd", shape}).set(ATTUNE_K, {q.data(), "bshd", shape});
  args.set(ATTUNE_V, {q.data(), "bshd", shape}).set(ATTUNE_OUT, {out.data(), "bshd", shape});
  return args;
}

}  // namespace

int main() {
  const attune::Problem problem("forward f32 b1 h2 q4 k4 d8 causal");
  expect(problem.line() == "forward f32 b1 h2 q4 k4 d8 causal", "the line of a problem");
  std::vector<float> q(64, 0.5f), out(64), again(64);
  const attune::Args args = args_of(q, out);
  attune::call(problem, args);
  for (const float x : out) expect(std::fabs(x - 0.5f) < 1e-6f, "the mean of equal values");

  attune::Plan plan(problem, "cpu", "reference");
  attune::Plan moved = std::move(plan);
  expect(moved.backend() == "reference" && moved.why() == "reference: selected by name", "a plan that was moved");
  expect(moved.workspace() == attune::workspace(problem) || moved.workspace() == 0, "workspace");
  static_assert(!std::is_copy_constructible_v<attune::Plan>);
  attune::Args copy = args_of(q, out);
  {
    const attune::Args original = args_of(q, again);
    copy = original;  // a copy borrows the caller's memory, not the other Args
  }
  moved.run(copy);
  for (size_t n = 0; n < out.size(); ++n) expect(std::fabs(again[n] - 0.5f) < 1e-6f, "a copy of arguments");

  refused([] { attune::Problem("forward f33"); }, "is not a dtype");
  refused([&] { attune::Plan(problem, "abacus"); }, "device 'abacus'");
  refused([&] { attune::call(problem, args_of(q, q)); }, "out: output shares memory with q");
  refused([&] { attune::check(problem, attune::Args()); }, "q: not given");
  refused([&] { attune::Args().set(99, {q.data(), "b", {1}}); }, "role 99 is unknown");
  refused([&] { attune::Tensor(q.data(), "bs", {1}); }, "not of one length");
  std::vector<uint16_t> half(64);
  copy.set(ATTUNE_V, {half.data(), attune::kBf16, "bshd", {1, 4, 2, 8}});
  refused([&] { attune::check(problem, copy); }, "v: dtype bf16 is not f32");
  expect(attune::memory().live_buffers == 1 && attune::memory("cpu").high_bytes > 0, "what was lent to this thread");
  refused([] { attune::memory("abacus"); }, "device 'abacus' is not cpu, cuda or cuda:#");
  refused([] { attune::Buffer("cpu", 64); }, "memory: the CPU has no pool");
  return finish("wrapper");
}
