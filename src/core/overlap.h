// SPDX-License-Identifier: Apache-2.0
// Which memory a tensor covers, and whether two tensors share an element. Byte ranges nearly always decide; where they
// intersect, rows are compared. So q, k and v may be slices of one packed tensor [b, s, 3, h, d], and so may their
// gradients.
#pragma once
#include <span>
#include <string>

#include "core/status.h"
#include "core/tensor.h"

namespace attune {

inline constexpr int64_t kMaxBytes = int64_t(1) << 56;  // limit of a span, from a tensor's first byte to its last

struct Bytes {
  uintptr_t first, last;  // half-open; empty if equal. Uninitialised: check() makes an array of these per call
  bool meets(const Bytes& b) const { return first < b.last && b.first < last; }
};

// False if extents or strides are negative, or if the span exceeds kMaxBytes or the address space.
bool bytes_of(const Tensor&, Bytes& out);

// For tensors that bytes_of() accepts. Exact, except that layouts whose decision would take over 2^12 steps count as
// overlapping. No packing of whole axes comes near that limit.
bool share_memory(const Tensor&, const Tensor&);

// Whether two elements of one tensor may share an address: its axes, sorted by stride, do not nest. Conservative: a
// layout that does not nest but never collides also counts as overlapping.
bool overlaps_itself(const Tensor&);

// A named tensor of a call other than attention.
struct Placed { std::string name; Tensor tensor; bool written; };
// Checks that every span is valid and that nothing overlaps a written tensor.
Status check_places(std::span<const Placed>);

}  // namespace attune
