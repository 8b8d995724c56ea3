// SPDX-License-Identifier: Apache-2.0
#include "machine/cuda/events.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "machine/cuda/launch.h"
#include "machine/library.h"

namespace attune::cuda {
namespace {

cudaStream_t on(void* stream) { return static_cast<cudaStream_t>(stream); }

// Host memory that the GPU reads and writes in place, filled with 0.
Status share(int index, size_t bytes, void*& out) {
  const DeviceGuard use(index);
  if (!use.status.ok()) return use.status;
  constexpr unsigned kHow = cudaHostAllocMapped | cudaHostAllocPortable;
  if (Status s = status_of("cudaHostAlloc", cudaHostAlloc(&out, bytes, kHow)); !s.ok()) return s;
  std::fill_n(static_cast<char*>(out), bytes, char(0));
  return Status::good();
}

void unshare(int index, void* shared) {
  if (!shared) return;
  const DeviceGuard use(index);
  (void)cudaFreeHost(shared);
}

__device__ uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__global__ void nothing() {}

struct Held {
  volatile uint32_t* shared;  // of Gate
  uint32_t number;
  uint64_t patience;          // ns
};
__global__ void wait_for_go(const __grid_constant__ Held h) {
  const uint64_t start = nanoseconds();
  while (int32_t(h.shared[0] - h.number) < 0)
    if (nanoseconds() - start > h.patience) {
      h.shared[1] = h.number;
      return;
    }
}

struct Stamp {
  uint64_t* to;  // [sms] of cycles, nanoseconds
  uint32_t sms;
};
__global__ void stamp(const __grid_constant__ Stamp s) {
  uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (sm >= s.sms) return;
  s.to[2 * sm] = uint64_t(clock64());
  s.to[2 * sm + 1] = nanoseconds();
}

std::string version_text(int v) { return join(v / 1000, ".", v % 1000 / 10); }

}  // namespace

Status facts_of(int index, Facts& out) {
  const DeviceGuard use(index);
  if (!use.status.ok()) return use.status;
  int l2 = 0, sms = 0, driver = 0;
  size_t all = 0;
  char pci[32] = "";
  const cudaError_t error = cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, index);
  if (Status s = status_of("cudaDeviceGetAttribute", error); !s.ok()) return s;
  (void)cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, index);
  (void)cudaDeviceGetPCIBusId(pci, sizeof pci, index);
  (void)cudaDriverGetVersion(&driver);
  out = {.l2_bytes = size_t(l2), .sms = sms, .pci = pci, .runtime = version_text(CUDART_VERSION),
         .driver = version_text(driver)};
  return status_of("cudaMemGetInfo", cudaMemGetInfo(&out.free_bytes, &all));
}

Status fill(void* gpu, unsigned char value, size_t bytes, void* stream) {
  return status_of("cudaMemsetAsync", cudaMemsetAsync(gpu, value, bytes, on(stream)));
}

Status copy_inside(void* to, const void* from, size_t bytes, void* stream) {
  return status_of("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on(stream)));
}

Status release_kept_lines() {
  int index = 0, most = 0;
  if (const cudaError_t error = cudaGetDevice(&index); error != cudaSuccess) return status_of("cudaGetDevice", error);
  (void)cudaDeviceGetAttribute(&most, cudaDevAttrMaxPersistingL2CacheSize, index);
  if (most == 0) return Status::good();  // GPUs before sm_80 have no persisting lines
  return status_of("cudaCtxResetPersistingL2Cache", cudaCtxResetPersistingL2Cache());
}

Status launch_nothing(void* stream) {
  nothing<<<1, 1, 0, on(stream)>>>();
  return status_of("an empty kernel", cudaGetLastError());
}

Marks::~Marks() {
  if (!events_) return;
  const DeviceGuard use(index_);
  for (int n = 0; n < count_; ++n) (void)cudaEventDestroy(static_cast<cudaEvent_t>(events_[n]));
  delete[] events_;
}

Status Marks::open(int index, int count) {
  const DeviceGuard use(index);
  if (!use.status.ok()) return use.status;
  events_ = new void*[size_t(count)];
  index_ = index;
  for (count_ = 0; count_ < count; ++count_) {
    cudaEvent_t made = nullptr;
    if (Status s = status_of("cudaEventCreate", cudaEventCreate(&made)); !s.ok()) return s;
    events_[count_] = made;
  }
  return Status::good();
}

Status Marks::set(int n, void* stream) {
  return status_of("cudaEventRecord", cudaEventRecord(static_cast<cudaEvent_t>(events_[n]), on(stream)));
}

Status Marks::between(int from, int to, double& ns) const {
  float ms = 0;
  const cudaError_t error =
      cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(events_[from]), static_cast<cudaEvent_t>(events_[to]));
  ns = double(ms) * 1e6;
  return status_of("cudaEventElapsedTime", error);
}

Gate::~Gate() { unshare(index_, shared_); }

