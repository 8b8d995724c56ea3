// Copies that do not wait, and the marks that order them between streams: what moves data from rank to rank. Plain
// types and no CUDA header; in a build without CUDA all of it exists and refuses with a sentence.
#pragma once
#include <cstddef>
#include <utility>

#include "core/status.h"

namespace attune::cuda {

// A point of a stream. Made for one GPU, used again and again.
class Mark {
 public:
  Mark() = default;
  Mark(Mark&& other) noexcept { std::swap(event_, other.event_), std::swap(index_, other.index_); }
  Mark& operator=(Mark&& other) noexcept {
    return std::swap(event_, other.event_), std::swap(index_, other.index_), *this;
  }
  ~Mark();
  Status open(int index);              // nothing to do where it is open already
  Status set(void* stream);            // here
  Status before(void* stream) const;   // `stream` goes on after the mark; nobody waits
  Status passed(bool& out) const;

 private:
  [[maybe_unused]] void* event_ = nullptr;
  [[maybe_unused]] int index_ = 0;
};

// Host and GPU memory in any direction, in the order of the stream. Between GPUs too.
Status copy_later(void* to, const void* from, size_t bytes, void* stream);
bool capturing(void* stream);

// Memory of the host that a GPU copies from and to by itself.
class Pinned {
 public:
  Pinned() = default;
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned();
  Status at_least(size_t bytes);  // what was there is lost where it grows
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace attune::cuda
