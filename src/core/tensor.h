// SPDX-License-Identifier: Apache-2.0
// Tensors: borrowed memory with named axes and explicit strides. Every tensor has the same four axes; a vector or a
// matrix has extent 1 on the others.
#pragma once
#include "core/number.h"

namespace attune {

enum class DeviceKind : int32_t { cpu, cuda };

// Axes are always named in this order; the strides define the memory order.
struct Extents { int32_t batch = 1, seq = 1, head = 1, dim = 1; };
// In elements; dim is contiguous. An axis of extent 1 has stride 0, so indexing past it broadcasts.
struct Strides { int64_t batch = 0, seq = 0, head = 0; };

// The tensor at the API: untyped, so it can be built from DLPack.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::none;
  DeviceKind device = DeviceKind::cpu;
  int32_t device_index = 0;
  Extents extent{};
  Strides stride{};
};

// The tensor that kernels index: the same, typed.
template <class T>
struct View {
  T* data;
  Extents extent;
  Strides stride;

  ATTUNE_HD T* row(int64_t b, int64_t s, int64_t h) const {
    return data + b * stride.batch + s * stride.seq + h * stride.head;
  }
};

template <class T>
ATTUNE_HD View<T> view(const Tensor& t) { return {static_cast<T*>(t.data), t.extent, t.stride}; }

// Address of row (b, s, h), untyped.
ATTUNE_HD inline char* row_address(const Tensor& t, int64_t b, int64_t s, int64_t h) {
  return static_cast<char*>(t.data) + (b * t.stride.batch + s * t.stride.seq + h * t.stride.head) * size_of(t.dtype);
}

// `count` rows, `rate` apart, starting at row `first`: a segment or a dilated sequence is a view, not a copy.
inline Tensor pick_rows(Tensor t, int64_t first, int32_t count, int64_t rate = 1) {
  t.data = row_address(t, 0, first, 0);
  t.extent.seq = count;
  t.stride.seq *= rate;
  return t;
}

inline Tensor pick_head(Tensor t, int64_t head) {
  t.data = row_address(t, 0, 0, head);
  t.extent.head = 1;
  t.stride.head = 0;
  return t;
}

}  // namespace attune
