// blocks.h in a build without CUDA.
#include "machine/cuda/blocks.h"

namespace attune::cuda {

Status build_blocks(const BlockBuild&, int, void*) {
  return Status::no("blocks: this build of attune has no GPU code: it was left out, or nvcc was not there");
}

}  // namespace attune::cuda
