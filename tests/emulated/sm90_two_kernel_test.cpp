// SPDX-License-Identifier: Apache-2.0
// The kernels of sm90/backward/two_kernel/kernel_dq.h and kernel_dkdv.h on the emulator, compared with attention in
// double at several schedules.
#include "tests/emulated/two_kernel_problem.h"

#include "attention/sm90/backward/two_kernel/kernel_dkdv.h"
#include "attention/sm90/backward/two_kernel/kernel_dq.h"

namespace attune::sm90 {

alignas(1024) char memory[1];  // the kernels' symbol for shared memory: its address is 0 (barrier.h)

namespace {

template <class T, int DimQk, int DimV, int Queries = 64, int Keys = 64>
void expect_right(const Asked& w, unsigned seed) {
  using OfRows = DqLayout<T, DimQk, DimV, Keys>;
  using OfKeys = DkDvLayout<T, DimQk, DimV, Queries>;
  sm90::expect_right<OfRows, OfKeys>(TwoKernelProblem<T>(w, seed), dq_kernel<OfRows>, dkdv_kernel<OfKeys>);
}

TEST(Sm90TwoKernel, gradients_of_192_and_values_of_128_are_right) {
  expect_right<Bf16, 192, 128, 96, 80>({1, 2, 1, 150, 130, 192, 128, kFull, 2}, 1);
  expect_right<F16, 192, 128, 96, 80>({2, 2, 2, 70, 200, 136, 72, kCausal}, 2);
  expect_right<Bf16, 192, 128, 96, 80>({1, 1, 1, 330, 70, 192, 128, kFull}, 5);
  expect_right<F16, 192, 128, 96, 80>({1, 2, 1, 200, 170, 136, 72, kCausal}, 6);
  expect_right<Bf16, 192, 128, 96, 80>({1, 1, 1, 330, 300, 192, 128, kWindow}, 8);
}
TEST(Sm90TwoKernel, gradients_of_192_are_right) {
  expect_right<F16, 192, 192>({1, 2, 1, 140, 100, 184, 192, kCausal}, 3);
  expect_right<F16, 192, 192>({1, 1, 1, 250, 70, 184, 192, kCausal}, 9);
}
template <class T, int DimQk, int DimV, int Queries = 64, int Keys = 64>
void expect_all_right(unsigned seed) {
  using OfRows = DqLayout<T, DimQk, DimV, Keys>;
  using OfKeys = DkDvLayout<T, DimQk, DimV, Queries>;
  for (int n = 0; n < kMatrix; ++n) {
    const Asked w = matrix_case(n, DimQk, DimV, Queries, Keys);
    sm90::expect_right<OfRows, OfKeys>(TwoKernelProblem<T>(w, seed + unsigned(n)), dq_kernel<OfRows>,
                                       dkdv_kernel<OfKeys>, seed + unsigned(n), 1);
  }
}
TEST(Sm90TwoKernel, every_number_of_steps_is_right_and_ends) {
  expect_all_right<Bf16, 192, 128, 96, 80>(100);
  expect_all_right<F16, 192, 192>(200);
  expect_all_right<Bf16, 256, 256>(300);
}
TEST(Sm90TwoKernel, gradients_of_256_are_right) {
  expect_right<Bf16, 256, 256>({1, 2, 1, 130, 150, 256, 200, kCausal}, 4);
}

}  // namespace
}  // namespace attune::sm90
