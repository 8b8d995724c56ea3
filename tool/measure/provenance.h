// Where a number comes from: gathered once, written into every record.
#pragma once
#include "tool/measure/record.h"

namespace attune {

Provenance provenance();   // all but `peers`
std::string utc_now();     // "2026-01-31T12:00:00Z"

}  // namespace attune
