// SPDX-License-Identifier: Apache-2.0
#include "machine/append_rows.h"

#include <cstring>

#include "core/problem.h"

namespace attune {
namespace {

bool alike(const Extents& a, const Extents& b) {
  return a.batch == b.batch && a.seq == b.seq && a.head == b.head && a.dim == b.dim;
}

void copy_rows(const Copy& c) {
  const Extents e = c.to.extent;
  const size_t bytes = size_t(e.dim) * size_t(size_of(c.to.dtype));
  for (int b = 0; b < e.batch; ++b)
    for (int s = 0; s < e.seq; ++s)
      for (int h = 0; h < e.head; ++h) std::memcpy(row_address(c.to, b, s, h), row_address(c.from, b, s, h), bytes);
}

}  // namespace

Status copy_all(std::span<const Copy> all, void* stream) {
  if (all.empty()) return Status::good();
  const Tensor& first = all[0].to;
  for (const Copy& c : all) {
    if (!alike(c.from.extent, c.to.extent)) return Status::no("copy: the extents of source and destination differ");
    if (c.from.dtype != c.to.dtype)
      return Status::no("copy: dtype ", name(c.from.dtype), " is not ", name(c.to.dtype));
    for (const Tensor* t : {&c.from, &c.to})
      if (t->device != first.device || t->device_index != first.device_index)
        return Status::no("copy: the tensors are on different devices");
  }
  if (first.device == DeviceKind::cuda) return cuda::copy_all(all, stream);
  for (const Copy& c : all) copy_rows(c);
  return Status::good();
}

}  // namespace attune
