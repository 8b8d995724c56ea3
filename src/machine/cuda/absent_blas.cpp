// blas.h in a build without CUDA.
#include "machine/cuda/blas.h"

namespace attune::cuda {

Status blas_found() {
  return Status::no("this build of attune has no GPU code: it was left out, or nvcc was not there");
}
Status multiply(const Product&, const Factors&, void*, void*) { return blas_found(); }

}  // namespace attune::cuda
