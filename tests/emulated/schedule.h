// In which order warps move and copies land. A schedule follows from its numbers alone.
#pragma once
#include <random>
#include <string>
#include <vector>

namespace attune::emulated {

// random: all at about the same pace. starved: one warp, or one lane, moves only when nobody else can. greedy: one warp
// moves whenever it can. ranked: the first in rank that can move does, and at random barriers falls to the last rank.
enum class Pace { random, starved, starved_lane, greedy, ranked };
// random: some time later. at_once: before anything else moves. last: when nothing else can move, in order; reverse:
// the youngest first.
enum class Landing { random, at_once, last, reverse };

struct Schedule {
  unsigned seed = 1;
  Pace pace = Pace::random;
  Landing landing = Landing::random;
  int victim = -1;  // a warp of each block; -1: the seed's choice

  // The n-th of a row that has every pace with every landing before one comes again.
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
