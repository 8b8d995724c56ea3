// SPDX-License-Identifier: Apache-2.0
// The common mistake that explains a wrong backward; called by diagnose().
#pragma once
#include "verify/diagnose/reading.h"

namespace attune {

// By dq first, whose rows the mistakes of a forward affect as they affect those of out; then by dk and dv.
Mistake diagnose_gradient(const Problem&, const Args&, const std::vector<Reader>&, const std::vector<Reading>&,
                          double close);

}  // namespace attune
