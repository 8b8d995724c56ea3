// What a GPU binary says of its kernels: a cubin is an ELF file whose .nv.info sections hold registers, threads and
// stack. Read by us, since no tool prints all of it for a library of hundreds of kernels in less than minutes.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace attune {

struct KernelUsage {
  std::string symbol{};      // as the compiler wrote it
  int arch = 0;              // 90
  int registers = 0;         // a thread
  int stack_bytes = 0;       // a thread: spills, and arrays that are indexed
  int shared_bytes = 0;      // a block, static; what a launch adds is not in the binary
  int threads = 0;           // a block at most; 0: not said
  int code_bytes = 0;
};
Status read_cubin(std::string_view bytes, std::vector<KernelUsage>& out);  // appends

// "sm90::backward_kernel<BackwardLayout<Bf16, 128, 64, false>>": demangled, without what every name has.
std::string short_name(const std::string& symbol);

// Blocks and warps that a multiprocessor holds at once, by registers, threads and static shared memory: an upper bound.
struct Occupancy {
  int blocks = 0, warps = 0, most_warps = 0;  // blocks 0: threads or the machine are not known
  std::string bound{};                        // "registers", "threads", "shared memory", "blocks"
};
Occupancy occupancy(const KernelUsage&, int dynamic_shared_bytes = 0);

}  // namespace attune
