// Random cases for `attune parity --hunt`: drawn over the whole grammar, biased to many short tiles, where persistent
// kernels go wrong; and how a case that fails is made smaller.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "verify/cases.h"

namespace attune {

// What one case may cost the reference, which computes in double and one query at a time.
struct HuntLimits {
  double work = 1.5e8;      // pairs of a query and a key that it sees, times the dims of both products
  double elements = 5.5e6;  // of all tensors
  int units = 132;          // multiprocessors, or threads: a third of the cases have more query tiles than that
};

// Case `index` of a hunt. The same seed, index and limits give the same case on every machine. It is a valid problem
// whose check compares something; `served` says whether some backend takes it, and draws go on until one does.
Case hunted_case(uint64_t seed, uint64_t index, const HuntLimits&, const std::function<bool(const Problem&)>& served);

// Cases with one thing less, the boldest first: candidates for the smallest case that still fails. Each is valid.
std::vector<Case> smaller_cases(const Case&);

// About what the reference has to do for it, in the units of HuntLimits.
double hunt_work(const Problem&);
double hunt_elements(const Problem&);

}  // namespace attune
