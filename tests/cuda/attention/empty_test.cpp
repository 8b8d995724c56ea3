// SPDX-License-Identifier: Apache-2.0
// Tensors without rows, which a call may pass whatever its plan assumed. Without keys, out is 0, lse is -inf and dq is
// 0; without queries, dk and dv are 0.
#include <cmath>

#include "tests/cuda/gpu.h"

namespace attune {
namespace {

class Empty : public OnGpu {
 protected:
  // Calls f(backend, case) for each of our fused kernels that accepts the line with these tensors empty.
  template <class F>
  void each(const std::string& line, std::initializer_list<Role> empty, F f) {
    SCOPED_TRACE(line);
    int ran = 0;
    for (const Backend* b : takers(case_of(line).problem, gpu_)) {
      if (!b->name.starts_with("sm")) continue;
      SCOPED_TRACE(b->name);
      Placed on(line, 0);
      ASSERT_EQ(on.plan_for(*b, gpu_).message, "");
      for (const Role r : empty)
        if (on.args().given(r)) on.args()[r].extent.seq = 0;
      ASSERT_EQ(check(on.problem(), on.args()).message, "");
      if (!on.fits()) continue;
      ASSERT_EQ(on.run(stream_.get()).message, "");
      ASSERT_EQ(cuda::wait(stream_.get()).message, "");
      ++ran, f(on);
    }
    EXPECT_GT(ran, 0);
  }
  // The number of elements that differ from `wanted`, in a tensor that has rows.
  static int others(Placed& on, Role r, double wanted) {
    Tensor t = on.args()[r];
    const Extents& e = t.extent;
    std::vector<unsigned char> here(size_t((e.batch - 1) * t.stride.batch + (e.seq - 1) * t.stride.seq +
                                           (e.head - 1) * t.stride.head + e.dim) *
                                    size_t(size_of(t.dtype)));
    EXPECT_EQ(cudaMemcpy(here.data(), t.data, here.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    t.data = here.data(), t.device = DeviceKind::cpu;
    int count = 0;
    for (int b = 0; b < e.batch; ++b)
      for (int s = 0; s < e.seq; ++s)
        for (int h = 0; h < e.head; ++h)
          for (int d = 0; d < e.dim; ++d) count += load(t, b, s, h, d) != wanted;
    return count;
  }
};

// Enough tiles for the Hopper kernels, which leave smaller problems to the next backend in the chain.
constexpr const char* kRests[] = {" b35 h4/2 q130 k64 d64 causal",   " b35 h4 q20 k64 d64 full",
                                  " b35 h4/2 q70 k64 d96 causal",    " b35 h4/2 q70 k64 d128 full",
                                  " b35 h4 q70 k64 d128 causal",     " b35 h4/2 q70 k64 d192/128 causal",
                                  " b35 h4 q70 k64 d256 window9,0",  " b35 h4/2 q70 k64 d128 causal softcap",
                                  " b35 h4/2 q70 k64 d256 full alibi"};

TEST_F(Empty, without_keys_out_is_0) {
  for (const char* rest : kRests)
    each(join("forward bf16", rest), {Role::k, Role::v}, [](Placed& on) {
      EXPECT_EQ(others(on, Role::out, 0), 0);
      EXPECT_EQ(others(on, Role::lse, -INFINITY), 0);
    });
}
TEST_F(Empty, without_keys_gradients_of_queries_are_0) {
  for (const char* rest : kRests)
    for (const char* order : {"", " repro=run"})
      each(join("backward bf16", rest, order), {Role::k, Role::v, Role::dk, Role::dv},
           [](Placed& on) { EXPECT_EQ(others(on, Role::dq, 0), 0); });
}
TEST_F(Empty, without_queries_gradients_of_keys_are_0) {
  for (const char* rest : kRests)
    for (const char* order : {"", " repro=run"})
      each(join("backward bf16", rest, order), {Role::q, Role::out, Role::lse, Role::d_out, Role::d_lse, Role::dq},
           [](Placed& on) {
             EXPECT_EQ(others(on, Role::dk, 0), 0);
             EXPECT_EQ(others(on, Role::dv, 0), 0);
           });
}

}  // namespace
}  // namespace attune
