// SPDX-License-Identifier: Apache-2.0
// The measured ceilings of this machine: on a CPU the rate of fused multiply-adds in registers, on a GPU that of large
// cuBLASLt products, and on both the rate of copying memory. The share of a ceiling is the only number of a kernel that
// means the same on every machine, and a result above a ceiling is wrong. A CPU has one loop per instruction set, in
// assembly, because a compiled loop would measure the compiler.
#pragma once
#include <string>

#include "core/device.h"

namespace attune {

struct Ceiling {
  std::string instruction{};  // "fmla", "vfmadd231ps zmm", "cuBLASLt bf16", ...; empty if there is none
  double gflops = 0;          // a multiply-add counts as two
};

struct Ceilings {
  int threads = 1;
  Ceiling f32{};         // on a GPU through tf32
  Ceiling f16{};         // only on a GPU: no supported CPU multiplies f16 faster than f32
  Ceiling bf16{};        // inputs bf16, sums f32; the best available instruction
  double copy_gbs = 0;   // 10^9 bytes per second, counting bytes read and written
  std::string missed{};  // why a rate is unknown

  // The ceiling of a kernel whose operands have this dtype. Dtypes without their own instruction are widened to f32.
  const Ceiling& of(DType) const;
};

// Takes about `seconds` for each of the three rates.
Ceilings measure_ceilings(const Device&, int threads, double seconds = 0.15);

class DeviceTimer;
// Runs on the timer's stream; takes about 100 ms and 1.5 GB.
Ceilings measure_gpu_ceilings(const DeviceTimer&);

}  // namespace attune
