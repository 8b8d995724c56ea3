// NVIDIA GPUs as the rest of the library sees them: plain types and no CUDA header. In a build without CUDA and on a
// machine without a driver all of this exists and refuses with a sentence. What .cu files need beside it is launch.h.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "core/device.h"

namespace attune::cuda {

// "sm_80, sm_89, sm_90 and PTX of sm_90"; "" where this build has no GPU code.
std::string_view built_for();

// Whether this build has code that a GPU of this compute capability (90) runs: made for it or for an earlier one of its
// family, or PTX. Refuses in words that say what would help.
Status has_code(int arch);

// How many GPUs there are, and the index-th of them. A refusal says why there is none.
Status count(int& out);
Status device(int index, Device& out);
Status memory_of(int index, size_t& bytes);

// Makes a GPU the current one of this thread while it lives. Costs two short calls into the runtime.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  Status status{};

 private:
  int before_ = -1;  // the one to go back to; -1: it is the same
};

// Memory of one GPU and a stream of its own, for whoever brings data there: parity, benchmarks, checks. No backend
// allocates.
class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept { return swap(other), *this; }
  ~Memory();
  Status allocate(int index, size_t bytes);  // instead of what it had
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

// Ordered on `stream`. Both return when the bytes have arrived; the second thus waits for what ran before it.
Status copy_to(void* gpu, const void* host, size_t bytes, void* stream);
Status copy_from(void* host, const void* gpu, size_t bytes, void* stream);
Status wait(void* stream);
Status wait_all(int index);  // for all work on the GPU

// gpu[at] = value for each of them, in the order of the stream. Does not wait, and has read `numbers` when it returns;
// `at` must differ from one to the next.
struct Number { int32_t at = 0, value = 0; };
Status scatter(int32_t* gpu, std::span<const Number> numbers, void* stream);

// Whether a GPU can reach this address: memory of that GPU, managed memory, or pinned memory of the host. `what` begins
// the refusal.
Status reachable(const void* address, int index, std::string_view what);

}  // namespace attune::cuda
