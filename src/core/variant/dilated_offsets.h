// SPDX-License-Identifier: Apache-2.0
// The offsets of heads in the branches of mode=longnet, "dilated offsets=contiguous rates=1,2 segments=2048,4096". The
// paper asks for different offsets of different heads and leaves open which. The reference reads the word itself.
#pragma once
#include "core/problem.h"

namespace attune {

enum class DilatedOffsets : int32_t {
  cyclic,      // o = head mod r
  contiguous,  // o = head / ceil(heads / r), rounded down, as in torchscale: neighbours share an offset
};

DilatedOffsets dilated_offsets(const Problem&);  // requires a valid problem

}  // namespace attune
