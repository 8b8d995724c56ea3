// SPDX-License-Identifier: Apache-2.0
// Measures how much memory each implementation of a problem really takes. Each runs once, and the operating system or
// the driver reports the peak, to be compared with the plan's workspace.
#pragma once
#include "core/device.h"
#include "tool/bench/axes.h"
#include "tool/subjects/peer.h"
#include "tool/record/record.h"

namespace attune {

// One record for each backend that supports the problem (only `backend` if it is not "") and for each peer. Only the
// byte counts of these records are meaningful; the times are not.
Status measure_memory(const BenchRow&, const Device&, const std::string& device_word, const std::string& backend,
                      const std::vector<const attune_peer*>&, std::vector<Record>& out);

}  // namespace attune
