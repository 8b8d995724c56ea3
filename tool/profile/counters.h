// What ncu, of Nsight Compute, measured of each kernel of a run: its CSV, read by us. ncu runs a kernel many times
// over, so its times are not those of `bench`, and no record is made of them.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace attune {

struct KernelCounters {
  std::string kernel{};            // as short_name() has it
  std::string grid{}, block{};     // "132 x 1 x 1"
  double us = 0;
  int registers = 0;               // a thread
  double shared_bytes = 0;         // a block: static, and what the launch asked for
  // Percent of what the GPU can do; below 0: ncu did not say.
  double sm = -1, tensor = -1, dram = -1, l2 = -1;
  double occupancy = -1, most_occupancy = -1;  // warps that were there, and that the launch allows, of all
  // Warps that wait for each reason, on average, at every instruction issued; the largest first, "selected" left out.
  std::vector<std::pair<std::string, double>> waits{};
};

// What ncu is asked for, the words of the program behind it.
std::vector<std::string> ncu_command(const std::vector<std::string>& program);
// What it printed, and the program before it.
Status read_ncu(std::string_view text, std::vector<KernelCounters>& out);

}  // namespace attune
