// The lse of a backward, laid out as cuDNN reads it fastest.
#pragma once
#include "plan/backend.h"

namespace attune::cudnn {

// [batch, query, head] with any strides to [batch, head, query] packed. On the current GPU.
Status pack_lse(std::string_view who, const Plan&, const Tensor& lse, float* to, Stream);

}  // namespace attune::cudnn
