// SPDX-License-Identifier: Apache-2.0
// The variants of native sparse attention on a GPU: results must not depend on what shares a launch. `attune parity`
// checks correctness.
#include "core/variant/nsa.h"
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

using Lists = std::vector<int32_t>;

class NsaOnGpu : public OnGpu {
 protected:
  void run(Placed& on, const char* backend) {
    ASSERT_EQ(on.plan_for(*find_backend(backend), gpu_).message, "");
    ASSERT_EQ(on.run(stream_.get()).message, "");
    ASSERT_EQ(cuda::wait_all(0).message, "");
  }
  static Lists read(const Tensor& t, int first, int count) {
    Lists all;
    for (int s = first; s < first + count; ++s)
      for (int h = 0; h < t.extent.head; ++h) {
        all.resize(all.size() + size_t(t.extent.dim));
        EXPECT_EQ(cudaMemcpy(all.data() + all.size() - size_t(t.extent.dim), row_address(t, 0, s, h),
                             size_t(t.extent.dim) * sizeof(int32_t), cudaMemcpyDeviceToHost),
                  cudaSuccess);
      }
    return all;
  }
  // The blocks that queries from `first` on select when run alone, after the tokens before them.
  Lists alone(Placed& on, int first, int count) {
    Problem p = on.problem();
    p.len_q = count;
    Plan plan;
    EXPECT_EQ(plan_on(*find_backend("sm80_select"), p, gpu_, plan).message, "");
    cuda::Memory scratch, lists, used;
    Args a = on.args();
    Tensor& to = a[variant_tensor(0)];
    const size_t bytes = size_t(count) * size_t(to.extent.head) * size_t(to.extent.dim) * sizeof(int32_t);
    EXPECT_EQ(scratch.allocate(0, plan.workspace_bytes).message, "");
    EXPECT_EQ(lists.allocate(0, bytes).message, "");
    EXPECT_EQ(used.allocate(0, sizeof(int32_t)).message, "");
    const int32_t tokens = first + count;
    EXPECT_EQ(cuda::copy_to(used.data(), &tokens, sizeof tokens, stream_.get()).message, "");
    to.data = lists.data(), to.extent.seq = count;
    to.stride = {0, int64_t(to.extent.head) * to.extent.dim, to.extent.dim};
    a[Role::q] = pick_rows(a[Role::q], first, count);
    if (a.given(Role::lse)) a[Role::lse] = pick_rows(a[Role::lse], first, count);
    a[Role::used_k] = Tensor{used.data(), DType::i32, DeviceKind::cuda, 0, {1, 1, 1, 1}, {}};
    EXPECT_EQ(plan.backend->run(plan, a, {scratch.data()}, stream_.get()).message, "");
    EXPECT_EQ(cuda::wait_all(0).message, "");
    return read(to, 0, count);
  }
};

constexpr const char* kSelections[] = {
    "forward bf16 b1 h16/1 q2300 k2300 d64 causal : select d=4 l=8 n=9 s=16",
    "forward bf16 b1 h32/2 q1700 k1700 d128 causal : select d=4 l=8 n=16 s=16",
    "forward f16 b1 h24/2 q1300 k1300 d192 causal : select d=2 l=4 n=7 s=8 | seed=2",
    "forward bf16 b1 h4/2 q1500 k1500 d256 causal : select d=4 l=8 n=6 s=8",
    "forward f16 b1 h64/1 q900 k900 d64 causal : select d=2 l=8 n=11 s=2 | seed=3"};

TEST_F(NsaOnGpu, a_token_alone_selects_as_it_did_among_all) {
  for (const char* line : kSelections)
    for (const bool own_lse : {false, true}) {
      SCOPED_TRACE(join(line, own_lse ? ", its own lse" : ", lse given"));
      Placed on(line, 0);
      if (own_lse) on.args()[Role::lse] = {};
      run(on, "sm80_select");
      const Tensor& blocks = on.args()[variant_tensor(0)];
      const int len = on.problem().len_q;
      for (const int t : {0, 7, 130, len / 2 + 3, len - 1})
        EXPECT_EQ(alone(on, t, 1), read(blocks, t, 1)) << "token " << t;
      EXPECT_EQ(alone(on, len - 37, 37), read(blocks, len - 37, 37));
    }
}