Status Gate::open(int index) {
  void* place = nullptr;
  const Status s = share(index, 2 * sizeof(uint32_t), place);
  shared_ = static_cast<uint32_t*>(place), index_ = index;
  return s;
}

Status Gate::hold(void* stream) {
  ++held_;
  wait_for_go<<<1, 1, 0, on(stream)>>>({shared_, held_, uint64_t(kPatience * 1e9)});
  return status_of("a kernel that waits", cudaGetLastError());
}

void Gate::release() { const_cast<volatile uint32_t*>(shared_)[0] = held_; }

bool Gate::gave_up() const { return const_cast<const volatile uint32_t*>(shared_)[1] == held_; }

Ticks::~Ticks() { unshare(index_, shared_); }

Status Ticks::open(int index) {
  Facts facts;
  if (Status s = facts_of(index, facts); !s.ok()) return s;
  void* place = nullptr;
  const Status s = share(index, size_t(facts.sms) * 4 * sizeof(uint64_t), place);
  shared_ = static_cast<uint64_t*>(place), sms_ = facts.sms, index_ = index;
  return s;
}

Status Ticks::set(int which, void* stream) {
  uint64_t* to = shared_ + size_t(which) * 2 * size_t(sms_);
  if (which == 0) std::fill_n(shared_, 4 * size_t(sms_), uint64_t(0));
  stamp<<<unsigned(sms_), 1, 0, on(stream)>>>({to, uint32_t(sms_)});
  return status_of("a kernel that reads the clock", cudaGetLastError());
}

double Ticks::megahertz() const {
  std::vector<double> seen;  // SMs that had a CTA at both points
  for (int n = 0; n < sms_; ++n) {
    const uint64_t *first = shared_ + 2 * n, *second = first + 2 * sms_;
    if (first[1] && second[1] > first[1] && second[0] > first[0])
      seen.push_back(double(second[0] - first[0]) / double(second[1] - first[1]) * 1e3);
  }
  if (seen.empty()) return 0;
  std::nth_element(seen.begin(), seen.begin() + std::ptrdiff_t(seen.size() / 2), seen.end());
  return seen[seen.size() / 2];
}

namespace {

// The runtime returns names only for its own kernels, the driver for those of every library in the process. The
// driver's functions are looked up at run time: cuFuncGetName requires CUDA 12.3.
std::vector<std::string> kernels_of(cudaGraph_t graph) {
  static const Library driver({"libcuda.so.1", "libcuda.so"},
                              {"cuGraphKernelNodeGetParams_v2", "cuFuncGetName", "cuKernelGetName"});
  static const auto params = driver.function<CUresult(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v2*)>(
      "cuGraphKernelNodeGetParams_v2");
  static const auto function_name = driver.function<CUresult(const char**, CUfunction)>("cuFuncGetName");
  static const auto kernel_name = driver.function<CUresult(const char**, CUkernel)>("cuKernelGetName");
  std::vector<std::string> all;
  size_t count = 0;
  if (!params || !function_name || !kernel_name) return all;
  if (cudaGraphGetNodes(graph, nullptr, &count) != cudaSuccess) return all;
  std::vector<cudaGraphNode_t> nodes(count);
  if (cudaGraphGetNodes(graph, nodes.data(), &count) != cudaSuccess) return all;
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    if (cudaGraphNodeGetType(node, &type) != cudaSuccess || type != cudaGraphNodeTypeKernel) continue;
    CUDA_KERNEL_NODE_PARAMS_v2 launched{};
    const char* name = nullptr;
    if (params(node, &launched) != CUDA_SUCCESS) continue;
    const CUresult found =
        launched.func ? function_name(&name, launched.func) : kernel_name(&name, launched.kern);
    if (found == CUDA_SUCCESS && name) all.emplace_back(name);
  }
  return all;
}

}  // namespace

Graph::~Graph() {
  if (ready_) (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(ready_));
}

Status Graph::begin(void* stream) {
  // Relaxed: other threads of this process may allocate meanwhile.
  return status_of("cudaStreamBeginCapture", cudaStreamBeginCapture(on(stream), cudaStreamCaptureModeRelaxed));
}

Status Graph::end(void* stream) {
  cudaGraph_t made = nullptr;
  if (Status s = status_of("cudaStreamEndCapture", cudaStreamEndCapture(on(stream), &made)); !s.ok()) return s;
  cudaGraphExec_t ready = nullptr;
  const Status s = status_of("cudaGraphInstantiate", cudaGraphInstantiate(&ready, made, 0));
  kernels_ = kernels_of(made);
  (void)cudaGraphDestroy(made);
  ready_ = ready;
  return s;
}

Status Graph::launch(void* stream) const {
  return status_of("cudaGraphLaunch", cudaGraphLaunch(static_cast<cudaGraphExec_t>(ready_), on(stream)));
}

}  // namespace attune::cuda
