// SPDX-License-Identifier: Apache-2.0
// A row that sees a single key: its weight is exactly 1, regardless of rounding, so the output is that key's value.
#include "tests/runs.h"

namespace attune {
namespace {

TEST(OneKey, answer_is_its_value_to_the_bit) {
  for (const char* line : {"forward bf16 b2 h4/2 q40 k40 d64 window0,0", "forward bf16 b1 h3 q1 k1 d128 full",
                           "forward bf16 b2 h2 q24 k24 d72 window0,0 softcap"})
    for (const char* level : {"scalar", "neon", "neon_bf16", "avx2", "avx512", "avx512_bf16", "amx_bf16"}) {
      Device cpu;
      if (!device_named(join("cpu:", level), cpu).ok()) continue;
      const Problem p = problem(line);
      World world(p, {});
      Outputs got = world.outputs(false), want = world.outputs(false);
      Plan plan;
      ASSERT_EQ(plan_on(*find_backend("cpu_forward"), p, cpu, plan).message, "");
      ASSERT_EQ(run_plan(plan, got.args).message, "");
      ASSERT_EQ(find_backend("reference")->run(Plan{.problem = p}, want.args, {}, nullptr).message, "");
      each(got.args[Role::out], [&](int b, int s, int h, int d) {
        EXPECT_EQ(load(got.args[Role::out], b, s, h, d), load(world.args[Role::v], b, s, h * p.heads_kv / p.heads_q, d))
            << line << " on " << level << " at " << b << ' ' << s << ' ' << h << ' ' << d;
      });
      // The lse comes from the weight before rounding; rounding alone would change a score by 2e-3.
      each(got.args[Role::lse], [&](int b, int s, int h, int d) {
        EXPECT_NEAR(load(got.args[Role::lse], b, s, h, d), load(want.args[Role::lse], b, s, h, d), 2e-4) << line;
      });
    }
}

}  // namespace
}  // namespace attune
