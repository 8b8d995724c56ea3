// `attune parity --ring`: attention over ranks against the golden reference of the whole. Ranks are threads of this
// process; where MPI started several processes, each of them is one.
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
