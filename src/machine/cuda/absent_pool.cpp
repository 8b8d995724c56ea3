// pool.h in a build without CUDA.
#include "machine/cuda/pool.h"

namespace attune::cuda {
namespace {

Status none() { return Status::no("this build of attune has no GPU code: it was left out, or nvcc was not there"); }

}  // namespace

Status allocate(int, size_t, void*, void*& out) { return out = nullptr, none(); }
Status free(int, void*, void*) { return none(); }
Status trim(int, size_t) { return none(); }
Status reset_marks(int) { return none(); }
Status pool_state(int, PoolState&) { return none(); }
Status Borrowed::take(int, size_t, void*) { return none(); }
Status Borrowed::give_back() { return Status::good(); }

}  // namespace attune::cuda
