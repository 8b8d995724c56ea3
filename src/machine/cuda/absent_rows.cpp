// rows.h on a GPU, in a build without CUDA.
#include "machine/rows.h"

namespace attune::cuda {
namespace {

Status none() { return Status::no("this build of attune has no GPU code: it was left out, or nvcc was not there"); }

}  // namespace

Status normalize(const Normalize&, void*) { return none(); }
Status normalize_backward(const NormalizeBackward&, void*) { return none(); }
Status column_sum(const ColumnSum&, void*) { return none(); }
Status rotate(const Rotate&, void*) { return none(); }
Status activate(const Activate&, void*) { return none(); }
Status activate_backward(const Activate&, void*) { return none(); }
Status drop(const Drop&, void*) { return none(); }
Status group_mean(const GroupMean&, void*) { return none(); }

}  // namespace attune::cuda
