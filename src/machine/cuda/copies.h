// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies, and the marks that order them between streams: they move data from rank to rank. Plain types and
// no CUDA header; a build without CUDA has all of it, and each function refuses with a sentence.
#pragma once
#include <cstddef>
#include <utility>

#include "core/status.h"

namespace attune::cuda {

// A point in a stream. Created for one GPU and reused.
class Mark {
 public:
  Mark() = default;
  Mark(Mark&& other) noexcept { std::swap(event_, other.event_), std::swap(index_, other.index_); }
  Mark& operator=(Mark&& other) noexcept {
    return std::swap(event_, other.event_), std::swap(index_, other.index_), *this;
  }
  ~Mark();
  Status open(int index);             // does nothing if already open
  Status set(void* stream);           // marks this point of the stream
  Status before(void* stream) const;  // `stream` continues after the mark; the host does not wait
  Status passed(bool& out) const;

 private:
  [[maybe_unused]] void* event_ = nullptr;
  [[maybe_unused]] int index_ = 0;
};

// Copies between host and GPU memory in any direction, also between GPUs, in stream order.
Status copy_later(void* to, const void* from, size_t bytes, void* stream);
bool capturing(void* stream);

// Pinned host memory, which a GPU copies from and to directly.
class Pinned {
 public:
  Pinned() = default;
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned();
  Status at_least(size_t bytes);  // contents are lost when it grows
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace attune::cuda
