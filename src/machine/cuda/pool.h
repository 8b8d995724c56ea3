// SPDX-License-Identifier: Apache-2.0
// The memory pools of the GPUs, one per GPU, created on first use and never destroyed: machine/pool.h over a driver
// pool of our own. Blocks are kept only with ATTUNE_POOL=attune, read at that moment; otherwise the driver manages them
// and only the counting is ours. docs/memory.md explains why.
//
// Captured streams: a graph keeps its addresses, so it never gets a block that may be reused elsewhere. A Borrowed
// buffer becomes an allocation and a free inside the graph, made by the driver. A buffer that would outlive the capture
// is refused.
#pragma once
#include <cstddef>

#include "machine/pool.h"

namespace attune::cuda {

Status allocate(int index, size_t bytes, void* stream, void*& out);
Status free(int index, void* data, void* stream);
Status trim(int index, size_t keep);  // waits for the GPU
Status reset_marks(int index);

struct PoolState {
  PoolStatistics counts{};
  bool keeps = false;          // keeps freed blocks
  uint64_t graph_buffers = 0;  // borrowed inside captures
};
Status pool_state(int index, PoolState& out);

// Memory for one run: taken before its launches and given back after them, both in stream order.
class Borrowed {
 public:
  Borrowed() = default;
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() { (void)give_back(); }
  Status take(int index, size_t bytes, void* stream);
  Status give_back();
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
  [[maybe_unused]] PoolStream on_{};
  [[maybe_unused]] int index_ = 0;
  [[maybe_unused]] bool captured_ = false;
};

}  // namespace attune::cuda
