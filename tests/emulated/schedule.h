// SPDX-License-Identifier: Apache-2.0
// The order in which warps advance and copies land. A schedule is determined by its numbers alone.
#pragma once
#include <random>
#include <string>
#include <vector>

namespace attune::emulated {

// random: all at about the same pace. starved: one warp, or one lane, runs only if nothing else can. greedy: one warp
// runs whenever it can. ranked: the highest-ranked warp that can run does, and drops to the last rank at random
// barriers.
enum class Pace { random, starved, starved_lane, greedy, ranked };
// random: after a delay. at_once: before anything else runs. last: when nothing else can run, in order; reverse:
// likewise, youngest first.
enum class Landing { random, at_once, last, reverse };

struct Schedule {
  unsigned seed = 1;
  Pace pace = Pace::random;
  Landing landing = Landing::random;
  int victim = -1;  // warp of each CTA; -1: chosen by the seed

  // The n-th schedule; the sequence covers every pace with every landing before it repeats.
  static Schedule number(unsigned n) {
    return {n + 1, Pace(n % 5), Landing(n % 4)};
  }
  std::string name() const {
    const char* const paces[] = {"random", "starved", "starved_lane", "greedy", "ranked"};
    const char* const landings[] = {"random", "at_once", "last", "reverse"};
    return "seed " + std::to_string(seed) + " " + paces[int(pace)] + (victim < 0 ? "" : std::to_string(victim)) +
           ", copies " + landings[int(landing)];
  }
};

}  // namespace attune::emulated
