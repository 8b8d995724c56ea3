// Where a number comes from: gathered once, written into every record.
#pragma once
#include "tool/record/record.h"

namespace attune {

std::string new_run();     // "20260131T120000Z-4711": a name for one call of the command
Provenance provenance();   // all but `peers`
std::string utc_now();     // "2026-01-31T12:00:00Z"

}  // namespace attune
