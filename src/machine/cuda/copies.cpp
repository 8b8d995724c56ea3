// SPDX-License-Identifier: Apache-2.0
#include "machine/cuda/copies.h"

#include <cuda_runtime.h>

#include "machine/cuda/launch.h"

namespace attune::cuda {
namespace {

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
  const cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
  if (Status s = status_of("cudaEventCreateWithFlags", error); !s.ok()) return s;
  *this = Mark();
  event_ = made, index_ = index;
  return Status::good();
}

Status Mark::set(void* stream) { return status_of("cudaEventRecord", cudaEventRecord(of(event_), on(stream))); }
Status Mark::before(void* stream) const {
  return status_of("cudaStreamWaitEvent", cudaStreamWaitEvent(on(stream), of(event_), 0));
}

Status Mark::passed(bool& out) const {
  const cudaError_t error = cudaEventQuery(of(event_));
  out = error == cudaSuccess;
  if (error == cudaErrorNotReady) return (void)cudaGetLastError(), Status::good();
  return status_of("cudaEventQuery", error);
}

Status copy_later(void* to, const void* from, size_t bytes, void* stream) {
  return status_of("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on(stream)));
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
  if (Status s = status_of("cudaHostAlloc", cudaHostAlloc(&place, bytes, cudaHostAllocPortable)); !s.ok())
    return Status::failure(s.code, s.message, " for ", bytes, " bytes");
  data_ = static_cast<std::byte*>(place), bytes_ = bytes;
  return Status::good();
}

}  // namespace attune::cuda
