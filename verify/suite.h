// Many cases on many backends and devices: what the conformance test and `attune parity` both do.
#pragma once
#include <functional>
#include <span>

#include "verify/compare.h"

namespace attune {

// A device and the words that name it on a command line.
struct Place {
  std::string word{};  // "cpu:neon"
  Device device{};
  int threads = 0;     // where they are not the machine's
};
// Every level of this CPU that differs from the others: "cpu", then what is left without its best instructions.
std::vector<Place> cpu_places();
// "cpu" with more threads than rows, heads or cores divide by: other splits, other tasks.
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
  int threads = 0;  // for the golden results; 0: as many as the CPU has. Backends run one at a time.

  // Every backend on every place and case that it supports and the reference knows; in the order of the cases.
  std::vector<Attempt> run() const;
};

// The command that repeats a run.
std::string command(const Suite&, const Attempt&);

}  // namespace attune
