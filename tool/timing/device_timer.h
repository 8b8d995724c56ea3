// The stopwatch of a GPU: a batch is [flush, mark, work, mark] again and again behind a gate on one stream, then one
// wait. The gate keeps the host's launches out of the time, the flush stands before the first mark. Replayed graphs are
// cold without a flush: they go round through as many sets of inputs as five L2 caches hold.
#pragma once
#include <map>
#include <memory>

#include "machine/cuda/events.h"
#include "machine/cuda/nvml.h"
#include "machine/cuda/runtime.h"
#include "tool/timing/engine.h"

namespace attune {

// How often a thing ran just before it is timed. cold: its data is in no cache. warm: it was the last to run.
// graph: cold, and replayed by one launch for many calls, which hides what a launch costs.
enum class Mode { warm, cold, graph };
std::string name(Mode);
Status parse(std::string_view word, Mode& out);

// What the GPU was like while a subject ran.
struct Readings {
  double watts = 0, celsius = 0;  // the largest seen
  uint64_t reasons = 0;           // all that were seen
  int64_t read_at = 0;            // ns of the host's clock: the last time
  double span_ns = 0;             // of a sample in the last batch, its flush included; 0: there was none
  void add(const cuda::GpuReading&);
};

// Whether the gate may open while the host still enqueues: once it is ahead and faster than the GPU it only gets
// further ahead. A GPU that waits for a whole batch rests, and then runs at a higher clock than its power allows for
// long: with gates that stayed shut to the end, an H200 at its power cap was up to 4 % faster than in a loop that never
// waits.
bool is_ahead(int enqueued, double host_ns, double gpu_ns_of_one);

// Of running a thing back to back for a while.
struct Sustained {
  double ns = 0, joules = 0, watts = 0;  // of one call; of one call; mean
};
// So many calls in `ns`, with the GPU's counter of energy before and after; below 0: it has none.
Sustained sustained_of(double ns, int64_t calls, double joules_before, double joules_after);

class DeviceTimer {
 public:
  Status open(int index);
  int index() const { return index_; }
  void* stream() const { return stream_.get(); }
  const cuda::Facts& facts() const { return facts_; }
  const cuda::Nvml& nvml() const { return nvml_; }
  const Status& no_nvml() const { return no_nvml_; }  // good where there is one

  // For the subjects that follow; forgets graphs and readings of those before. `graph_calls`: of one replay.
  void begin(Mode, int graph_calls = 1);
  const Stopwatch& stopwatch() const { return stopwatch_; }
  Readings readings(const Subject&) const;
  Status sustain(const Subject&, double seconds, Sustained& out);
  Subject empty_kernel();
  // What one call launches, by name, without running it; none where it cannot be captured.
  std::vector<std::string> kernels(const Subject&);

 private:
  int index_ = 0;
  Mode mode_ = Mode::cold;
  cuda::Facts facts_{};
  cuda::OwnStream stream_{};
  cuda::Marks marks_{};
  cuda::Gate gate_{};
  cuda::Ticks ticks_{};
  cuda::Memory flush_{};
  cuda::Nvml nvml_{};
  Status no_nvml_{};
  Stopwatch stopwatch_{};
  std::map<const void*, cuda::Graph> graphs_{};  // by the context of a subject
  std::map<const void*, Readings> readings_{};

  Status take(const Subject&, int calls, Batch&);
  Status enqueue(const Subject&, int calls, size_t samples, double span_ns);
  Status call(const Subject&, int calls);
  Status captured(const Subject&, const cuda::Graph*& out);
};

// Bytes that are written to empty the cache: what triton's do_bench writes, or twice the cache where that is more.
constexpr size_t flush_bytes(size_t l2_bytes) {
  constexpr size_t kLeast = size_t(256) << 20;
  return 2 * l2_bytes > kLeast ? 2 * l2_bytes : kLeast;
}
// Sets of inputs and outputs to go round through, so that five caches are between a set and its return.
int rotation(double set_bytes, double l2_bytes, double room_bytes);

}  // namespace attune
