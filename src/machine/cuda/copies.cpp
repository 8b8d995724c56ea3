#include "machine/cuda/copies.h"

#include <cuda_runtime.h>

#include "machine/cuda/runtime.h"

namespace attune::cuda {
namespace {

Status said(std::string_view what, cudaError_t error) {
  if (error == cudaSuccess) return Status::good();
  (void)cudaGetLastError();
  return Status::no(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

cudaStream_t on(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t of(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

Mark::~Mark() {
  if (!event_) return;
  const DeviceGuard use(index_);
  (void)cudaEventDestroy(of(event_));
}

Status Mark::open(int index) {
  if (event_ && index_ == index) return Status::good();
  const DeviceGuard use(index);
  if (!use.status.ok()) return use.status;
  cudaEvent_t made = nullptr;
  if (Status s = said("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&made, cudaEventDisableTiming)); !s.ok())
    return s;
  *this = Mark();
  event_ = made, index_ = index;
  return Status::good();
}

Status Mark::set(void* stream) { return said("cudaEventRecord", cudaEventRecord(of(event_), on(stream))); }
Status Mark::before(void* stream) const {
  return said("cudaStreamWaitEvent", cudaStreamWaitEvent(on(stream), of(event_), 0));
}

Status Mark::passed(bool& out) const {
  const cudaError_t error = cudaEventQuery(of(event_));
  out = error == cudaSuccess;
  if (error == cudaErrorNotReady) return (void)cudaGetLastError(), Status::good();
  return said("cudaEventQuery", error);
}

Status copy_later(void* to, const void* from, size_t bytes, void* stream) {
  return said("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on(stream)));
}

bool capturing(void* stream) {
  cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(on(stream), &now) != cudaSuccess) return (void)cudaGetLastError(), false;
  return now != cudaStreamCaptureStatusNone;
}

Pinned::~Pinned() {
  if (data_) (void)cudaFreeHost(data_);
}

Status Pinned::at_least(size_t bytes) {
  if (bytes <= bytes_) return Status::good();
  if (data_) (void)cudaFreeHost(data_);
  data_ = nullptr, bytes_ = 0;
  void* place = nullptr;
  if (Status s = said("cudaHostAlloc", cudaHostAlloc(&place, bytes, cudaHostAllocPortable)); !s.ok())
    return Status::no(s.message, " for ", bytes, " bytes");
  data_ = static_cast<std::byte*>(place), bytes_ = bytes;
  return Status::good();
}

}  // namespace attune::cuda