TEST_F(NsaOnGpu, blocks_of_equal_scores_are_taken_from_the_lowest) {
  for (const char* line : kSelections) {
    SCOPED_TRACE(line);
    Placed on(line, 0);
    const Tensor& k = on.args()[Role::k];
    const size_t bytes = size_t(k.extent.dim) * size_t(size_of(k.dtype));
    for (int i = 1; i < k.extent.seq; ++i)
      for (int h = 0; h < k.extent.head; ++h)
        ASSERT_EQ(cudaMemcpy(row_address(k, 0, i, h), row_address(k, 0, 0, h), bytes, cudaMemcpyDeviceToDevice),
                  cudaSuccess);
    run(on, "sm80_select");
    const Nsa nsa = nsa_of(on.problem());
    const int t = on.problem().len_q - 1, own = t / nsa.s;
    int first = 1;  // with a filter that reaches back, the first blocks have fewer tokens and a lower score
    while (nsa.first_tap(first) < 0) ++first;
    Lists want;
    for (int h = 0; h < k.extent.head; ++h) {
      want.push_back(0);
      for (int m = first; m < first + nsa.n - 3; ++m) want.push_back(m);
      want.push_back(own - 1), want.push_back(own);
    }
    EXPECT_EQ(read(on.args()[variant_tensor(0)], t, 1), want);
  }
}

TEST_F(NsaOnGpu, every_run_gives_the_same_bits) {
  for (const char* line :
       {kSelections[0], kSelections[1], "forward bf16 b2 h4 q900 k55 d128 full : compress d=16 l=32 phi=mean",
        "backward bf16 b2 h4 q900 k55 d128 full : compress d=16 l=32 phi=conv",
        "backward bf16 b2 h4 q900 k55 d64 full : compress d=16 l=32 phi=mlp",
        "backward bf16 b2 h48/16 q300 k300 d128 full : gate act=softmax",
        "forward bf16 b2 h8/2 q500 k500 d64 causal : reads d=16 l=32 n=6 s=64 w=100"}) {
    SCOPED_TRACE(line);
    Placed on(line, 0);
    for (const Backend* b : takers(on.problem(), gpu_)) {
      SCOPED_TRACE(b->name);
      ASSERT_EQ(on.plan_for(*b, gpu_).message, "");
      const Written first = on.fresh(stream_.get());
      for (int n = 0; n < 5; ++n) ASSERT_EQ(on.fresh(stream_.get()), first) << "run " << n + 2;
    }
  }
}

// A token compressed alone, as decode does every d tokens, equals the one from the prefill.
TEST_F(NsaOnGpu, a_window_alone_is_compressed_as_among_all) {
  for (const char* phi : {"mean", "conv", "mlp"}) {
    SCOPED_TRACE(phi);
    Placed on(join("forward bf16 b1 h4 q20000 k1249 d128 full : compress d=16 l=32 phi=", phi), 0);
    run(on, "cuda_compress");
    Problem p = on.problem();
    p.len_q = 32, p.len_k = 1;
    Plan plan;
    ASSERT_EQ(plan_on(*find_backend("cuda_compress"), p, gpu_, plan).message, "");
    const Tensor out = on.args()[Role::out];
    const size_t bytes = size_t(out.extent.dim) * size_t(size_of(out.dtype));
    cuda::Memory room, scratch;
    ASSERT_EQ(room.allocate(0, bytes * size_t(out.extent.head)).message, "");
    ASSERT_EQ(scratch.allocate(0, plan.workspace_bytes).message, "");
    for (const int i : {0, 1, 700, 1248}) {
      Args a = on.args();
      a[Role::q] = pick_rows(a[Role::q], i * 16, 32);
      a[Role::out] = Tensor{room.data(), out.dtype, DeviceKind::cuda, 0, {1, 1, out.extent.head, out.extent.dim},
                            {0, 0, out.extent.dim}};
      ASSERT_EQ(plan.backend->run(plan, a, {scratch.data()}, stream_.get()).message, "");
      ASSERT_EQ(cuda::wait_all(0).message, "");
      for (int h = 0; h < out.extent.head; ++h) {
        Written want(bytes), got(bytes);
        ASSERT_EQ(cudaMemcpy(want.data(), row_address(out, 0, i, h), bytes, cudaMemcpyDeviceToHost), cudaSuccess);
        ASSERT_EQ(cudaMemcpy(got.data(), room.data() + bytes * size_t(h), bytes, cudaMemcpyDeviceToHost), cudaSuccess);
        EXPECT_EQ(got, want) << "token " << i << " of head " << h;
      }
    }
  }
}

}  // namespace
}  // namespace attune
