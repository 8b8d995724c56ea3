// ops.h in a build without CUDA.
#include "machine/ops.h"

namespace attune::cuda {
namespace {

Status none() { return Status::no("this build of attune has no GPU code: it was left out, or nvcc was not there"); }

}  // namespace

Status combine(const detail::Combine&, void*) { return none(); }
Status merge(const detail::Merge&, void*) { return none(); }

}  // namespace attune::cuda
