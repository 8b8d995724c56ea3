// SPDX-License-Identifier: Apache-2.0
#include "machine/cuda/runtime.h"

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>

#include "machine/cuda/launch.h"

namespace attune::cuda {

Status status_of(std::string_view call, cudaError_t error) {
  if (error == cudaSuccess) return Status::good();
  (void)cudaGetLastError();
  const Code code = error == cudaErrorMemoryAllocation ? Code::out_of_memory : Code::device;
  return Status::failure(code, call, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

std::string_view built_for() { return ATTUNE_CUDA_BUILT_FOR; }

Status has_code(int arch) {
  constexpr int kBuilt[] = {ATTUNE_CUDA_BUILT_LIST}, kPtx = ATTUNE_CUDA_BUILT_PTX;  // 0: none
  for (const int code : kBuilt)
    if (code / 10 == arch / 10 && code <= arch) return Status::good();
  if (kPtx && kPtx <= arch) return Status::good();
  return Status::unsupported("this build of attune has GPU code for ", built_for(), ", but the GPU is sm_", arch,
                             "; ATTUNE_CUDA_ARCHS selects what is built");
}

Status count(int& out) {
  out = 0;
  const cudaError_t error = cudaGetDeviceCount(&out);
  if (error == cudaSuccess && out > 0) return Status::good();
  out = 0;
  if (error == cudaSuccess || error == cudaErrorNoDevice)
    return Status::unsupported("there is no NVIDIA GPU here");
  if (error == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || !driver)
      return Status::unsupported("there is no NVIDIA driver here");
    return Status::unsupported("the NVIDIA driver supports CUDA ", driver / 1000, ".", driver % 1000 / 10,
                               ", but this build requires ", CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10);
  }
  return status_of("cudaGetDeviceCount", error);
}

Status device(int index, Device& out) {
  int all = 0;
  if (Status s = count(all); !s.ok()) return s;
  if (index < 0 || index >= all)
    return Status::no("there ", all == 1 ? "is one GPU, cuda:0" : join("are ", all, " GPUs, from cuda:0 on"));
  cudaDeviceProp found;
  if (Status s = status_of("cudaGetDeviceProperties", cudaGetDeviceProperties(&found, index)); !s.ok()) return s;
  if (Status s = has_code(found.major * 10 + found.minor); !s.ok()) return s.after(found.name, ": ");
  out = {.kind = DeviceKind::cuda,
         .index = index,
         .arch = found.major * 10 + found.minor,
         .units = found.multiProcessorCount,
         .name = found.name};
  return Status::good();
}

Status memory_of(int index, size_t& bytes) {
  const DeviceGuard use(index);
  size_t free = 0;
  if (!use.status.ok()) return use.status;
  return status_of("cudaMemGetInfo", cudaMemGetInfo(&free, &bytes));
}

DeviceGuard::DeviceGuard(int index) {
  int now = 0;
  if (status = status_of("cudaGetDevice", cudaGetDevice(&now)); !status.ok() || now == index) return;
  if (status = status_of("cudaSetDevice", cudaSetDevice(index)); status.ok()) before_ = now;
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0) (void)cudaSetDevice(before_);
}

Memory::~Memory() {
  if (!data_) return;
  const DeviceGuard use(index_);
  (void)cudaFree(data_);
}

Status Memory::allocate(int index, size_t bytes) {
  *this = Memory();
  const DeviceGuard use(index);
  if (!use.status.ok()) return use.status;
  void* place = nullptr;
  if (Status s = status_of("cudaMalloc", cudaMalloc(&place, bytes ? bytes : 1)); !s.ok())
    return Status::failure(s.code, s.message, " for ", bytes, " bytes on cuda:", index);
  data_ = static_cast<std::byte*>(place), bytes_ = bytes, index_ = index;
  return Status::good();
}

OwnStream::~OwnStream() {
  if (!stream_) return;
  const DeviceGuard use(index_);
  (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

Status OwnStream::open(int index) {
  const DeviceGuard use(index);
  if (!use.status.ok()) return use.status;
  cudaStream_t made = nullptr;
  const Status s = status_of("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  if (s.ok()) stream_ = made, index_ = index;
  return s;
}

Status copy_to(void* gpu, const void* host, size_t bytes, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaMemcpyAsync(gpu, host, bytes, cudaMemcpyHostToDevice, on);
  if (error != cudaSuccess) return status_of("cudaMemcpyAsync", error);
  return wait(stream);
}

Status copy_from(void* host, const void* gpu, size_t bytes, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaMemcpyAsync(host, gpu, bytes, cudaMemcpyDeviceToHost, on);
  if (error != cudaSuccess) return status_of("cudaMemcpyAsync", error);
  return wait(stream);
}

Status wait(void* stream) {
  return status_of("cudaStreamSynchronize", cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

Status wait_all(int index) {
  const DeviceGuard use(index);
  return use.status.ok() ? status_of("cudaDeviceSynchronize", cudaDeviceSynchronize()) : use.status;
}

Status reachable(const void* address, int index, std::string_view what) {
  cudaPointerAttributes found;
  if (Status s = status_of("cudaPointerGetAttributes", cudaPointerGetAttributes(&found, address)); !s.ok())
    return s.after(what, ": ");
  if (found.type == cudaMemoryTypeUnregistered)
    return Status::no(what, ": is given as on cuda:", index, ", but its address is not GPU memory");
  if (found.type == cudaMemoryTypeDevice && found.device != index)
    return Status::no(what, ": is given as on cuda:", index, ", but its address is on cuda:", found.device);
  return Status::good();
}

Status failed(std::string_view who, const char* call, cudaError_t error, const Problem& p) {
  const Status s = status_of(join(who, ": ", call), error);
  return Status::failure(s.code, s.message, ", in: ", name(p));
}

uint64_t launch_tag() {
  static const uint64_t first = uint64_t(std::chrono::steady_clock::now().time_since_epoch().count());
  static std::atomic<uint64_t> launches{0};
  // splitmix64: no two counts have the same tag.
  uint64_t x = (first << 20) + (++launches) * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

Status launch(const Launch& l, const Problem& p, const void* params) {
  // Beyond 64 GPUs the limit is raised each time.
  const uint64_t mine = l.device < 64 ? uint64_t(1) << l.device : 0;
  const std::atomic_ref<uint64_t> ready(l.ready->devices);
  // Without the opt-in a CTA has 48 KB in total; kernels have up to 4 KB of static memory beside the dynamic part.
  const int most = l.shared_most > l.shared_bytes ? l.shared_most : l.shared_bytes;
  if (most > 44 * 1024 && !(ready.load(std::memory_order_acquire) & mine)) {
    constexpr auto kWhat = cudaFuncAttributeMaxDynamicSharedMemorySize;
    const cudaError_t error = cudaFuncSetAttribute(l.kernel, kWhat, most);
    if (error != cudaSuccess) return failed(l.who, "cudaFuncSetAttribute", error, p);
    ready.fetch_or(mine, std::memory_order_release);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(l.blocks));
  config.blockDim = dim3(unsigned(l.threads));
  config.dynamicSmemBytes = size_t(l.shared_bytes);
  config.stream = static_cast<cudaStream_t>(l.stream);
  // Requests the shared-memory carve-out that the previous kernel probably has, so that both can share an SM.
  cudaLaunchAttribute dependent[2]{};
  dependent[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent[0].val.programmaticStreamSerializationAllowed = 1;
  dependent[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  dependent[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  config.attrs = dependent, config.numAttrs = l.dependent ? 2 : 0;
  void* all[] = {const_cast<void*>(params)};
  const cudaError_t error = cudaLaunchKernelExC(&config, l.kernel, all);
  return error == cudaSuccess ? Status::good() : failed(l.who, "cudaLaunchKernelExC", error, p);
}

}  // namespace attune::cuda
