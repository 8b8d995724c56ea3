// A run on a GPU as the comparison sees it: inputs, poisoned outputs and workspace go there in one piece of memory,
// come back in one, and are judged like those of a CPU. No CUDA header: machine/cuda/runtime.h refuses where there is
// no GPU.
#pragma once
#include "plan/backend.h"
#include "verify/world.h"

namespace attune {

// Runs the plan on copies of everything in `got.args` (inputs of the world, outputs of `got`) and leaves the outputs in
// `got`. Loads of a GPU are 16 bytes wide, so tensors whose rows begin elsewhere are laid out anew there. A refusal: of
// the backend, of CUDA, or a sentence on what was written that should not be. Where the backend says that it is not for
// these arguments, `unfit` has its sentence and nothing is run.
Status run_on_gpu(const Plan&, const World&, Outputs& got, std::string& unfit);

}  // namespace attune
