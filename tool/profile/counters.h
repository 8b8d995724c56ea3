// SPDX-License-Identifier: Apache-2.0
// Reads the CSV in which ncu of Nsight Compute reports each kernel of a run. ncu replays a kernel many times, so its
// times are not comparable with those of `bench`, and no record is made of them.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace attune {

struct KernelCounters {
  std::string kernel{};            // as short_name() returns it
  std::string grid{}, block{};     // "132 x 1 x 1"
  double us = 0;
  int registers = 0;               // per thread
  double shared_bytes = 0;         // per block, static and dynamic
  // Percent of the GPU's peak; below 0 if ncu did not report it.
  double sm = -1, tensor = -1, dram = -1, l2 = -1;
  double occupancy = -1, most_occupancy = -1;  // percent of all warps: achieved, and allowed by the launch
  // Average number of warps stalled for each reason per issued instruction; largest first, without "selected".
  std::vector<std::pair<std::string, double>> waits{};
};

// The command line of ncu, followed by that of the program.
std::vector<std::string> ncu_command(const std::vector<std::string>& program);
// Parses the output of ncu, which follows that of the program.
Status read_ncu(std::string_view text, std::vector<KernelCounters>& out);

}  // namespace attune
