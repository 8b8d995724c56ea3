// SPDX-License-Identifier: Apache-2.0
// A GPU run for the comparison: inputs, poisoned outputs and workspace are copied there and back as one block of
// memory, then judged like those of a CPU. Uses no CUDA header: machine/cuda/runtime.h refuses if there is no GPU.
#pragma once
#include <functional>

#include "plan/backend.h"
#include "verify/world.h"

namespace attune {

// Runs the plan on copies of everything in `got.args` (inputs of the world, outputs of `got`) and leaves the outputs in
// `got`. GPU loads are 16 bytes wide, so tensors with unaligned rows get a new layout there. Refuses if the backend or
// CUDA refuses, or if memory was written that should not be. If the backend does not fit these arguments, `unfit` holds
// its sentence and nothing is run.
Status run_on_gpu(const Plan&, const World&, Outputs& got, std::string& unfit);

// The same for any function that enqueues its work on `stream`, such as a peer. `who` begins its errors.
struct GpuCall {
  std::string who{};
  const Problem* problem = nullptr;
  int index = 0;               // of the GPU
  size_t workspace_bytes = 0;
  std::function<Status(const Args&, Workspace, void* stream)> run;
};
Status run_on_gpu(const GpuCall&, const World&, Outputs& got);

}  // namespace attune
