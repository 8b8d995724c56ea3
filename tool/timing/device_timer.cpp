// SPDX-License-Identifier: Apache-2.0
#include "tool/timing/device_timer.h"

#include <algorithm>
#include <cmath>

#include "tool/text.h"

namespace attune {
namespace {

constexpr std::string_view kMode[] = {"warm", "cold", "graph"};
constexpr int kMostSamples = 64;  // per batch
constexpr int kMostSets = 64;

std::string why(const Subject& s) { return s.why ? s.why(s.context) : "it failed"; }

}  // namespace

std::string name(Mode m) { return std::string(kMode[int(m)]); }

Status parse(std::string_view word, Mode& out) {
  for (int n = 0; n < 3; ++n)
    if (word == kMode[n]) return out = Mode(n), Status::good();
  return Status::no("--timing: ", not_one_of(word, "cold, warm, graph"));
}

void Readings::add(const cuda::GpuReading& r) {
  watts = std::max(watts, r.watts), celsius = std::max(celsius, r.celsius), reasons |= r.reasons;
}

bool is_ahead(int enqueued, double host_ns, double gpu_ns_of_one) {
  constexpr int kLead = 3;
  return enqueued >= kLead && gpu_ns_of_one > 2 * host_ns / enqueued;
}

int rotation(double set_bytes, double l2_bytes, double room_bytes) {
  const double wanted = std::ceil(5 * l2_bytes / std::max(set_bytes, 1.0)) + 1;
  const double possible = std::floor(room_bytes / std::max(set_bytes, 1.0));
  // One set suffices if it is so large that none of it can stay in the cache.
  if (set_bytes >= 5 * l2_bytes) return 1;
  return int(std::clamp(std::min(wanted, possible), 1.0, double(kMostSets)));
}

Status DeviceTimer::open(int index) {
  index_ = index;
  if (Status s = cuda::facts_of(index, facts_); !s.ok()) return s;
  if (Status s = stream_.open(index); !s.ok()) return s;
  if (Status s = marks_.open(index, 2 * kMostSamples); !s.ok()) return s;
  if (Status s = gate_.open(index); !s.ok()) return s;
  if (Status s = ticks_.open(index); !s.ok()) return s;
  if (Status s = flush_.allocate(index, flush_bytes(facts_.l2_bytes)); !s.ok()) return s;
  no_nvml_ = nvml_.open(facts_.pci);
  use_.open(facts_.pci);
  stopwatch_ = {.context = this, .take = [](void* c, const Subject& s, int calls, Batch& batch) {
                  return static_cast<DeviceTimer*>(c)->take(s, calls, batch);
                }};
  return Status::good();
}

void DeviceTimer::begin(Mode mode, int graph_calls) {
  mode_ = mode;
  graphs_.clear();
  readings_.clear();
  stopwatch_.calls = mode == Mode::graph ? graph_calls : 0;
}

Readings DeviceTimer::readings(const Subject& s) const {
  const auto it = readings_.find(s.context);
  return it == readings_.end() ? Readings{} : it->second;
}

Status DeviceTimer::captured(const Subject& s, const cuda::Graph*& out) {
  if (const auto it = graphs_.find(s.context); it != graphs_.end()) return out = &it->second, Status::good();
  cuda::Graph graph;
  if (Status b = cuda::Graph::begin(stream()); !b.ok()) return b;
  bool ran = true;
  for (int n = 0; n < stopwatch_.calls && ran; ++n) ran = s.run(s.context);
  const std::string reason = ran ? "" : why(s);
  const Status ended = graph.end(stream());
  if (!ran) return Status::no("cannot be captured in a graph: ", reason);
  if (!ended.ok()) return ended.after("cannot be captured in a graph: ");
  out = &graphs_.emplace(s.context, std::move(graph)).first->second;
  return Status::good();
}

std::vector<std::string> DeviceTimer::kernels(const Subject& s) {
  const cuda::DeviceGuard use(index_);
  cuda::Graph graph;
  if (!cuda::Graph::begin(stream()).ok()) return {};
  const bool ran = s.run(s.context);
  if (!graph.end(stream()).ok() || !ran) return {};
  std::vector<std::string> all;
  for (const std::string& name : graph.kernels()) all.push_back(kernel_text(name));
  return all;
}

// Enqueues the work of one sample.
Status DeviceTimer::call(const Subject& s, int calls) {
  if (mode_ == Mode::graph) {
    const cuda::Graph* graph = nullptr;
    if (Status c = captured(s, graph); !c.ok()) return c;
    return graph->launch(stream());
  }
  for (int n = 0; n < calls; ++n)
    if (!s.run(s.context)) return Status::no(why(s));
  return Status::good();
}

Status DeviceTimer::enqueue(const Subject& s, int calls, size_t samples, double span_ns) {
  const Clock clock = host_clock();
  const int64_t start = clock.now();
  if (Status t = ticks_.set(0, stream()); !t.ok()) return t;
  if (mode_ == Mode::warm)
    if (Status c = call(s, 1); !c.ok()) return c;
  for (int n = 0; n < int(samples); ++n) {
    if (mode_ == Mode::cold)
      if (Status f = cuda::fill(flush_.data(), 0, flush_.bytes(), stream()); !f.ok()) return f;
    if (Status m = marks_.set(2 * n, stream()); !m.ok()) return m;
    if (Status c = call(s, calls); !c.ok()) return c;
    if (Status m = marks_.set(2 * n + 1, stream()); !m.ok()) return m;
    if (is_ahead(n + 1, double(clock.now() - start), span_ns)) gate_.release();
  }
  return ticks_.set(1, stream());
}

Status DeviceTimer::take(const Subject& s, int calls, Batch& batch) {
  const cuda::DeviceGuard use(index_);
  if (!use.status.ok()) return use.status;
  if (batch.ns.size() > size_t(kMostSamples))
    return Status::no("a batch of ", batch.ns.size(), " samples; at most ", kMostSamples);
  if (mode_ == Mode::graph) {  // captured before the gate, because capturing must not wait for it
    const cuda::Graph* graph = nullptr;
    if (Status c = captured(s, graph); !c.ok()) return c;
  }
  if (mode_ == Mode::cold)
    if (Status k = cuda::release_kept_lines(); !k.ok()) return k;
  if (Status g = gate_.hold(stream()); !g.ok()) return g;
  Readings& r = readings_[s.context];
  const Status enqueued = enqueue(s, calls, batch.ns.size(), r.span_ns);
  gate_.release();
  constexpr int64_t kEvery = 200000000;  // ns; a reading takes milliseconds, and the GPU idles if the batch ends first
  if (const int64_t now = host_clock().now(); enqueued.ok() && now - r.read_at > kEvery)
    r.add(nvml_.read()), r.read_at = now;
  if (Status w = cuda::wait(stream()); !w.ok()) return w;
  if (!enqueued.ok()) return enqueued;
  batch.late = gate_.gave_up();
  batch.mhz = ticks_.megahertz();
  for (int n = 0; n < int(batch.ns.size()); ++n)
    if (Status b = marks_.between(2 * n, 2 * n + 1, batch.ns[size_t(n)]); !b.ok()) return b;
  const int last = 2 * int(batch.ns.size()) - 1;
  if (Status b = marks_.between(0, last, r.span_ns); !b.ok()) return b;
  r.span_ns /= double(batch.ns.size());
  return Status::good();
}

Sustained sustained_of(double ns, int64_t calls, double joules_before, double joules_after) {
  Sustained s{.ns = ns / double(calls)};
  const double joules = joules_after - joules_before;
  if (joules_before >= 0 && joules > 0) s.joules = joules / double(calls), s.watts = joules / (ns * 1e-9);
  return s;
}

Status DeviceTimer::sustain(const Subject& s, double seconds, Sustained& out) {
  const cuda::DeviceGuard use(index_);
  const Clock clock = host_clock();
  const int64_t start = clock.now();
  const double before = nvml_.joules();
  int64_t calls = 0;
  for (int batch = 1; double(clock.now() - start) < seconds * 1e9;) {
    const int64_t began = clock.now();
    if (Status c = call(s, batch); !c.ok()) return c;
    if (Status w = cuda::wait(stream()); !w.ok()) return w;
    calls += mode_ == Mode::graph ? stopwatch_.calls : batch;
    constexpr double kEnough = 20e6;  // ns between two waits, which makes their cost negligible
    if (mode_ != Mode::graph && double(clock.now() - began) < kEnough) batch = std::min(2 * batch, 256);
  }
  const double passed = double(clock.now() - start);
  out = sustained_of(passed, calls, before, nvml_.joules());
  return Status::good();
}

Subject DeviceTimer::empty_kernel() {
  return {.name = "nothing", .context = this, .run = [](void* t) {
            return cuda::launch_nothing(static_cast<DeviceTimer*>(t)->stream()).ok();
          }};
}

}  // namespace attune
