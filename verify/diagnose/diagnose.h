// Which of the usual mistakes explains a wrong result. Each of them is a way to read the problem or its tensors; rows
// of the output are computed so, by the definition and in double, and the reading that gives what is there is the
// answer.
#pragma once
#include <string>

#include "core/args.h"

namespace attune {

struct Mistake {
  std::string name{};      // "swapped-layout"; empty: none of the usual ones
  std::string sentence{};  // what was done instead
};

// Of a forward whose `out` or `lse` is wrong, or of a backward whose `dq` is; CPU tensors. With lists of blocks,
// adaptive ones (forward), dilated attention that is one softmax, and native sparse attention (forward, its `out`).
// Nothing where the result is right.
Mistake diagnose(const Problem&, const Args&);

// The names that diagnose() has, with commas: for the help and the documents.
std::string mistake_names();

}  // namespace attune
