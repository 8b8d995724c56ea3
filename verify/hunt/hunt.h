// Random cases for `attune parity --hunt`: drawn over the whole grammar, dense ones biased towards many short tiles,
// where persistent kernels fail, others towards small problems; and the shrinking of failing cases.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "verify/cases/cases.h"

namespace attune {

// What is drawn: dense problems; those with a block list; appends to a cache, rotated or not; and the variants.
enum class HuntKind : int32_t { dense, blocks, append, nsa, dilated, adaptive, ring };
inline constexpr std::string_view kHuntKinds[] = {"dense", "blocks", "append", "nsa", "dilated", "adaptive", "ring"};

// What one case may cost the reference, which computes in double and one query at a time.
struct HuntLimits {
  double work = 1.5e8;      // visible (query, key) pairs times the dims of both products
  double elements = 5.5e6;  // in all tensors
  int units = 132;          // SMs or threads: 40 % of the dense draws have more query tiles than that
  std::vector<HuntKind> kinds{};  // empty: all
};

// Case `index` of a hunt: a valid problem that some backend serves. The same seed, index, limits and `served` give the
// same case on every machine. Lengths are drawn later, and may show nothing in every draw: then the check is EMPTY.
Case hunted_case(uint64_t seed, uint64_t index, const HuntLimits&, const std::function<bool(const Problem&)>& served);

// Valid cases that are simpler in one respect, largest simplification first: candidates for shrinking.
std::vector<Case> smaller_cases(const Case&);

// Estimates of the reference's work, in the units of HuntLimits.
double hunt_work(const Problem&);
double hunt_elements(const Problem&);

}  // namespace attune
