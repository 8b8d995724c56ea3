// What a timer needs of a GPU: marks on a stream, a gate that holds the stream while work is enqueued behind it, the
// clock of the multiprocessors, captured graphs. Plain types and no CUDA header; in a build without CUDA all of it
// exists and refuses with a sentence. The GPU that is meant is the current one wherever no index is given.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace attune::cuda {

struct Facts {
  size_t l2_bytes = 0, free_bytes = 0;
  int units = 0;           // multiprocessors
  std::string pci{};       // "0000:17:00.0": how NVML finds it
  std::string runtime{};   // "13.0", of this build
  std::string driver{};    // the newest CUDA that the driver knows
};
Status facts_of(int index, Facts& out);

Status fill(void* gpu, unsigned char value, size_t bytes, void* stream);
Status copy_inside(void* to, const void* from, size_t bytes, void* stream);
Status launch_nothing(void* stream);  // an empty kernel
// Lines of the L2 cache that somebody asked to be kept become ordinary ones: a flush leaves them where they
// are otherwise. Of the current GPU. It does not wait: 3 us on an H200, 4 to 8 us where it works (CUDA 13.0).
Status release_kept_lines();

// Times between marks are taken by the GPU itself, in steps of about half a microsecond.
class Marks {
 public:
  Marks() = default;
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;
  ~Marks();
  Status open(int index, int count);
  int count() const { return count_; }
  Status set(int n, void* stream);
  Status between(int from, int to, double& ns) const;  // once the stream was waited for

 private:
  [[maybe_unused]] void** events_ = nullptr;
  [[maybe_unused]] int count_ = 0, index_ = 0;
};

// Holds a stream until the host says go, so that everything enqueued behind it runs without a gap. A host that cannot
// (a full queue, a module that is loaded first) would wait for ever: the gate opens by itself after kPatience.
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
  bool gave_up() const;  // of the last hold, once the stream was waited for

 private:
  // Seen by both sides: [0] the hold that may go, [1] the last that gave up.
  [[maybe_unused]] uint32_t* shared_ = nullptr;
  [[maybe_unused]] uint32_t held_ = 0;
  [[maybe_unused]] int index_ = 0;
};

// The clock that the multiprocessors really had between two points of a stream: cycles by nanoseconds, on each.
class Ticks {
 public:
  Ticks() = default;
  Ticks(const Ticks&) = delete;
  Ticks& operator=(const Ticks&) = delete;
  ~Ticks();
  Status open(int index);
  Status set(int which, void* stream);  // 0: the first point, 1: the second
  double megahertz() const;             // once the stream was waited for; 0: not known

 private:
  [[maybe_unused]] uint64_t* shared_ = nullptr;  // [2][units] of cycles, nanoseconds
  [[maybe_unused]] int units_ = 0, index_ = 0;
};

// Work of a stream, recorded once and replayed with one launch.
class Graph {
 public:
  Graph() = default;
  Graph(Graph&& other) noexcept : ready_(other.ready_), kernels_(std::move(other.kernels_)) { other.ready_ = nullptr; }
  Graph& operator=(const Graph&) = delete;
  ~Graph();
  static Status begin(void* stream);  // what is enqueued from here on is recorded and not run
  Status end(void* stream);           // always after begin(), also where the recorded work failed
  Status launch(void* stream) const;
  // Its kernels by the names in the binary; none where the driver does not say them (before CUDA 12.3).
  const std::vector<std::string>& kernels() const { return kernels_; }

 private:
  [[maybe_unused]] void* ready_ = nullptr;
  std::vector<std::string> kernels_{};
};

}  // namespace attune::cuda
