// SPDX-License-Identifier: Apache-2.0
// Boxes that load the rows at the end of a sequence inside a tensor. The rows behind it belong to another sequence.
#pragma once
#include "core/number.h"

namespace attune::sm90 {

// Heights of the boxes.
inline constexpr int kEndBoxes = 3;
ATTUNE_HD constexpr int end_box_rows(int box) { return box == 0 ? 32 : box == 1 ? 8 : 1; }

}  // namespace attune::sm90
