// SPDX-License-Identifier: Apache-2.0
// The parts of a CPU backward outside its matrix products.
#include "attention/cpu/gradients.h"

#include "tests/runs.h"

namespace attune::cpu {
namespace {

TEST(Gradients, are_stored_whole_where_every_key_is_one_of_a_sequence) {
  const Problem p = problem("backward f32 b2 h2 q8 k16 d8 full");
  World world(p, {});
  Args a = world.args;
  EXPECT_TRUE(whole(p, a, a[Role::k]));

  int32_t used[2] = {16, 16};
  a[Role::used_k] = {.data = used, .dtype = DType::i32, .extent = {2, 1, 1, 1}, .stride = {1, 0, 0}};
  EXPECT_TRUE(whole(p, a, a[Role::k]));
  used[1] = 15;
  EXPECT_FALSE(whole(p, a, a[Role::k])) << "a key behind the second sequence";
  used[1] = 16;
  Tensor more = a[Role::k];
  more.extent.batch = 3;
  EXPECT_FALSE(whole(p, a, more)) << "a row of keys that no sequence has";
  int32_t rows[2] = {0, 0};
  a[Role::cache_index] = {.data = rows, .dtype = DType::i32, .extent = {2, 1, 1, 1}, .stride = {1, 0, 0}};
  EXPECT_FALSE(whole(p, a, a[Role::k])) << "two sequences with the same keys";
}

// One query and one key: the weight is 1, and dv equals d_out.
TEST(Gradients, of_a_row_just_behind_2_to_the_24_are_those_of_any_other) {
  const std::string_view dense = "backward f32 b1 h1 q1 k1 d8 full";
  const std::pair<const char*, std::string_view> all[] = {
      {"cpu_backward", dense},
      {"cpu_standard", dense},
      {"cpu_backward", "backward f32 b1 h1 q1 k1 d8 full blocks8x8x1 block_bias"},
      {"cpu_selected_backward", "backward f32 b1 h1 q1 k1 d8 causal : selected n=3 s=1"}};
  for (const auto& [backend, line] : all)
    for (const double logit : {1000., 11629080., 11629088., 11629099., 11700000.}) {
      World world(problem(line), {});
      const bool numbered = world.args.given(Role::bias);  // the logit is the block's number (bias) or a product
      if (numbered) {
        for (const Role begin : {Role::block_begin, Role::block_begin_k})  // a list of one block
          if (world.args.given(begin)) set(world.args[begin], [](int, int, int, int n) { return n; });
        for (const Role block : {Role::block_column, Role::block_row_k})
          if (world.args.given(block)) set(world.args[block], [](int, int, int, int) { return 0; });
        set(world.args[Role::bias], [&](int, int, int, int) { return logit; });
      }
      set(world.args[Role::q], [&](int, int, int, int d) { return d || numbered ? 0 : logit * std::sqrt(8.); });
      set(world.args[Role::k], [](int, int, int, int d) { return d ? 0 : 1; });
      if (world.args.given(variant_tensor(0)))
        // The list holds block 0 only.
        set(world.args[variant_tensor(0)], [](int, int, int, int n) { return n ? -1 : 0; });
      run_forward(world, world.forward_result());
      Outputs got = world.outputs(false);
      Plan plan;
      ASSERT_EQ(plan_on(*find_backend(backend), world.problem, this_cpu(), plan).message, "");
      ASSERT_EQ(run_plan(plan, got.args).message, "");
      for (int d = 0; d < 8; ++d) {
        const double want = load(world.args[Role::d_out], 0, 0, 0, d), dv = load(got.args[Role::dv], 0, 0, 0, d);
        EXPECT_NEAR(dv, want, 1e-3 * std::fabs(want)) << backend << " at " << logit;
      }
    }
}

}  // namespace
}  // namespace attune::cpu
