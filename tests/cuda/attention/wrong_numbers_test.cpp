// SPDX-License-Identifier: Apache-2.0
// Lengths, indices, pages and positions lie on the GPU, where a call does not check them. Whatever their values, a
// kernel terminates, reads nothing outside its tensors and writes only its outputs; a fault would fail everything that
// follows. Also tests what `attune_check` reports about them.
#include <set>

#include "capi/gpu_values.h"
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

constexpr Role kNumbers[] = {Role::used_k, Role::used_q,      Role::left_pad,   Role::cu_q,
                             Role::cu_k,   Role::cache_index, Role::page_table, Role::positions};
constexpr const char* kLines[] = {
    "forward bf16 b3 h4/2 q90 k300 d64 causal | seed=2 drawn cache used_q",
    "forward f16 b3 h2 q200 k300 d256 window90,5 | seed=4 drawn cache shared",
    "forward bf16 b4 h4/2 q1 k300 d128 full paged16 | seed=2 drawn cache",
    "forward bf16 b3 h8/2 q1 k512 d128 causal paged16 repro=batch | seed=2 drawn cache",
    "forward f16 b3 h2 q90 k260 d64 causal paged3 | seed=3 drawn cache used_q",
    "forward bf16 b3 h64/8 q9 k150 d128 causal sink | seed=2 drawn cache used_q",
    "forward bf16 b4 h4/2 q127 k127 d128 causal ragged | seed=2 drawn used_q cache",
    "forward f16 b4 h2 q150 k290 d64 window70,3 | seed=5 drawn cu_q cache",
    "forward bf16 b4 h4/2 q130 k200 d64 causal softcap alibi bias dropout ragged | seed=3 drawn",
    "forward bf16 b2 h2 q40 k80 d64 causal@absolute alibi dropout | seed=2 drawn used_q cache",
    "forward f32 b3 h2 q33 k65 d64 causal precision=tf32 | seed=2 drawn used_q cache",
    "backward bf16 b4 h4/2 q64 k96 d64 causal ragged | seed=2 drawn used_q cache",
    "backward f16 b4 h2/1 q130 k200 d128 causal ragged repro=run | seed=4 drawn used_q",
    "backward f16 b2 h2 q64 k64 d256 causal paged16 | seed=2 drawn cache",
    "backward bf16 b3 h2 q70 k90 d64 causal@absolute dropout | seed=2 drawn used_q",
};

class WrongNumbers : public OnGpu {};

TEST_F(WrongNumbers, neither_fault_nor_write_elsewhere) {
  std::set<Role> seen;
  for (const char* line : kLines)
    for (const Backend* b : takers(case_of(line).problem, gpu_)) {
      Placed on(line, 0);
      ASSERT_EQ(on.plan_for(*b, gpu_).message, "");
      if (!on.fits()) continue;
      for (const Role r : kNumbers)
        for (const int64_t value : {int64_t(INT32_MAX), int64_t(INT32_MIN), int64_t(-1), int64_t(1) << 20})
          for (const int every : {1, 2}) {  // all of them, or every second one
            const int64_t wide = r == Role::positions ? value << 31 : value;
            std::vector<int64_t> right;
            const auto wrong = [&](int64_t x, int n) { return right.push_back(x), n % every ? x : wide; };
            if (!on.change(r, wrong, stream_.get())) continue;
            SCOPED_TRACE(join(b->name, ": ", line, ", ", name(r), " = ", wide, ", every ", every));
            seen.insert(r);
            on.reset(stream_.get());
            const Written before = on.inputs(stream_.get());
            ASSERT_EQ(on.run(stream_.get()).message, "");
            ASSERT_EQ(cuda::wait(stream_.get()).message, "");
            ASSERT_EQ(on.inputs(stream_.get()), before) << "an input was written";
            on.change(r, [&](int64_t, int n) { return right[size_t(n)]; }, stream_.get());
          }
      if (on.problem().pass == Pass::backward && on.problem().reproducible == Reproducible::no) continue;
      const Written after = on.fresh(stream_.get());
      Placed again(line, 0);
      ASSERT_EQ(again.plan_for(*b, gpu_).message, "");
      EXPECT_EQ(again.fresh(stream_.get()), after) << b->name << ": " << line << ": the numbers are right again";
    }
  for (const Role r : kNumbers) EXPECT_TRUE(seen.contains(r)) << "no line has " << name(r);
}

TEST_F(WrongNumbers, are_found_by_a_check) {
  const struct { const char* line; Role role; int64_t value; const char* says; } cases[] = {
      {"forward bf16 b3 h4/2 q1 k256 d128 full paged16 | seed=2 cache", Role::page_table, 1000000, "page_table"},
      {"forward bf16 b3 h4/2 q5 k300 d64 causal | seed=2 cache", Role::used_k, -1, "used_k"},
      {"forward bf16 b4 h4/2 q127 k127 d64 causal ragged | seed=2", Role::cu_k, INT32_MAX, "cu_k"},
  };
  for (const auto& [line, role, value, says] : cases) {
    Placed on(line, 0);
    EXPECT_EQ(check_values_on_gpu(on.problem(), on.args()).message, "") << line;
    ASSERT_TRUE(on.change(role, [v = value](int64_t, int) { return v; }, stream_.get()));
    const std::string said = check_values_on_gpu(on.problem(), on.args()).message;
    EXPECT_TRUE(said.starts_with(says)) << line << ": " << said;
  }
}

}  // namespace
}  // namespace attune
