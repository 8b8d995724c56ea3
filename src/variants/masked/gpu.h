// SPDX-License-Identifier: Apache-2.0
// core/variant/masked.h on a GPU.
#pragma once
#include "core/variant/masked.h"

namespace attune::cuda {

Status fill_masked(const MaskedRows&, int device, void* stream);
Status sum_masked(const MaskedRows&, int device, void* stream);  // the gradient of a block_bias

}  // namespace attune::cuda
