// The buffers of a workload on a GPU: the host's copy is what results are judged on, the GPU's what is timed. Several
// sets with the same values exist where a measurement goes round through them.
#pragma once
#include <vector>

#include "machine/cuda/runtime.h"
#include "tool/check/spot.h"
#include "tool/subjects/workload.h"

namespace attune {

class GpuWorkload {
 public:
  // Copies every tensor of `host` there; it stays alive.
  Status open(int index, void* stream, Workload& host);
  const Args& args(int set = 0) const { return sets_[size_t(set)]; }
  int sets() const { return int(sets_.size()); }
  double set_bytes() const { return set_bytes_; }

  // A backward's out and lse, by a forward of this planner, here and on the host.
  Status run_forward(const Planner&);
  // More sets, as the first one is now.
  Status replicate(int sets);
  // Outputs of their own beside the inputs of the first set: what a peer's results are copied to.
  Status other_outputs(Args& out);
  Status poison(const Args& gpu);        // its outputs
  Status fetch(const Args& gpu);         // its outputs into the host's tensors
  Status fetch(const Args& gpu, const std::vector<ResultRow>&);  // these rows of them
  Status send(Role);                     // the host's tensor into that of the first set

 private:
  Workload* host_ = nullptr;
  void* stream_ = nullptr;
  int index_ = 0;
  std::vector<cuda::Memory> memory_{};
  std::vector<Args> sets_{};
  double set_bytes_ = 0;

  Status place(Tensor&);                 // gives it memory of its own
};

}  // namespace attune
