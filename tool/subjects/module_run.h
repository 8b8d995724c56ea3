// SPDX-License-Identifier: Apache-2.0
// A module as a subject, and the same module in f32 for comparing results. A row of it is a pass and a module line:
// "forward multihead f16 b1 s2048 e512 h8 norm=1 | causal". It runs through the C interface like a user's
// module, so on a CPU with all threads of the process. Inputs are made and results checked on the host.
#pragma once
#include <array>
#include <memory>

#include "core/variant/blocks.h"
#include "core/work.h"
#include "core/device.h"
#include "tool/bench/axes.h"
#include "tool/timing/device_timer.h"
#include "tool/subjects/workload.h"

namespace attune {

bool is_module_row(std::string_view text);
Status parse_module_row(std::string_view text, BenchRow& out);
// Fails if it cannot be timed here: LeftOut::not_built.
Status can_time_module(const BenchRow&, const Device&, Mode);
// Cost of its attention alone, by the actual entries of its block lists, and their counts: all 0 without lists.
using BlockCounts = std::array<int64_t, size_t(BlockCount::count)>;
Cost module_attention_cost(const BenchRow&, BlockCounts&);
// Cost of its matrices and its attention. Bytes count x, out, a second input, the matrices, and the gradients of these
// shapes.
Cost module_cost(const BenchRow&);

// Where a module runs: the device by name and, on a GPU, its index and the stream of every call.
struct ModulePlace {
  std::string word{"cpu"};
  int gpu = -1;
  void* stream = nullptr;
};

class ModuleRun {
 public:
  ModuleRun();
  ~ModuleRun();
  Status make(const BenchRow&, const ModulePlace&);   // parameters come from the seed of the line
  Status make_f32(const ModuleRun& narrow);           // the same module in f32, with the parameters of `narrow`
  double bytes() const;                               // bytes that open() allocates
  double tensor_bytes() const;                        // inputs and outputs among them
  Status open();                                      // throws std::bad_alloc
  Status fill(Distribution, uint32_t seed, double& rms);  // fills x and d_out; returns the root mean square of x
  Status take_inputs(const ModuleRun& narrow);
  Status negate_input();                              // changes every result

  // The first rows whose results do not depend on rounding, which are compared: all but in attention that selects by
  // scores. keep_exact_rows() zeroes d_out of the others, until fill(), so that no gradient depends on them.
  int exact_rows() const;
  Status keep_exact_rows();

  Status once();    // poisons the results, runs and fetches them; a backward runs its forward first
  bool run();       // only the pass; a forward keeps nothing for a backward. On a GPU it only enqueues
  const Status& status() const { return status_; }
  std::string why() const;
  size_t workspace_bytes() const;
  // The largest distance of a result from f32, divided by the tolerance, and the name of that result.
  Status compare(const ModuleRun& in_f32, double& error, std::string& where) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  Status status_{};
};

}  // namespace attune
