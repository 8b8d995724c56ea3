// SPDX-License-Identifier: Apache-2.0
// The stopwatch of a GPU. A batch is [flush, mark, work, mark] repeated behind a gate on one stream, then one wait. The
// gate keeps the host's launches out of the time; the flush comes before the first mark. Replayed graphs are cold
// without a flush: they rotate through enough sets of inputs to fill five L2 caches.
#pragma once
#include <map>
#include <memory>

#include "machine/cuda/events.h"
#include "machine/cuda/nvml.h"
#include "machine/cuda/runtime.h"
#include "tool/timing/engine.h"
#include "tool/timing/gpu_use.h"

namespace attune {

// The state of the caches before a sample. cold: the data is in no cache. warm: the subject was the last to run.
// graph: cold, and many calls are replayed by one launch, which hides the cost of launches.
enum class Mode { warm, cold, graph };
std::string name(Mode);
Status parse(std::string_view word, Mode& out);

// Power, temperature and throttling of the GPU while a subject ran.
struct Readings {
  double watts = 0, celsius = 0;  // largest readings
  uint64_t reasons = 0;           // union of all throttle reasons
  int64_t read_at = 0;            // time of the last reading, ns of the host's clock
  double span_ns = 0;             // time per sample in the last batch, flush included; 0: no batch yet
  void add(const cuda::GpuReading&);
};

// True if the gate may open while the host still enqueues: a host that is ahead of the GPU and faster stays ahead. A
// GPU that waits for a whole batch rests, and then runs at a higher clock than its power limit sustains: with gates
// that stayed shut to the end, an H200 at its power cap was up to 4 % faster than in a loop that never waits.
bool is_ahead(int enqueued, double host_ns, double gpu_ns_of_one);

// The result of running a subject back to back for a while.
struct Sustained {
  double ns = 0, joules = 0, watts = 0;  // per call; per call; mean
};
// From this many calls in `ns`, and the GPU's energy counter before and after; below 0: it has none.
Sustained sustained_of(double ns, int64_t calls, double joules_before, double joules_after);

class DeviceTimer {
 public:
  Status open(int index);
  int index() const { return index_; }
  void* stream() const { return stream_.get(); }
  const cuda::Facts& facts() const { return facts_; }
  const cuda::Nvml& nvml() const { return nvml_; }
  void add_use(LoadCounters& to) { use_.read(to); }  // by other processes
  const Status& no_nvml() const { return no_nvml_; }  // why NVML is missing; good if it is available

  // Sets the mode for the next subjects and forgets graphs and readings. `graph_calls` is the number per replay.
  void begin(Mode, int graph_calls = 1);
  const Stopwatch& stopwatch() const { return stopwatch_; }
  Readings readings(const Subject&) const;
  Status sustain(const Subject&, double seconds, Sustained& out);
  Subject empty_kernel();
  // Names of the kernels that one call launches, found without running it; empty if it cannot be captured.
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
  GpuUse use_{};
  Stopwatch stopwatch_{};
  std::map<const void*, cuda::Graph> graphs_{};  // by subject context
  std::map<const void*, Readings> readings_{};

  Status take(const Subject&, int calls, Batch&);
  Status enqueue(const Subject&, int calls, size_t samples, double span_ns);
  Status call(const Subject&, int calls);
  Status captured(const Subject&, const cuda::Graph*& out);
};

// Bytes to write to flush the cache: as many as triton's do_bench, or twice the cache if that is more.
constexpr size_t flush_bytes(size_t l2_bytes) {
  constexpr size_t kLeast = size_t(256) << 20;
  return 2 * l2_bytes > kLeast ? 2 * l2_bytes : kLeast;
}
// Number of rotating sets of inputs and outputs, such that a set returns only after five L2 sizes of other data.
int rotation(double set_bytes, double l2_bytes, double room_bytes);

}  // namespace attune
