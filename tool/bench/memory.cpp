// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/memory.h"

#include <cmath>

#include "tool/subjects/ring_run.h"
#include "tool/bench/row.h"

namespace attune {

Status measure_memory(const BenchRow& row, const Device& device, const std::string& device_word,
                      const std::string& backend, const std::vector<const attune_peer*>& peers,
                      std::vector<Record>& out) {
  Bench b{.backends = {backend.empty() ? "all" : backend}, .peers = peers, .device = device,
          .device_word = device_word, .check = false};
  DeviceTimer timer;
  if (device.kind == DeviceKind::cuda) {
    if (Status s = timer.open(device.index); !s.ok()) return s;
    b.timer = &timer, b.mode = Mode::cold;
  }
  // One sample, and no measurement of the machine: the time is not used.
  b.timing.max_seconds = 1e-6, b.timing.warm_up_seconds = 0, b.timing.min_early = b.timing.min_samples = 1;
  b.ceilings.emplace(), b.floor_ns = b.peer_floor_ns = 1, b.aa_spread = 0;
  const Problem& p = row.problem;
  b.pattern = row.pattern;
  out = measure_row(p, b);
  if (is_ring(p))  // all ranks ran; report the share of one
    for (Record& r : out) {
      const int ranks = ring_of(p).shards.ranks;
      r.workspace_bytes /= uint64_t(ranks), r.taken_bytes = r.taken_bytes < 0 ? -1 : std::floor(r.taken_bytes / ranks);
    }
  return Status::good();
}

}  // namespace attune
