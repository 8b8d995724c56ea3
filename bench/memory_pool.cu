// SPDX-License-Identifier: Apache-2.0
// Measures the host time and memory of a buffer: attune's pool against the driver's pool alone, with its default (it
// returns unused memory at every synchronisation) and set to keep everything. The three alternate in every round; a
// line is the median over rounds. `memory_pool [part of a pattern's name]`; prints Markdown.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <source_location>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "machine/cuda/pool.h"

namespace {

using attune::Status;
constexpr size_t kMiB = size_t(1) << 20;
constexpr int kRounds = 5;

void require(cudaError_t error, std::source_location at = std::source_location::current()) {
  if (error == cudaSuccess) return;
  std::printf("line %u: %s\n", unsigned(at.line()), cudaGetErrorString(error));
  std::exit(1);
}
void require(const Status& s) {
  if (s.ok()) return;
  std::printf("failed: %s\n", s.message.c_str());
  std::exit(1);
}

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

double at(std::vector<double>& all, double share) {
  const size_t n = std::min(all.size() - 1, size_t(double(all.size()) * share));
  std::nth_element(all.begin(), all.begin() + long(n), all.end());
  return all[n];
}

// One of the three allocators.
struct Way {
  const char* name;
  cudaMemPool_t driver;  // null: attune's pool

  void* get(size_t bytes, cudaStream_t s) const {
    void* out = nullptr;
    if (driver) require(cudaMallocFromPoolAsync(&out, bytes, driver, s));
    else require(attune::cuda::allocate(0, bytes, s, out));
    return out;
  }
  void put(void* data, cudaStream_t s) const {
    if (driver) require(cudaFreeAsync(data, s));
    else require(attune::cuda::free(0, data, s));
  }
  void reset() const {
    if (!driver) return require(attune::cuda::trim(0, 0)), require(attune::cuda::reset_marks(0));
    uint64_t zero = 0;
    require(cudaDeviceSynchronize());
    require(cudaMemPoolTrimTo(driver, 0));
    require(cudaMemPoolSetAttribute(driver, cudaMemPoolAttrReservedMemHigh, &zero));
  }
  size_t held() const {
    uint64_t bytes = 0;
    attune::cuda::PoolState state;
    if (driver) require(cudaMemPoolGetAttribute(driver, cudaMemPoolAttrReservedMemHigh, &bytes));
    else if (attune::cuda::pool_state(0, state).ok())
      bytes = std::max(state.counts.held_bytes, state.counts.high_reserved);
    return size_t(bytes);
  }
};

Way driver_way(const char* name, uint64_t threshold) {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  cudaMemPool_t made = nullptr;
  require(cudaMemPoolCreate(&made, &props));
  require(cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &threshold));
  return {name, made};
}

__global__ void nothing() {}

struct Pattern {
  const char* name;
  int live;               // concurrent buffers per thread
  bool mixed = false;     // sizes drawn from 4 KiB ... 64 MiB; otherwise three recurring sizes
  bool launches = false;  // a kernel with every buffer
};
constexpr Pattern kPatterns[] = {{.name = "one buffer a launch", .live = 1, .launches = true},
                                 {.name = "three sizes", .live = 4},
                                 {.name = "mixed sizes", .live = 12, .mixed = true}};

struct Result {
  std::vector<double> get{}, put{};  // ns
  size_t peak = 0;                   // live bytes of this thread
};

// Each thread has its own stream, as far as there are enough; a single thread cycles through all streams.
void work(const Way& way, const Pattern& p, const std::vector<cudaStream_t>& streams, unsigned seed, int steps,
          int thread, Result& out) {
  require(cudaSetDevice(0));
  struct Buffer { void* data; size_t bytes, on; };
  std::vector<Buffer> live;
  std::mt19937 random(seed);
  size_t bytes_now = 0;
  const size_t fixed[] = {300000, 2 * kMiB, 9 * kMiB};
  for (int step = 0; step < steps; ++step) {
    const bool get = live.empty() || (live.size() < size_t(p.live) && random() % 2);
    if (get) {
      const size_t scale = size_t(4096) << (random() % 14);
      Buffer b{nullptr, p.mixed ? scale + random() % scale : fixed[random() % 3],
               (thread < 0 ? random() : unsigned(thread)) % streams.size()};
      const double begin = now();
      b.data = way.get(b.bytes, streams[b.on]);
      out.get.push_back((now() - begin) * 1e9);
      if (p.launches) nothing<<<1, 32, 0, streams[b.on]>>>();
      live.push_back(b);
      out.peak = std::max(out.peak, bytes_now += b.bytes);
    } else {
      std::swap(live[random() % live.size()], live.back());
      const Buffer b = live.back();
      live.pop_back();
      bytes_now -= b.bytes;
      const double begin = now();
      way.put(b.data, streams[b.on]);
      out.put.push_back((now() - begin) * 1e9);
    }
    // Synchronises now and then, like a program that reads a result.
    if (step % 256 == 255) require(cudaStreamSynchronize(streams[size_t(std::max(thread, 0)) % streams.size()]));
  }
  for (const Buffer& b : live) way.put(b.data, streams[b.on]);
}

struct Row {
  std::vector<double> get{}, get_late{}, put{}, put_late{}, held{}, peak{};
};

