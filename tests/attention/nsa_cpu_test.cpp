// SPDX-License-Identifier: Apache-2.0
// What the CPU kernels of native sparse attention refuse; each refusal begins with the backend's name.
#include "machine/host.h"
#include "plan/plan.h"
#include "tests/asked.h"

namespace attune {
namespace {

std::string refusal(std::string_view backend, std::string_view line, const Device& device = this_cpu()) {
  return find_backend(backend)->supports(problem(line), device).message;
}

TEST(NsaCpu, refusals_name_the_backend_and_what_it_takes) {
  const std::string compress = "forward f32 b1 h2 q90 k21 d16 full : compress d=4 l=8 phi=mean";
  EXPECT_EQ(refusal("cpu_compress", compress), "");
  EXPECT_EQ(refusal("cpu_gate", compress), "cpu_gate: is for the variant gate");
  EXPECT_EQ(refusal("cpu_compress", "forward f32 b1 h2 q90 k90 d16 full"), "cpu_compress: is for the variant compress");
  EXPECT_EQ(refusal("cpu_compress", compress, known("h200")),
            "cpu_compress: requires a CPU, but the device is NVIDIA H200");
  EXPECT_EQ(refusal("cpu_compress", "forward f64 b1 h2 q90 k21 d16 full : compress d=4 l=8 phi=mean"),
            "cpu_compress: dtype f64 is not one of f32, f16, bf16");
  EXPECT_EQ(refusal("cpu_compress", "backward f32/f32/f32/f64 b1 h2 q90 k21 d16 full : compress d=4 l=8 phi=mean"),
            "cpu_compress: dtype f64 is not one of f32, f16, bf16");
}

}  // namespace
}  // namespace attune
