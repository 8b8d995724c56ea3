// SPDX-License-Identifier: Apache-2.0
// The loops of every machine that this CPU supports, at each of its feature levels and all below.
#pragma once
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "machine/cpu/kernels.h"
#include "machine/host.h"

namespace attune {

inline std::vector<const CpuKernels*> machines() {
  std::vector<const CpuKernels*> all;
  std::set<const CpuKernels*> seen;
  for (int level = -1; level < int(Feature::blas); ++level) {
    Device cpu;
    if (!device_named(level < 0 ? "cpu:scalar" : "cpu:" + name(Feature(level)), cpu).ok()) continue;
    for (const DType t : {DType::f32, DType::f16, DType::bf16})
      for (const CpuKernels* m = best_kernels(t, cpu.features); m; m = smaller_panels(*m))
        if (seen.insert(m).second) all.push_back(m);
  }
  return all;
}

inline std::string label(const testing::TestParamInfo<const CpuKernels*>& info) {
  constexpr const char* kType[] = {"none", "f64", "f32", "f16", "bf16"};
  return join(info.param->isa, "_", kType[int(info.param->dtype)], "_rows", info.param->rows);
}

}  // namespace attune
