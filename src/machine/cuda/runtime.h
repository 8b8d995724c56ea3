// SPDX-License-Identifier: Apache-2.0
// NVIDIA GPUs as the rest of the library sees them: plain types and no CUDA header. A build without CUDA, or a machine
// without a driver, has all of it, and each function refuses with a sentence. launch.h has the rest that .cu files
// need.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "core/device.h"

namespace attune::cuda {

// "sm_80, sm_89, sm_90 and PTX of sm_90"; "" if this build has no GPU code.
std::string_view built_for();

// Good if this build has code for a GPU of this compute capability (90): built for it, for an earlier member of its
// family, or as PTX. The refusal names a remedy.
Status has_code(int arch);

// The number of GPUs, and the index-th of them. A refusal gives the reason.
Status count(int& out);
Status device(int index, Device& out);
Status memory_of(int index, size_t& bytes);

// Makes a GPU the current one of this thread during its lifetime. Costs two short runtime calls.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  Status status{};

 private:
  int before_ = -1;  // GPU to restore; -1: unchanged
};

// Memory of one GPU and a stream of its own, for code that brings data there: parity, benchmarks, checks. No backend
// allocates.
class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept { return swap(other), *this; }
  ~Memory();
  Status allocate(int index, size_t bytes);  // replaces the previous memory
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int index_ = 0;
  void swap(Memory& other) noexcept {
    std::swap(data_, other.data_), std::swap(bytes_, other.bytes_), std::swap(index_, other.index_);
  }
};

class OwnStream {
 public:
  OwnStream() = default;
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream();
  Status open(int index);
  void* get() const { return stream_; }

 private:
  void* stream_ = nullptr;
  int index_ = 0;
};

// Ordered on `stream`. Both return when the bytes have arrived, so the second also waits for earlier work.
Status copy_to(void* gpu, const void* host, size_t bytes, void* stream);
Status copy_from(void* host, const void* gpu, size_t bytes, void* stream);
Status wait(void* stream);
Status wait_all(int index);  // for all work on the GPU

// gpu[at] = value for each number, in stream order. Does not wait, and has read `numbers` when it returns; every `at`
// must be different.
struct Number { int32_t at = 0, value = 0; };
Status scatter(int32_t* gpu, std::span<const Number> numbers, void* stream);

// Good if the GPU can access this address: its own memory, managed memory, or pinned host memory. `what` begins the
// refusal.
Status reachable(const void* address, int index, std::string_view what);

}  // namespace attune::cuda
