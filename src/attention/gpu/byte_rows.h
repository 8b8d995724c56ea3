// SPDX-License-Identifier: Apache-2.0
// Rows of a tensor as kernels address them: contiguous fields, strides in bytes.
#pragma once
#include "core/tensor.h"

namespace attune::sm80 {

struct ByteRows {
  char* data;
  int64_t batch, seq, head;
  __device__ char* row(int64_t b, int64_t s, int64_t h) const { return data + b * batch + s * seq + h * head; }
};

inline ByteRows byte_rows(const Tensor& t) {
  const int64_t size = size_of(t.dtype);
  return {static_cast<char*>(t.data), t.stride.batch * size, t.stride.seq * size, t.stride.head * size};
}

}  // namespace attune::sm80
