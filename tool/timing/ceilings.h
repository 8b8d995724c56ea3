// What this machine can do at most, measured: of a CPU the rate of fused multiply-adds in registers, of a GPU that of
// cuBLASLt's large products, and of both that of copying memory. The share of a ceiling is the only number of a kernel
// that means the same on every machine, and a result above one is wrong. On a CPU one loop an instruction set, in
// assembly or intrinsics, since a compiler's own loop measures the compiler.
#pragma once
#include <string>

#include "core/device.h"

namespace attune {

struct Ceiling {
  std::string instruction{};  // "fmla", "vfmadd231ps zmm", "cuBLASLt bf16", ...; empty: there is none
  double gflops = 0;          // a multiply-add is two
};

struct Ceilings {
  int threads = 1;
  Ceiling f32{};      // of a GPU: through tf32
  Ceiling f16{};      // of a GPU only: no CPU here multiplies f16 faster than f32
  Ceiling bf16{};     // inputs bf16, sums f32; the best instruction there is
  double copy_gbs = 0;  // 10^9 bytes a second, read and written both counted
  std::string missed{};  // why a rate is not known

  // The one that bounds a kernel whose operands have this type: those without an instruction of their own are
  // widened to f32.
  const Ceiling& of(DType) const;
};

// Takes about `seconds` for each of the three.
Ceilings measure_ceilings(const Device&, int threads, double seconds = 0.15);

class DeviceTimer;
// On its stream; some 100 ms and 1.5 GB.
Ceilings measure_gpu_ceilings(const DeviceTimer&);

}  // namespace attune
