// SPDX-License-Identifier: Apache-2.0
#include "machine/cuda/pool.h"

#include <cuda_runtime.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "machine/cuda/launch.h"

namespace attune::cuda {
namespace {

cudaStream_t stream_of(void* handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t event_of(void* handle) { return static_cast<cudaEvent_t>(handle); }

// During its lifetime, a capture elsewhere in the process does not restrict this thread: the pool only touches streams
// that are not captured.
struct Relaxed {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  Relaxed() { (void)cudaThreadExchangeStreamCaptureMode(&mode); }
  ~Relaxed() { (void)cudaThreadExchangeStreamCaptureMode(&mode); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;
};

struct GpuPool {
  int index = 0;
  cudaMemPool_t from = nullptr;
  cudaStream_t side = nullptr;
  bool keeps = false;
  std::unique_ptr<Pool> blocks{};
  std::atomic<uint64_t> graph_buffers{0};
};
GpuPool& of(void* self) { return *static_cast<GpuPool*>(self); }

// All of these require the GPU to be current.
Status driver_take(void* self, size_t bytes, void* stream, void*& out, bool& full) {
  const Relaxed relaxed;
  const cudaError_t error = cudaMallocFromPoolAsync(&out, bytes, of(self).from, stream_of(stream));
  full = error == cudaErrorMemoryAllocation;
  return status_of("cudaMallocFromPoolAsync", error);
}
Status driver_give(void*, void* data, void* stream) {
  const Relaxed relaxed;
  return status_of("cudaFreeAsync", cudaFreeAsync(data, stream_of(stream)));
}
Status driver_mark(void*, void* stream, void*& event) {
  if (!event) {
    const Relaxed relaxed;
    cudaEvent_t made = nullptr;
    const cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    if (Status s = status_of("cudaEventCreateWithFlags", error); !s.ok()) return s;
    event = made;
  }
  return status_of("cudaEventRecord", cudaEventRecord(event_of(event), stream_of(stream)));
}
Status driver_wait(void*, void* stream, void* event) {
  return status_of("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
}
bool driver_passed(void*, void* event) {
  const Relaxed relaxed;
  const cudaError_t error = cudaEventQuery(event_of(event));
  if (error != cudaSuccess) (void)cudaGetLastError();  // "not ready" also sets the last error
  return error == cudaSuccess;
}
Status driver_finish(void*) {
  const Relaxed relaxed;
  return status_of("cudaDeviceSynchronize", cudaDeviceSynchronize());
}
Status driver_shrink(void* self, size_t keep) {
  const Relaxed relaxed;
  if (Status s = status_of("cudaStreamSynchronize", cudaStreamSynchronize(of(self).side)); !s.ok()) return s;
  return status_of("cudaMemPoolTrimTo", cudaMemPoolTrimTo(of(self).from, keep));
}
size_t driver_held(void* self) {
  uint64_t bytes = 0;
  if (cudaMemPoolGetAttribute(of(self).from, cudaMemPoolAttrReservedMemCurrent, &bytes) != cudaSuccess)
    (void)cudaGetLastError();
  return size_t(bytes);
}

Status open(int index, std::unique_ptr<GpuPool>& out) {
  auto pool = std::make_unique<GpuPool>();
  pool->index = index;
  const char* word = std::getenv("ATTUNE_POOL");
  const std::string_view wanted = word ? word : "driver";
  if (wanted != "attune" && wanted != "driver")
    return Status::no("memory: ATTUNE_POOL is '", wanted, "', not one of driver, attune");
  pool->keeps = wanted == "attune";

  Device found;
  if (Status s = device(index, found); !s.ok()) return s.after("memory: cuda:", index, ": ");
  const Relaxed relaxed;
  int has_pools = 0;
  const cudaError_t asked = cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, index);
  if (Status s = status_of("cudaDeviceGetAttribute", asked); !s.ok()) return s;
  if (!has_pools)
    return Status::unsupported("memory: the driver has no memory pools on cuda:", index, " (", found.name, ")");
  size_t all = 0;
  if (Status s = memory_of(index, all); !s.ok()) return s;
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.handleTypes = cudaMemHandleTypeNone;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = index;
  if (Status s = status_of("cudaMemPoolCreate", cudaMemPoolCreate(&pool->from, &props)); !s.ok()) return s;
  // Unused memory beyond this threshold goes back to the system at the driver's next synchronization. The default is 0,
  // which would map large buffers anew after each one.
  uint64_t threshold = all / 16;
  (void)cudaMemPoolSetAttribute(pool->from, cudaMemPoolAttrReleaseThreshold, &threshold);
  const cudaError_t streamed = cudaStreamCreateWithFlags(&pool->side, cudaStreamNonBlocking);
  if (Status s = status_of("cudaStreamCreateWithFlags", streamed); !s.ok()) {
    (void)cudaMemPoolDestroy(pool->from);
    return s;
  }
  pool->blocks = std::make_unique<Pool>(
      PoolDriver{.self = pool.get(), .side = pool->side, .take = driver_take, .give = driver_give, .mark = driver_mark,
                 .wait = driver_wait, .passed = driver_passed, .finish = driver_finish, .shrink = driver_shrink,
                 .held = driver_held},
      PoolPolicy{.keep = pool->keeps});
  out = std::move(pool);
  return Status::good();
}

// The pool of a GPU, which must be current.
Status find(int index, GpuPool*& out) {
  constexpr int kMostGpus = 64;
  static std::atomic<GpuPool*> known[kMostGpus] = {};
  static std::mutex& mutex = *new std::mutex;
  if (index < 0 || index >= kMostGpus) return Status::no("memory: cuda:", index, " is not in 0 ... ", kMostGpus - 1);
  out = known[index].load(std::memory_order_acquire);
  if (out) return Status::good();
  const std::lock_guard lock(mutex);
  out = known[index].load(std::memory_order_acquire);
  if (out) return Status::good();
  std::unique_ptr<GpuPool> made;
  if (Status s = open(index, made); !s.ok()) return s;
  known[index].store(out = made.release(), std::memory_order_release);
  return Status::good();
}

Status is_captured(void* stream, bool& out) {
  cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
  if (Status s = status_of("cudaStreamIsCapturing", cudaStreamIsCapturing(stream_of(stream), &now)); !s.ok())
    return s.after("memory: ");
  if (now == cudaStreamCaptureStatusInvalidated) return Status::no("memory: the capture of this stream has failed");
  out = now == cudaStreamCaptureStatusActive;
  return Status::good();
}

// cudaStreamPerThread is one handle for a stream in every thread. CUDA's guide does not guarantee separate ids for
// these, so the thread's number is the id.
uint64_t thread_id() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t mine = uint64_t(1) << 63 | ++last;
  return mine;
}

Status identify(PoolStream& stream) {
  if (stream.handle == cudaStreamPerThread) return stream.id = thread_id(), Status::good();
  unsigned long long id = 0;
  if (Status s = status_of("cudaStreamGetId", cudaStreamGetId(stream_of(stream.handle), &id)); !s.ok())
    return s.after("memory: ");
  stream.id = id;
  return Status::good();
}

// Calls f(pool) with the GPU current.
template <class F>
Status with(int index, F f) {
  const DeviceGuard use(index);
  if (!use.status.ok()) return use.status.after("memory: cuda:", index, ": ");
  GpuPool* pool = nullptr;
  if (Status s = find(index, pool); !s.ok()) return s;
  return f(*pool);
}

Status allocate_from(GpuPool& pool, size_t bytes, PoolStream& on, void*& out) {
  if (Status s = identify(on); !s.ok()) return s;
  Status s = pool.blocks->allocate(bytes, on, out);
  return s.ok() ? s : Status::failure(s.code, s.message, ", on cuda:", pool.index);
}

constexpr std::string_view kWhyNot = ": a graph would use its address again; allocate and free outside of the capture";

}  // namespace

Status allocate(int index, size_t bytes, void* stream, void*& out) {
  out = nullptr;
  return with(index, [&](GpuPool& pool) {
    bool captured = false;
    if (Status s = is_captured(stream, captured); !s.ok()) return s;
    if (captured) return Status::no("memory: the stream is being captured", kWhyNot);
    PoolStream on{.handle = stream};
    return allocate_from(pool, bytes, on, out);
  });
}

Status free(int index, void* data, void* stream) {
  if (!data) return Status::good();
  return with(index, [&](GpuPool& pool) {
    bool captured = false;
    PoolStream on{.handle = stream};
    if (Status s = is_captured(stream, captured); !s.ok()) return s;
    if (captured) return Status::no("memory: the stream is being captured", kWhyNot);
    if (Status s = identify(on); !s.ok()) return s;
    return pool.blocks->free(data, on);
  });
}

Status trim(int index, size_t keep) {
  return with(index, [&](GpuPool& pool) { return pool.blocks->trim(keep); });
}

Status reset_marks(int index) {
  return with(index, [&](GpuPool& pool) { return pool.blocks->reset_marks(), Status::good(); });
}

Status pool_state(int index, PoolState& out) {
  return with(index, [&](GpuPool& pool) {
    out = {.counts = pool.blocks->statistics(), .keeps = pool.keeps, .graph_buffers = pool.graph_buffers.load()};
    return Status::good();
  });
}

Status Borrowed::take(int index, size_t bytes, void* stream) {
  if (Status s = give_back(); !s.ok()) return s;
  return with(index, [&](GpuPool& pool) {
    if (Status s = is_captured(stream, captured_); !s.ok()) return s;
    index_ = index, on_.handle = stream;
    if (!captured_) return allocate_from(pool, bytes, on_, data_);
    pool.graph_buffers.fetch_add(1, std::memory_order_relaxed);
    const cudaError_t error = cudaMallocFromPoolAsync(&data_, bytes, pool.from, stream_of(stream));
    const Status s = status_of("cudaMallocFromPoolAsync", error);
    if (!s.ok()) data_ = nullptr;
    return s.after("memory: ", bytes, " bytes inside a capture on cuda:", index, ": ");
  });
}

Status Borrowed::give_back() {
  if (!data_) return Status::good();
  void* const data = std::exchange(data_, nullptr);
  return with(index_, [&](GpuPool& pool) {
    return captured_ ? driver_give(&pool, data, on_.handle) : pool.blocks->free(data, on_);
  });
}

}  // namespace attune::cuda
