// SPDX-License-Identifier: Apache-2.0
// Selected attention on a GPU, beyond the cases for every backend: group sizes, block sizes and lists with separate
// code paths, and results that must be exact.
#include <cmath>

#include "tests/cuda/gpu.h"

namespace attune {
namespace {

class SelectedOnGpu : public OnGpu {
 protected:
  static const Backend& backend(const Problem& p) {
    return *find_backend(p.pass == Pass::forward ? "sm80_selected" : "sm80_selected_backward");
  }
  void run(Placed& on) {
    ASSERT_EQ(on.plan_for(backend(on.problem()), gpu_).message, "");
    ASSERT_EQ(on.run(stream_.get()).message, "");
    ASSERT_EQ(cuda::wait_all(0).message, "");
  }
  // One row of an output, as bytes.
  static Written row(Placed& on, Role r, int b, int s, int h) {
    const Tensor& t = on.args()[r];
    Written bytes(size_t(t.extent.dim) * size_t(size_of(t.dtype)));
    EXPECT_EQ(cudaMemcpy(bytes.data(), row_address(t, b, s, h), bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    return bytes;
  }
  template <class F>
  static void each_row(Placed& on, Role r, F f) {
    const Extents e = on.args()[r].extent;
    for (int b = 0; b < e.batch; ++b)
      for (int s = 0; s < e.seq; ++s)
        for (int h = 0; h < e.head; ++h) f(b, s, h, row(on, r, b, s, h));
  }
};

// Groups below, at and above 16 rows, and larger than a CTA; blocks that differ from a tile; lists as long as the
// sequence, where every block has more tokens than a chunk; few tokens, with split lists.
constexpr const char* kShapes[] = {
    "b1 h1/1 q150 k150 d64 causal : selected n=9 s=64",
    "b2 h3/1 q70 k70 d128 causal : selected n=4 s=64 | seed=2",
    "b1 h24/2 q40 k100 d128 causal : selected n=4 s=64 | seed=3",
    "b1 h16/1 q160 k160 d64 causal : selected n=16 s=64",
    "b1 h66/2 q60 k140 d192/128 causal : selected n=3 s=128 | seed=4",
    "b1 h200/1 q20 k70 d64 causal : selected n=5 s=32",
    "b1 h32/2 q70 k130 d256 causal : selected n=8 s=64",
    "b1 h16/1 q100 k100 d64 causal : selected n=64 s=16",
    "b1 h4/1 q80 k80 d64 causal : selected n=80 s=1",
    "b1 h8/2 q70 k70 d200/72 causal : selected n=4 s=48 | seed=2",
    "b1 h64/4 q1 k1000 d192/128 causal : selected n=16 s=64",
    "b2 h16/4 q20 k300 d128 causal : selected n=16 s=64 | seed=2",
    "b5 h16/2 q90 k90 d64 causal ragged : selected n=16 s=16 | drawn",
};

TEST_F(SelectedOnGpu, every_shape_agrees_with_the_reference) {
  for (const std::string_view pass :
       {"forward bf16 ", "forward f16/f16/f32 ", "backward bf16 ", "backward f16/f16/f16/f32 "})
    for (const char* shape : kShapes) {
      const std::string line = join(pass, shape);
      SCOPED_TRACE(line);
      Trial trial(case_of(line));
      ASSERT_EQ(trial.prepare().message, "");
      const Outcome outcome = trial.run(backend(trial.world.problem), gpu_);
      EXPECT_EQ(outcome.why, "");
      EXPECT_EQ(outcome.unfit, "");
    }
}

// Inputs that tensor cores cannot take: f32, any head dim, unaligned rows.
TEST_F(SelectedOnGpu, f32_and_odd_rows_agree_with_the_reference) {
  for (const std::string_view pass : {"forward", "backward"})
    for (const std::string_view rest :
         {" f32 b2 h3/1 q70 k70 d128 causal : selected n=4 s=64 | seed=2",
          " f32 b1 h18/2 q30 k140 d192/128 causal : selected n=3 s=128 | seed=4",
          " f32 b1 h4/2 q60 k60 d33/7 causal : selected n=60 s=1",
          " f32 b5 h4/2 q50 k50 d256 causal ragged : selected n=16 s=16 | drawn",
          " bf16 b1 h4/2 q60 k60 d33/7 causal : selected n=4 s=24 | pad=3 seed=2"}) {
      const std::string line = join(pass, rest);
      SCOPED_TRACE(line);
      Trial trial(case_of(line));
      ASSERT_EQ(trial.prepare().message, "");
      const Outcome outcome = trial.run(*find_backend("cuda_selected"), gpu_);
      EXPECT_EQ(outcome.why, "");
      EXPECT_EQ(outcome.unfit, "");
    }
}

TEST_F(SelectedOnGpu, every_run_gives_the_same_bits) {
  for (const std::string_view pass : {"forward bf16 ", "backward bf16 ", "backward f32 "})
    for (const char* shape : kShapes) {
      const std::string line = join(pass, shape);
      SCOPED_TRACE(line);
      Placed on(line, 0);
      const bool f32 = on.problem().dtype.q == DType::f32;
      ASSERT_EQ(on.plan_for(f32 ? *find_backend("cuda_selected") : backend(on.problem()), gpu_).message, "");
      const Written first = on.fresh(stream_.get());
      for (int n = 0; n < 5; ++n) ASSERT_EQ(on.fresh(stream_.get()), first) << "run " << n + 2;
    }
}

TEST_F(SelectedOnGpu, a_token_that_chose_nothing_has_exact_zeros_and_no_gradient) {
  for (const char* line : {"forward bf16 b2 h16/2 q100 k100 d64 causal : selected n=4 s=16",
                           "backward bf16 b2 h16/2 q100 k100 d64 causal : selected n=4 s=16"}) {
    SCOPED_TRACE(line);
    Placed on(line, 0);
    ASSERT_TRUE(on.change(variant_tensor(0), [](int64_t, int n) { return n % 2 ? -1 : -7; }, stream_.get()));
    run(on);
    const bool forward = on.problem().pass == Pass::forward;
    for (const Role r : forward ? std::vector{Role::out} : std::vector{Role::dq, Role::dk, Role::dv})
      each_row(on, r, [&](int b, int s, int h, const Written& bytes) {
        ASSERT_EQ(bytes, Written(bytes.size(), 0)) << name(r) << " of " << b << ", " << s << ", " << h;
      });
    const float nothing = -INFINITY;
    if (forward)
      each_row(on, Role::lse, [&](int, int, int, const Written& bytes) {
        ASSERT_EQ(std::memcmp(bytes.data(), &nothing, sizeof nothing), 0);
      });
  }
}

TEST_F(SelectedOnGpu, equal_heads_of_a_group_have_equal_results) {
  Placed on("forward bf16 b1 h24/2 q70 k200 d128 causal : selected n=4 s=32", 0);
  const Tensor& q = on.args()[Role::q];
  const size_t bytes = size_t(q.extent.dim) * size_t(size_of(q.dtype));
  for (int s = 0; s < 70; ++s)
    for (int h = 0; h < 24; ++h)
      ASSERT_EQ(cudaMemcpy(row_address(q, 0, s, h), row_address(q, 0, s, h / 12 * 12), bytes, cudaMemcpyDeviceToDevice),
                cudaSuccess);
  run(on);
  for (const Role r : {Role::out, Role::lse})
    each_row(on, r, [&](int b, int s, int h, const Written& one) {
      ASSERT_EQ(one, row(on, r, b, s, h / 12 * 12)) << name(r) << " of token " << s << ", head " << h;
    });
}

// Tokens share a CTA and lists of key blocks; neither affects their bits.
TEST_F(SelectedOnGpu, a_sequence_has_the_same_bits_alone_and_in_company) {
  for (const std::string_view pass : {"forward", "backward"}) {
    SCOPED_TRACE(pass);
    Placed one(join(pass, " bf16 b1 h8/2 q300 k300 d64 causal repro=batch : selected n=4 s=32"), 0);
    Placed many(join(pass, " bf16 b3 h8/2 q300 k300 d64 causal repro=batch : selected n=4 s=32"), 0);
    for (const Role r : {Role::q, Role::k, Role::v, Role::out, Role::lse, Role::d_out, variant_tensor(0)}) {
      if (!one.args().given(r) || (pass == "forward" && (r == Role::out || r == Role::lse))) continue;
      each_row(one, r, [&](int, int s, int h, const Written& bytes) {
        ASSERT_EQ(cudaMemcpy(row_address(many.args()[r], 1, s, h), bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
                  cudaSuccess);
      });
    }
    run(one), run(many);
    const std::vector<Role> forward{Role::out, Role::lse}, backward{Role::dq, Role::dk, Role::dv};
    for (const Role r : pass == "forward" ? forward : backward)
      each_row(one, r, [&](int, int s, int h, const Written& bytes) {
        ASSERT_EQ(bytes, row(many, r, 1, s, h)) << name(r) << " of token " << s << ", head " << h;
      });
  }
}

}  // namespace
}  // namespace attune
