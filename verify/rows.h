// SPDX-License-Identifier: Apache-2.0
// Rows of tensors as numbers, for code that computes a few of them by the definition and in double.
#pragma once
#include <vector>

#include "verify/world.h"

namespace attune {

using Row = std::vector<double>;

inline double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

inline Row read_row(const Tensor& t, int64_t batch, int64_t seq, int64_t head) {
  Row x(size_t(t.extent.dim));
  for (size_t d = 0; d < x.size(); ++d) x[d] = load(t, batch, seq, head, int64_t(d));
  return x;
}

// The location of row (seq, head) for a reader that swaps the two axes, counting rows in memory.
void swap_axes(const Tensor&, int64_t& seq, int64_t& head);
inline Row read_swapped(const Tensor& t, int64_t batch, int64_t seq, int64_t head) {
  swap_axes(t, seq, head);
  return read_row(t, batch, seq, head);
}

}  // namespace attune