void measure(const std::vector<Way>& ways, const Pattern& p, int streams_count, int threads_count) {
  std::vector<cudaStream_t> streams(size_t(streams_count), nullptr);
  for (cudaStream_t& s : streams) require(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  std::vector<Row> rows(ways.size());
  for (int round = 0; round < kRounds; ++round)
    for (size_t n = 0; n < ways.size(); ++n) {
      const size_t w = (n + size_t(round)) % ways.size();
      ways[w].reset();
      std::vector<Result> results(size_t(threads_count), Result{});
      std::vector<std::thread> threads;
      for (int t = 0; t < threads_count; ++t)
        threads.emplace_back([&, t] {
          const int thread = threads_count > 1 ? t : -1;
          work(ways[w], p, streams, unsigned(100 * round + t), 2048, thread, results[size_t(t)]);
        });
      for (std::thread& t : threads) t.join();
      Result all;
      for (const Result& r : results) {
        all.get.insert(all.get.end(), r.get.begin(), r.get.end());
        all.put.insert(all.put.end(), r.put.begin(), r.put.end());
        all.peak += r.peak;
      }
      Row& row = rows[w];
      row.get.push_back(at(all.get, 0.5)), row.get_late.push_back(at(all.get, 0.99));
      row.put.push_back(at(all.put, 0.5)), row.put_late.push_back(at(all.put, 0.99));
      row.held.push_back(double(ways[w].held()) / kMiB), row.peak.push_back(double(all.peak) / kMiB);
      require(cudaDeviceSynchronize());
    }
  for (size_t w = 0; w < ways.size(); ++w) {
    Row& r = rows[w];
    std::printf("| %s | %d | %d | %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f |\n", p.name, streams_count,
                threads_count, ways[w].name, at(r.get, 0.5), at(r.get_late, 0.5), at(r.put, 0.5), at(r.put_late, 0.5),
                at(r.held, 0.5), at(r.peak, 0.5));
  }
  std::fflush(stdout);
  for (const cudaStream_t s : streams) require(cudaStreamDestroy(s));
}

template <class F>
void cost(const char* what, F f) {
  std::vector<double> ns;
  for (int round = 0; round < 21; ++round) {
    const double begin = now();
    for (int n = 0; n < 500; ++n) f();
    ns.push_back((now() - begin) * 1e9 / 500);
    require(cudaDeviceSynchronize());
  }
  std::printf("| %s | %.0f |\n", what, at(ns, 0.5));
}

// Times the runtime calls that the pool makes.
void costs() {
  cudaStream_t s = nullptr, other = nullptr;
  cudaEvent_t e = nullptr;
  require(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  require(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  require(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  std::puts("| call | ns |\n|---|---|");
  int device = 0;
  unsigned long long id = 0;
  cudaStreamCaptureStatus status;
  cost("cudaGetDevice", [&] { require(cudaGetDevice(&device)); });
  cost("cudaStreamGetId", [&] { require(cudaStreamGetId(s, &id)); });
  cost("cudaStreamIsCapturing", [&] { require(cudaStreamIsCapturing(s, &status)); });
  cost("cudaEventRecord", [&] { require(cudaEventRecord(e, s)); });
  cost("cudaStreamWaitEvent", [&] { require(cudaStreamWaitEvent(other, e, 0)); });
  cost("cudaEventQuery", [&] { (void)cudaEventQuery(e); });
  (void)cudaGetLastError();
  cost("an empty kernel", [&] { nothing<<<1, 32, 0, s>>>(); });
  cost("a borrowed buffer", [&] {
    attune::cuda::Borrowed b;
    require(b.take(0, kMiB / 2, s)), require(b.give_back());
  });
  cost("a borrowed buffer around an empty kernel", [&] {
    attune::cuda::Borrowed b;
    require(b.take(0, kMiB / 2, s));
    nothing<<<1, 32, 0, s>>>();
    require(b.give_back());
  });
  cost("a borrowed buffer of 2 MiB around an empty kernel", [&] {
    attune::cuda::Borrowed b;
    require(b.take(0, 2 * kMiB, s));
    nothing<<<1, 32, 0, s>>>();
    require(b.give_back());
  });
  const Way keeps = driver_way("", UINT64_MAX);
  cost("the driver's buffer around an empty kernel", [&] {
    void* data = keeps.get(kMiB / 2, s);
    nothing<<<1, 32, 0, s>>>();
    keeps.put(data, s);
  });
  require(cudaStreamDestroy(s));
  require(cudaStreamDestroy(other));
}

}  // namespace

int main(int argc, char** argv) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || !gpus) return std::puts("there is no GPU here"), 0;
  require(cudaSetDevice(0));
  setenv("ATTUNE_POOL", "attune", 1);
  const std::string_view only = argc > 1 ? argv[1] : "";
  costs();
  const std::vector<Way> ways = {
      {"attune", nullptr}, driver_way("driver", 0), driver_way("driver, keeps all", UINT64_MAX)};
  std::puts("\n| pattern | streams | threads | pool | get ns | 99 % | free ns | 99 % | held MiB | peak live MiB |\n"
            "|---|---|---|---|---|---|---|---|---|---|");
  for (const Pattern& p : kPatterns) {
    if (!only.empty() && std::string_view(p.name).find(only) == std::string_view::npos) continue;
    for (const int threads : {1, 8})
      for (const int streams : {1, 4}) measure(ways, p, streams, threads);
  }
  return 0;
}
