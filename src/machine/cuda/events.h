// SPDX-License-Identifier: Apache-2.0
// GPU support for a timer: marks on a stream, a gate that holds the stream while work is enqueued behind it, the SM
// clock, and captured graphs. Plain types and no CUDA header; a build without CUDA has all of it, and each function
// refuses with a sentence. Functions without an index use the current GPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace attune::cuda {

struct Facts {
  size_t l2_bytes = 0, free_bytes = 0;
  int sms = 0;
  std::string pci{};      // "0000:17:00.0": the address that NVML uses
  std::string runtime{};  // "13.0", of this build
  std::string driver{};   // the newest CUDA version that the driver supports
};
Status facts_of(int index, Facts& out);

Status fill(void* gpu, unsigned char value, size_t bytes, void* stream);
Status copy_inside(void* to, const void* from, size_t bytes, void* stream);
Status launch_nothing(void* stream);  // an empty kernel
// Makes persisting L2 lines of the current GPU ordinary ones; otherwise a flush leaves them in place. It does not wait:
// 3 us on an H200, 4 to 8 us if lines were persisting (CUDA 13.0).
Status release_kept_lines();

// The GPU itself measures the times between marks, in steps of about half a microsecond.
class Marks {
 public:
  Marks() = default;
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;
  ~Marks();
  Status open(int index, int count);
  int count() const { return count_; }
  Status set(int n, void* stream);
  Status between(int from, int to, double& ns) const;  // after waiting for the stream

 private:
  [[maybe_unused]] void** events_ = nullptr;
  [[maybe_unused]] int count_ = 0, index_ = 0;
};

// Holds a stream until the host releases it, so that everything enqueued behind it runs without a gap. A host that
// cannot release it (a full queue, a module that is loaded first) would wait forever, so the gate opens automatically
// after kPatience.
class Gate {
 public:
  static constexpr double kPatience = 0.1;  // seconds
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate();
  Status open(int index);
  Status hold(void* stream);
  void release();
  bool gave_up() const;  // for the last hold, after waiting for the stream

 private:
  // Visible to both sides: [0] the hold that may go, [1] the last hold that gave up.
  [[maybe_unused]] uint32_t* shared_ = nullptr;
  [[maybe_unused]] uint32_t held_ = 0;
  [[maybe_unused]] int index_ = 0;
};

// The actual SM clock between two points of a stream: cycles divided by nanoseconds, on each SM.
class Ticks {
 public:
  Ticks() = default;
  Ticks(const Ticks&) = delete;
  Ticks& operator=(const Ticks&) = delete;
  ~Ticks();
  Status open(int index);
  Status set(int which, void* stream);  // 0: the first point, 1: the second
  double megahertz() const;             // after waiting for the stream; 0: unknown

 private:
  [[maybe_unused]] uint64_t* shared_ = nullptr;  // [2][sms] of cycles, nanoseconds
  [[maybe_unused]] int sms_ = 0, index_ = 0;
};

// Work of a stream, captured once and replayed with one launch.
class Graph {
 public:
  Graph() = default;
  Graph(Graph&& other) noexcept : ready_(other.ready_), kernels_(std::move(other.kernels_)) { other.ready_ = nullptr; }
  Graph& operator=(const Graph&) = delete;
  ~Graph();
  static Status begin(void* stream);  // work enqueued from here on is captured and not run
  Status end(void* stream);           // always after begin(), even if the captured work failed
  Status launch(void* stream) const;
  // Its kernels by their names in the binary; empty if the driver does not return them (before CUDA 12.3).
  const std::vector<std::string>& kernels() const { return kernels_; }

 private:
  [[maybe_unused]] void* ready_ = nullptr;
  std::vector<std::string> kernels_{};
};

}  // namespace attune::cuda
