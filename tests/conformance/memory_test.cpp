// SPDX-License-Identifier: Apache-2.0
// 131072 tokens in linear memory: the high-water mark of the process, including workspace and threads, stays within 64
// MiB of inputs and outputs. A window keeps the run short. The plan bounds the full problem, because a backend may use
// only its workspace.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>

#include "machine/host.h"
#include "tests/asked.h"
#include "verify/compare.h"

namespace attune {
namespace {

constexpr size_t kMiB = size_t(1) << 20;

size_t kilobytes_of(const char* field) {  // from /proc/self/status; 0 if absent
  size_t value = 0;
  char line[256];
  if (FILE* f = std::fopen("/proc/self/status", "r")) {
    while (std::fgets(line, sizeof line, f))
      if (!std::strncmp(line, field, std::strlen(field))) value = std::strtoull(line + std::strlen(field), nullptr, 10);
    std::fclose(f);
  }
  return value;
}

// Resets the mark to current use if the kernel permits; otherwise the mark only rises, which is stricter.
void reset_mark() {
  if (FILE* f = std::fopen("/proc/self/clear_refs", "w")) {
    std::fputs("5", f);
    std::fclose(f);
  }
}

size_t mark_bytes() {
  if (const size_t kb = kilobytes_of("VmHWM:")) return kb * 1024;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return size_t(usage.ru_maxrss) * 1024;
}

Plan plan_of(std::string_view line) {
  Plan plan;
  const Status s = Planner{.device = this_cpu(), .forced = "cpu_forward"}.plan(problem(line), plan);
  EXPECT_TRUE(s.ok()) << s.message;
  return plan;
}

TEST(memory, a_forward_of_131072_tokens_is_linear) {
  const Plan plan = plan_of("forward f32 b1 h1 q131072 k131072 d64 window511,0");
  for (const std::string_view line :
       {"forward f32 b1 h1 q131072 k131072 d64 full", "forward f32 b1 h1 q131072 k131072 d64 causal"})
    EXPECT_LE(plan_of(line).workspace_bytes, plan.workspace_bytes) << line;
  EXPECT_LT(plan.workspace_bytes, 64 * kMiB);

  const int len = plan.problem.len_q, dim = 64;
  const size_t count = size_t(len) * dim;
  Args args;
  std::unique_ptr<float[]> memory[4];
  for (const Role r : {Role::q, Role::k, Role::v, Role::out}) {
    auto& data = memory[int(r)] = std::make_unique<float[]>(count);
    for (size_t n = 0; n < count; ++n) data[n] = float((n * 2654435761u >> 16) % 1000) * 1e-3f - 0.5f;
    args[r] = {.data = data.get(), .dtype = DType::f32, .extent = {1, len, 1, dim}, .stride = {0, dim, 0}};
  }
  reset_mark();
  const size_t before = mark_bytes();
  ASSERT_GT(before, 4 * count * sizeof(float)) << "inputs and outputs are in memory before the run";
  {
    const auto workspace = std::make_unique<std::byte[]>(plan.workspace_bytes + 256);
    const auto at = (reinterpret_cast<uintptr_t>(workspace.get()) + 255) / 256 * 256;
    const Status s = plan.backend->run(plan, args, {reinterpret_cast<std::byte*>(at)}, nullptr);
    ASSERT_TRUE(s.ok()) << s.message;
  }
  const size_t extra = mark_bytes() - before;
  std::cout << "peak extra memory: " << double(extra) / kMiB << " MiB, of which workspace "
            << double(plan.workspace_bytes) / kMiB << " MiB\n";
  EXPECT_LT(extra, 64 * kMiB);

  // The last row, by hand. Other tests check correctness; this one checks that the row was computed.
  const int last = len - 1;
  double sum = 0, want = 0;
  for (int j = last - 511; j <= last; ++j) {
    double dot = 0;
    for (int d = 0; d < dim; ++d)
      dot += double(args.row<float>(Role::q, 0, last)[d]) * args.row<float>(Role::k, 0, j)[d];
    const double weight = std::exp(dot / 8);
    sum += weight, want += weight * args.row<float>(Role::v, 0, j)[5];
  }
  EXPECT_NEAR(args.row<float>(Role::out, 0, last)[5], want / sum, 1e-5);
}

}  // namespace
}  // namespace attune
