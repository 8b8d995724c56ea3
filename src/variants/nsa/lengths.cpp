// SPDX-License-Identifier: Apache-2.0
#include "variants/nsa/lengths.h"

namespace attune {

Status nsa_lengths(const NsaLengths& x, void* stream) {
  if (x.used.device == DeviceKind::cuda) return cuda::nsa_lengths(x, stream);
  for (int b = 0; b <= x.batch; ++b) nsa_lengths_of(x, b);
  return Status::good();
}

}  // namespace attune
