// SPDX-License-Identifier: Apache-2.0
// Refusals of the GPU backends: which problems they decline, and the text. Pure functions: they require a build with
// GPU code, but no GPU.
#pragma once
#include <span>

#include "plan/plan.h"
#include "tests/asked.h"

namespace attune {

class WithGpuCode : public testing::Test {
 protected:
  void SetUp() override {
    if (!find_backend("cuda_standard")) GTEST_SKIP() << "this build has no GPU code";
  }
};

struct Refusal {
  const char *backend, *line, *on, *says;  // part of a sentence that begins with the backend's name
};

inline void expect_refusals(std::span<const Refusal> all) {
  for (const Refusal& c : all) {
    const std::string said = find_backend(c.backend)->supports(problem(c.line), known(c.on)).message;
    EXPECT_TRUE(said.starts_with(join(c.backend, ": "))) << c.line << " says: " << said;
    EXPECT_NE(said.find(c.says), std::string::npos) << c.line << " says: " << said;
  }
}

// Arguments of a plain call, at addresses that are never read.
struct Call {
  Problem p;
  Args args{};
  explicit Call(std::string_view line) : p(problem(line)) {
    const bool backward = p.pass == Pass::backward;
    for (const Role r : {Role::q, Role::out, Role::k, Role::v}) give(r, r == Role::q || r == Role::out);
    if (backward)
      for (const Role r : {Role::d_out, Role::dq, Role::dk, Role::dv}) give(r, r == Role::d_out || r == Role::dq);
  }
  void give(Role r, bool of_queries) {
    const int32_t seq = of_queries ? p.len_q : p.len_k, head = of_queries ? p.heads_q : p.heads_kv;
    args[r] = {reinterpret_cast<void*>(uintptr_t(1) << 20), p.dtype.q, DeviceKind::cuda, 0,
               {p.batch, seq, head, p.dim_qk}, {int64_t(seq) * head * p.dim_qk, int64_t(head) * p.dim_qk, p.dim_qk}};
  }
  std::string said(std::string_view backend) const {
    Plan plan{.backend = find_backend(backend), .problem = p, .device = known("h200")};
    if (const Status s = plan.backend->shape(plan, {.device = plan.device, .forced = backend}); !s.ok())
      return s.message;
    return plan.backend->fits(plan, args).message;
  }
};

}  // namespace attune
