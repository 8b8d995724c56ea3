// Which of the usual mistakes explains a wrong forward of native sparse attention; diagnose() asks it.
#pragma once
#include "verify/diagnose/diagnose.h"

namespace attune {

// Of what is compressed by the mean, or before the call. The blocks that were chosen are taken as they were written.
Mistake diagnose_nsa(const Problem&, const Args&);

}  // namespace attune
