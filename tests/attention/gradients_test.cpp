// What a backward on the CPU does around its products.
#include "attention/gradients.cpu.h"

#include "tests/asked.h"
#include "verify/world.h"

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

}  // namespace
}  // namespace attune::cpu
