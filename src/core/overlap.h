// Which memory a tensor covers, and whether two tensors share an element of it. Byte ranges decide nearly always; where
// they meet, the rows are compared, so that q, k and v may be slices of one packed tensor [b, s, 3, h, d] and so may
// their gradients.
#pragma once
#include <span>
#include <string>

#include "core/status.h"
#include "core/tensor.h"

namespace attune {

inline constexpr int64_t kMaxBytes = int64_t(1) << 56;  // from a tensor's first byte to its last: the limit of spans

struct Bytes {
  uintptr_t first, last;  // half open; empty where equal. Not initialised: check() makes a row of these on every call
  bool meets(const Bytes& b) const { return first < b.last && b.first < last; }
};

// False where extents or strides are negative, or the last byte is over kMaxBytes away or past the end of memory.
bool bytes_of(const Tensor&, Bytes& out);

// Of tensors that bytes_of() accepts. Exact, except that layouts so entangled that a decision would take over 2^12
// steps count as overlapping: no packing of whole axes comes near that.
bool share_memory(const Tensor&, const Tensor&);

// Whether two elements of one tensor may lie on each other: its axes, by stride, do not nest. A layout of which no axis
// is a multiple of the next but which still never collides is counted as overlapping too.
bool overlaps_itself(const Tensor&);

// A tensor of a call that is no attention, by its name.
struct Placed { std::string name; Tensor tensor; bool written; };
// That each has its span, and that nothing else lies where one is written.
Status check_places(std::span<const Placed>);

}  // namespace attune
