// core/masked.h on a GPU.
#pragma once
#include "core/masked.h"

namespace attune::cuda {

Status fill_masked(const MaskedRows&, int device, void* stream);

}  // namespace attune::cuda
