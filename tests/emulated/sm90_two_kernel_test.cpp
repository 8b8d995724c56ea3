// SPDX-License-Identifier: Apache-2.0
// The kernels of sm90/backward/two_kernel/kernel_dq.h and kernel_dkdv.h on the emulator, compared with attention in
// double at several schedules.
#include "tests/emulated/two_kernel_problem.h"

#include "attention/sm90/backward/two_kernel/kernel_dkdv.h"
#include "attention/sm90/backward/two_kernel/kernel_dq.h"

namespace attune::sm90 {

alignas(1024) char memory[1];  // the kernels' symbol for shared memory: its address is 0 (barrier.h)

namespace {

struct Config { int dim_qk, dim_v, queries = 64, keys = 64; };
template <class T, Config C>
using OfRows = DqLayout<T, C.dim_qk, C.dim_v, C.keys>;
template <class T, Config C>
using OfKeys = DkDvLayout<T, C.dim_qk, C.dim_v, C.queries>;
constexpr Config k128{192, 128, 96, 80}, k192{192, 192}, k256{256, 256};

template <class T, Config C>
void expect_right(const Asked& w, unsigned seed) {
  sm90::expect_right<OfRows<T, C>, OfKeys<T, C>>(TwoKernelProblem<T>(w, seed), dq_kernel<OfRows<T, C>>,
                                                 dkdv_kernel<OfKeys<T, C>>);
}

TEST(Sm90TwoKernel, gradients_of_192_and_values_of_128_are_right) {
  expect_right<Bf16, k128>({1, 2, 1, 150, 130, 192, 128, kFull, 2}, 1);
  expect_right<F16, k128>({2, 2, 2, 70, 200, 136, 72, kCausal}, 2);
  expect_right<Bf16, k128>({1, 1, 1, 330, 70, 192, 128, kFull}, 5);
  expect_right<F16, k128>({1, 2, 1, 200, 170, 136, 72, kCausal}, 6);
  expect_right<Bf16, k128>({1, 1, 1, 330, 300, 192, 128, kWindow}, 8);
}
TEST(Sm90TwoKernel, gradients_of_192_are_right) {
  expect_right<F16, k192>({1, 2, 1, 140, 100, 184, 192, kCausal}, 3);
  expect_right<F16, k192>({1, 1, 1, 250, 70, 184, 192, kCausal}, 9);
}
template <class T, Config C>
void expect_all_right(unsigned seed) {
  for (int n = 0; n < kMatrix; ++n) {
    const Asked w = matrix_case(n, C.dim_qk, C.dim_v, C.queries, C.keys);
    sm90::expect_right<OfRows<T, C>, OfKeys<T, C>>(TwoKernelProblem<T>(w, seed + unsigned(n)), dq_kernel<OfRows<T, C>>,
                                                   dkdv_kernel<OfKeys<T, C>>, seed + unsigned(n), 1);
  }
}
TEST(Sm90TwoKernel, every_number_of_steps_is_right_and_ends) {
  expect_all_right<Bf16, k128>(100);
  expect_all_right<F16, k192>(200);
  expect_all_right<Bf16, k256>(300);
}
TEST(Sm90TwoKernel, gradients_of_256_are_right) {
  expect_right<Bf16, k256>({1, 2, 1, 130, 150, 256, 200, kCausal}, 4);
}

}  // namespace
}  // namespace attune::sm90
