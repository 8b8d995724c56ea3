// SPDX-License-Identifier: Apache-2.0
// The common mistake that explains a wrong forward of Native Sparse Attention; called by diagnose().
#pragma once
#include "verify/diagnose/diagnose.h"

namespace attune {

// Requires compression by the mean, or before the call. Takes the selected blocks as written.
Mistake diagnose_nsa(const Problem&, const Args&);

}  // namespace attune
