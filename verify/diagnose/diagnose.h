// SPDX-License-Identifier: Apache-2.0
// Finds the common mistake that explains a wrong result. Each mistake is a way to misread the problem or its tensors.
// Rows of the output are computed under each reading, by the definition and in double. The reading that reproduces the
// result is the diagnosis.
#pragma once
#include <string>

#include "core/args.h"

namespace attune {

struct Mistake {
  std::string name{};      // "swapped-layout"; empty: none of the common ones
  std::string sentence{};  // what was done instead
};

// For a forward with a wrong `out` or `lse`, or a backward with a wrong `dq`, `dk` or `dv`; CPU tensors. Supports block
// lists, adaptive ones (forward), dilated attention that is one softmax, and Native Sparse Attention (forward, its
// `out`). Empty if the result is right.
Mistake diagnose(const Problem&, const Args&);

// The names that diagnose() may return, comma-separated: for the help text and the documentation.
std::string mistake_names();

}  // namespace attune
