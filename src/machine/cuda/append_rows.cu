// SPDX-License-Identifier: Apache-2.0
// append_rows.h on a GPU. The copies are the parameter of a kernel: a warp takes a row, 16 bytes per lane if all rows
// are aligned, otherwise 1.
#include <algorithm>

#include <cuda_runtime.h>

#include "machine/append_rows.h"
#include "machine/cuda/launch.h"

namespace attune::cuda {
namespace {

constexpr int kMost = 40, kThreads = 256, kWarps = kThreads / 32;
constexpr int64_t kMostBlocks = 512;  // per copy; above, warps take several rows

struct One {
  const char* from;
  char* to;
  Strides from_step, to_step;  // bytes
  uint32_t seq, head, rows;
  int32_t bytes;               // per row
  int32_t width;               // bytes at once
};
struct Params {
  uint32_t blocks;  // per copy
  One copy[kMost];
};
static_assert(sizeof(Params) <= 4096);

template <class Vector>
__device__ void copy_row(const char* from, char* to, int bytes) {
  for (int n = threadIdx.x % 32; n < bytes / int(sizeof(Vector)); n += 32)
    reinterpret_cast<Vector*>(to)[n] = reinterpret_cast<const Vector*>(from)[n];
}

__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ Params x) {
  const One& c = x.copy[blockIdx.x / x.blocks];
  for (uint32_t row = blockIdx.x % x.blocks * kWarps + threadIdx.x / 32; row < c.rows; row += x.blocks * kWarps) {
    const uint32_t token = row / c.head;
    const int64_t h = row - token * c.head, s = token % c.seq, b = token / c.seq;
    const char* from = c.from + b * c.from_step.batch + s * c.from_step.seq + h * c.from_step.head;
    char* to = c.to + b * c.to_step.batch + s * c.to_step.seq + h * c.to_step.head;
    if (c.width == 16) copy_row<uint4>(from, to, c.bytes);
    else copy_row<char>(from, to, c.bytes);
  }
}

Strides in_bytes(const Tensor& t) {
  const int64_t size = size_of(t.dtype);
  return {t.stride.batch * size, t.stride.seq * size, t.stride.head * size};
}
bool aligned(const void* data, const Strides& s, int bytes) {
  return (int64_t(reinterpret_cast<uintptr_t>(data)) | s.batch | s.seq | s.head | bytes) % 16 == 0;
}

int64_t rows_of(const Tensor& t) { return int64_t(t.extent.batch) * t.extent.seq * t.extent.head; }

One one_of(const Copy& c) {
  One x{.from = static_cast<const char*>(c.from.data), .to = static_cast<char*>(c.to.data),
        .from_step = in_bytes(c.from), .to_step = in_bytes(c.to), .seq = uint32_t(c.to.extent.seq),
        .head = uint32_t(c.to.extent.head), .rows = uint32_t(rows_of(c.to)),
        .bytes = c.to.extent.dim * size_of(c.to.dtype), .width = 1};
  if (aligned(x.from, x.from_step, x.bytes) && aligned(x.to, x.to_step, x.bytes)) x.width = 16;
  return x;
}

}  // namespace

Status copy_all(std::span<const Copy> all, void* stream) {
  const DeviceGuard use(all[0].to.device_index);
  if (!use.status.ok()) return use.status.after("copy: ");
  for (size_t first = 0; first < all.size(); first += kMost) {
    Params x{};
    const size_t count = std::min<size_t>(kMost, all.size() - first);
    int64_t blocks = 0;
    for (size_t n = 0; n < count; ++n) {
      const int64_t rows = rows_of(all[first + n].to);
      if (rows > INT32_MAX) return Status::unsupported("copy: ", rows, " rows are over 2^31 - 1");
      x.copy[n] = one_of(all[first + n]);
      blocks = std::max(blocks, (rows + kWarps - 1) / kWarps);
    }
    if (!blocks) continue;
    x.blocks = uint32_t(std::min(blocks, kMostBlocks));
    copy_kernel<<<unsigned(x.blocks * count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(x);
    if (Status s = last_error("copy_kernel"); !s.ok()) return s;
  }
  return Status::good();
}

}  // namespace attune::cuda
