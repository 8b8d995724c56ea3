// What this CPU can do at most, measured: the rate of fused multiply-adds in registers, and of copying memory. The
// share of a ceiling is the only number of a kernel that means the same on every machine, and a result above one is
// wrong. One loop an instruction set, in assembly or intrinsics, since a compiler's own loop measures the compiler.
#pragma once
#include <string>

#include "core/device.h"

namespace attune {

struct Ceiling {
  std::string instruction{};  // "fmla", "bfmmla", "vfmadd231ps zmm", ...; empty: this CPU has none
  double gflops = 0;          // a multiply-add is two
};

struct Ceilings {
  int threads = 1;
  Ceiling f32{};
  Ceiling bf16{};     // inputs bf16, sums f32; the best instruction there is
  double copy_gbs = 0;  // 10^9 bytes a second, read and written both counted

  // The one that bounds a kernel whose operands have this type: those without an instruction of their own are
  // widened to f32.
  const Ceiling& of(DType) const;
};

// Takes about `seconds` for each of the three.
Ceilings measure_ceilings(const Device&, int threads, double seconds = 0.15);

}  // namespace attune
