// SPDX-License-Identifier: Apache-2.0
// The lse of a backward, in the layout that cuDNN reads fastest.
#pragma once
#include "plan/backend.h"

namespace attune::cudnn {

// Packs [batch, query, head] with any strides to [batch, head, query].
Status pack_lse(std::string_view who, const Plan&, const Tensor& lse, float* to, Stream);

}  // namespace attune::cudnn
