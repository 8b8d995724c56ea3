// For times of steps only: ATTUNE_WIDE_STEPS says which.
#include "attention/backward.sm90.wide.kernels.h"

#include <cstdlib>

namespace attune::sm90 {
namespace {

int steps_asked_for() {
  const char* asked = std::getenv("ATTUNE_WIDE_STEPS");
  return asked ? std::atoi(asked) : 0;
}

}  // namespace

WideKernel& wide_kernel_192() {
  static constinit WideKernel kernels[] = {wide_kernel_row<192, 192>(), wide_kernel_row<192, 192, 80>()};
  return kernels[steps_asked_for() % 2];
}
WideKernel& wide_kernel_192_128() {
  static constinit WideKernel kernels[] = {
      wide_kernel_row<192, 128>(),         wide_kernel_row<192, 128, 80>(),     wide_kernel_row<192, 128, 96>(),
      wide_kernel_row<192, 128, 64, 80>(), wide_kernel_row<192, 128, 80, 80>(), wide_kernel_row<192, 128, 96, 80>()};
  return kernels[steps_asked_for() % 6];
}

}  // namespace attune::sm90
