// SPDX-License-Identifier: Apache-2.0
// Reads what a GPU binary states about its kernels. A cubin is an ELF file whose .nv.info sections hold registers,
// threads and stack. No existing tool prints all of it for a library of hundreds of kernels in less than minutes.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace attune {

struct KernelUsage {
  std::string symbol{};      // mangled name
  int arch = 0;              // 90
  int registers = 0;         // per thread
  int stack_bytes = 0;       // per thread: register spills and indexed arrays
  int shared_bytes = 0;      // per block, static; dynamic shared memory is not in the binary
  int threads = 0;           // most per block; 0: not stated
  int code_bytes = 0;
};
Status read_cubin(std::string_view bytes, std::vector<KernelUsage>& out);  // appends

// "sm90::backward_kernel<BackwardLayout<Bf16, 128, 64, false>>": demangled, without common prefixes and parameters.
std::string short_name(const std::string& symbol);

// CTAs and warps that an SM can hold at once, by registers, threads and shared memory. An upper bound, because dynamic
// shared memory may be unknown.
struct Occupancy {
  int blocks = 0, warps = 0, most_warps = 0;  // blocks is 0 if the threads or the architecture are unknown
  std::string bound{};                        // "registers", "threads", "shared memory", "blocks"
};
Occupancy occupancy(const KernelUsage&, int dynamic_shared_bytes = 0);

}  // namespace attune
