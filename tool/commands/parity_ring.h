// SPDX-License-Identifier: Apache-2.0
// `attune parity --ring`: compares attention over ranks with the reference of the whole. Ranks are threads of this
// process; under mpirun each process is a rank.
#pragma once
#include <string>
#include <vector>

#include "tool/commands/commands.h"

namespace attune {

struct RingAsked {
  std::string device = "cpu", text;
  std::vector<int> ranks{1, 2, 4, 8};
  double seconds = 60;
  bool quick = false;
};

void ring_parity(const RingAsked&, Context&);

}  // namespace attune
