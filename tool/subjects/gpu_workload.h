// SPDX-License-Identifier: Apache-2.0
// The buffers of a workload on a GPU. Results are checked on the host's copy; the GPU's buffers are timed. Several sets
// with the same values exist if a measurement rotates through them.
#pragma once
#include <vector>

#include "machine/cuda/runtime.h"
#include "tool/check/spot.h"
#include "tool/subjects/workload.h"

namespace attune {

class GpuWorkload {
 public:
  // Copies every tensor of `host` to the GPU. `host` must stay alive.
  Status open(int index, void* stream, Workload& host);
  const Args& args(int set = 0) const { return sets_[size_t(set)]; }
  int sets() const { return int(sets_.size()); }
  double set_bytes() const { return set_bytes_; }

  // Computes a backward's out and lse with a forward of this planner, on the GPU and copied to the host.
  Status run_forward(const Planner&);
  // Adds sets up to this number, as copies of the first one.
  Status replicate(int sets);
  // Separate outputs with the inputs of the first set, for the results of a peer.
  Status other_outputs(Args& out);
  Status poison(const Args& gpu);        // fills the outputs with NaN
  Status fetch(const Args& gpu);         // copies the outputs into the host's tensors
  Status fetch(const Args& gpu, const std::vector<ResultRow>&);  // copies only these rows
  Status read(void* to, const void* gpu, size_t bytes) const;  // waits
  Status send(Role);                     // copies the host's tensor into the first set

 private:
  Workload* host_ = nullptr;
  void* stream_ = nullptr;
  int index_ = 0;
  std::vector<cuda::Memory> memory_{};
  std::vector<Args> sets_{};
  double set_bytes_ = 0;

  Status place(Tensor&);                 // allocates memory for it on the GPU
};

}  // namespace attune
