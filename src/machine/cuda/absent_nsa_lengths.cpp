// nsa_lengths.h in a build without CUDA.
#include "machine/nsa_lengths.h"

namespace attune::cuda {

Status nsa_lengths(const NsaLengths&, void*) {
  return Status::no("this build of attune has no GPU code: it was left out, or nvcc was not there");
}

}  // namespace attune::cuda
