// SPDX-License-Identifier: Apache-2.0
// Where a number comes from: collected once, written into every record.
#pragma once
#include "tool/record/record.h"

namespace attune {

std::string new_run();     // "20260131T120000Z-4711": the id of one run of the command
Provenance provenance();   // everything but `peers` and the GPU
std::string utc_now();     // "2026-01-31T12:00:00Z"

}  // namespace attune
