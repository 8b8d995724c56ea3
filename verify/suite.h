// SPDX-License-Identifier: Apache-2.0
// Many cases on many backends and devices, for the conformance test and `attune parity`.
#pragma once
#include <functional>
#include <span>

#include "verify/compare.h"

namespace attune {

// A device and its name on a command line.
struct Place {
  std::string word{};  // "cpu:neon"
  Device device{};
  int threads = 0;     // if not the machine's
};
// Every distinct level of this CPU: "cpu", then those without its best instructions.
std::vector<Place> cpu_places();
// "cpu" with a thread count that divides no rows, heads or cores: other splits, other tasks.
Place busy_cpu();

struct Attempt {
  size_t case_index = 0;
  const Backend* backend = nullptr;
  size_t place_index = 0;
  Outcome outcome{};
};

struct Suite {
  std::vector<Case> cases{};
  std::vector<const Backend*> backends{};
  std::vector<Place> places{};
  // Called after each case, from one thread at a time.
  std::function<void(size_t done, size_t failed)> progress{};
  int threads = 0;  // for the golden results; 0: all of the CPU's. Backends run one at a time

  // Runs every backend on every place and case that it and the reference support, in case order.
  std::vector<Attempt> run() const;
};

// The command that repeats a run.
std::string command(const Suite&, const Attempt&);

}  // namespace attune
