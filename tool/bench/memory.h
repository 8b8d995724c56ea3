// What every implementation of a problem really takes: each runs once, on memory of its own, and the system says how
// much that was. The plan's workspace is held against it.
#pragma once
#include "core/device.h"
#include "tool/bench/axes.h"
#include "tool/subjects/peer.h"
#include "tool/record/record.h"

namespace attune {

// A record of every backend that takes the problem, or of `backend` alone where it is not "", and of every peer; not
// timed, and of use for its bytes alone.
Status measure_memory(const BenchRow&, const Device&, const std::string& device_word, const std::string& backend,
                      const std::vector<const attune_peer*>&, std::vector<Record>& out);

}  // namespace attune
