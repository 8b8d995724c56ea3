// SPDX-License-Identifier: Apache-2.0
// The forward that belongs to a backward: its problem and its arguments.
#include "core/forward_of.h"

#include "core/check.h"
#include "tests/asked.h"

namespace attune {
namespace {

TEST(ForwardOf, a_forward_has_no_gradients_and_starts_anew) {
  EXPECT_EQ(name(forward_of(problem("backward bf16/bf16/bf16/f32 b2 h4/2 q8 k9 d16 causal softcap accumulate"))),
            "forward bf16 b2 h4/2 q8 k9 d16 causal softcap");
}

TEST(ForwardOf, a_forward_takes_nothing_that_only_a_backward_has) {
  static char memory;
  Args backward{};
  backward.scale = 0.5f;
  for (Tensor& t : backward.tensor) t.data = &memory;
  const Args forward = forward_of(backward);
  for (int n = 0; n < int(Role::count); ++n) {
    const std::string role = name(Role(n));
    const bool only_backward = role.starts_with("d_") || role == "dq" || role == "dk" || role == "dv" ||
                               role == "block_begin_k" || role == "block_row_k";
    EXPECT_EQ(forward.given(Role(n)), !only_backward) << role;
  }
  EXPECT_EQ(forward.scale, 0.5f);
}

}  // namespace
}  // namespace attune
