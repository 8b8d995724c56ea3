// scorer.h in a build without CUDA.
#include "machine/cuda/scorer.h"

namespace attune::cuda {
namespace {

Status none() {
  return Status::no("adaptive: this build of attune has no GPU code: it was left out, or nvcc was not there");
}

}  // namespace

Status score_blocks(const Scorer&, int, void*) { return none(); }
Status score_gradients(const Scorer&, int, void*) { return none(); }

}  // namespace attune::cuda
