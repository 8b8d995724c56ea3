// `attune parity --hunt`: runs random problems, each launch under a watchdog. A failing problem is shrunk and printed
// with its seed.
#pragma once
#include <string>
#include <vector>

#include "tool/commands/commands.h"

namespace attune {

struct HuntAsked {
  std::string device = "cpu", backend;
  int cases = 0;
  int seed = -1;            // -1: a fresh seed
  int threads = 0;
  double launch_seconds = 20, max_seconds = 0;
  std::vector<std::string> kinds{};  // words of kHuntKinds; empty: all
};

std::vector<std::string> hunt_kinds();
void hunt_parity(const HuntAsked&, Context&);

}  // namespace attune
