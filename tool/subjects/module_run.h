// A multi-head module as one thing to time, and the same module in f32 that its results are compared with. A row of it
// is a pass and a module's line: "forward multihead f16 b1 s2048 e512 h8 norm=1 | causal". It goes through the
// C interface, as a user's module does, and so on a CPU with all threads of the process. Inputs are made and results
// judged on the host, wherever the module is.
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
// Whether it can be timed here, or a sentence that begins with "not built: ".
Status can_time_module(const BenchRow&, const Device&, Mode);
// Its attention alone, by the blocks that its lists really have, and how many those are: all 0 where it has no lists.
using BlockCounts = std::array<int64_t, size_t(BlockCount::count)>;
Cost module_attention_cost(const BenchRow&, BlockCounts&);
// Its matrices and its attention; of bytes, x, out, matrices and what has their shapes.
Cost module_cost(const BenchRow&);

// Where a module is: the device by its word, of a GPU its index and the stream of every call.
struct ModulePlace {
  std::string word{"cpu"};
  int gpu = -1;
  void* stream = nullptr;
};

class ModuleRun {
 public:
  ModuleRun();
  ~ModuleRun();
  Status make(const BenchRow&, const ModulePlace&);   // parameters by the seed of the line
  Status make_f32(const ModuleRun& narrow);          // the same in f32, with the parameters of `narrow`
  double bytes() const;                               // that open() takes
  double tensor_bytes() const;                        // of them, those of inputs and outputs
  Status open();                                      // throws std::bad_alloc
  Status fill(Distribution, uint32_t seed, double& rms);  // x and d_out; and the root mean square of x
  Status take_inputs(const ModuleRun& narrow);
  Status negate_input();                              // so that every result is another one

  Status once();    // into poison, and fetched; a backward after a forward of its own
  bool run();       // the pass alone; a forward keeps nothing for a backward. On a GPU it enqueues
  const Status& status() const { return status_; }
  std::string why() const;
  size_t workspace_bytes() const;
  // The largest distance of a result from that in f32, as a share of what is allowed, and whose it is.
  Status compare(const ModuleRun& in_f32, double& error, std::string& where) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  Status status_{};
};

}  // namespace attune
