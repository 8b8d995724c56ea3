// masked.h in a build without CUDA.
#include "machine/cuda/masked.h"

namespace attune::cuda {

namespace {

Status none() {
  return Status::no("masked_dense: this build of attune has no GPU code: it was left out, or nvcc was not there");
}

}  // namespace

Status fill_masked(const MaskedRows&, int, void*) { return none(); }
Status sum_masked(const MaskedRows&, int, void*) { return none(); }

}  // namespace attune::cuda
