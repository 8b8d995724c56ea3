// SPDX-License-Identifier: Apache-2.0
// Memory in the C interface: the pools of the GPUs, and the CPU buffers lent to threads.
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "capi/convert.h"
#include "capi/local.h"
#include "machine/cuda/pool.h"

using namespace attune;

namespace {

constexpr int kCpu = -1;

// "cuda:0", "cuda" for the first, "cpu" or null. Does not call the driver, which would cost more than a buffer.
Status index_of(const char* device, int& out) {
  const std::string_view word = device ? device : "cpu";
  out = word == "cpu" ? kCpu : 0;
  if (word == "cpu" || word == "cuda") return Status::good();
  if (word.starts_with("cuda:")) {
    const std::string_view number = word.substr(5);
    const char* const end = number.data() + number.size();
    const auto read = std::from_chars(number.data(), end, out);
    if (read.ec == std::errc() && read.ptr == end && out >= 0) return Status::good();
  }
  return Status::no("device '", word, "' is not cpu, cuda or cuda:#");
}

Status gpu_of(const char* device, int& out) {
  if (Status s = index_of(device, out); !s.ok()) return s;
  if (out != kCpu) return Status::good();
  return Status::no("memory: the CPU has no pool; callers allocate their own buffers there");
}

Status write(const attune_memory& all, attune_memory& out) {
  const size_t size = out.size;
  if (size < offsetof(attune_memory, block_bytes) || size > kMostBytes)
    return Status::no("memory.size = ", size, " is not sizeof(attune_memory)");
  constexpr size_t kFirst = sizeof out.size;
  auto* const to = reinterpret_cast<char*>(&out);
  std::memcpy(to + kFirst, reinterpret_cast<const char*>(&all) + kFirst, std::min(size, sizeof all) - kFirst);
  if (size > sizeof all) std::memset(to + sizeof all, 0, size - sizeof all);
  return Status::good();
}

attune_memory of_cpu() {
  const LentTotals& all = lent_totals();
  attune_memory m{};
  m.live_buffers = all.buffers.load(), m.live_bytes = m.block_bytes = m.held_bytes = all.bytes.load();
  m.high_buffers = all.high_buffers.load(), m.high_bytes = m.high_reserved_bytes = all.high_bytes.load();
  return m;
}

attune_memory of_gpu(const cuda::PoolState& state) {
  const PoolStatistics& c = state.counts;
  attune_memory m{};
  m.keeps = state.keeps;
  m.live_buffers = c.live_buffers, m.live_bytes = c.live_bytes, m.block_bytes = c.block_bytes;
  m.free_blocks = c.free_blocks, m.free_bytes = c.free_bytes, m.held_bytes = c.held_bytes;
  m.high_buffers = c.high_buffers, m.high_bytes = c.high_bytes, m.high_reserved_bytes = c.high_reserved;
  m.hits = c.hits, m.misses = c.misses, m.crossed = c.crossed, m.waited = c.waited;
  m.given_back = c.given_back, m.full = c.full, m.graph_buffers = state.graph_buffers;
  return m;
}

}  // namespace

int attune_memory_allocate(const char* device, size_t bytes, void* stream, void** out) {
  return answer([&] {
    int index = 0;
    if (!out) return Status::no("out is null");
    *out = nullptr;
    if (Status s = gpu_of(device, index); !s.ok()) return s;
    return cuda::allocate(index, bytes, stream, *out);
  });
}

int attune_memory_free(const char* device, void* data, void* stream) {
  return answer([&] {
    int index = 0;
    if (Status s = gpu_of(device, index); !s.ok()) return s;
    return cuda::free(index, data, stream);
  });
}

int attune_memory_trim(const char* device, size_t keep) {
  return answer([&] {
    int index = 0;
    if (Status s = index_of(device, index); !s.ok()) return s;
    if (index != kCpu) return cuda::trim(index, keep);
    if (local().lent.bytes() > keep) local().lent.release();
    return Status::good();
  });
}

int attune_memory_reset(const char* device) {
  return answer([&] {
    int index = 0;
    if (Status s = index_of(device, index); !s.ok()) return s;
    if (index != kCpu) return cuda::reset_marks(index);
    LentTotals& all = lent_totals();
    all.high_buffers.store(all.buffers.load()), all.high_bytes.store(all.bytes.load());
    return Status::good();
  });
}

int attune_memory_statistics(const char* device, attune_memory* out) {
  return answer([&] {
    int index = 0;
    if (!out) return Status::no("out is null");
    if (Status s = index_of(device, index); !s.ok()) return s;
    if (index == kCpu) return write(of_cpu(), *out);
    cuda::PoolState state;
    if (Status s = cuda::pool_state(index, state); !s.ok()) return s;
    return write(of_gpu(state), *out);
  });
}
