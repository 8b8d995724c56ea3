// SPDX-License-Identifier: Apache-2.0
#include "core/overlap.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/mask.h"

namespace attune {
namespace {

bool empty(const Tensor& t) { return !t.extent.batch || !t.extent.seq || !t.extent.head || !t.extent.dim; }
int64_t row_bytes(const Tensor& t) { return int64_t(t.extent.dim) * size_of(t.dtype); }

// One axis, in bytes: it changes the distance of two rows by stride * x, with lo <= x <= hi.
struct Term { int64_t stride, lo, hi; };

// Finds whether some choice of x for each term brings the distance strictly between -before and after. Terms are sorted
// by decreasing stride. The reach of the inner terms limits an outer one to two or three candidates if axes nest.
struct Search {
  Term term[6]{};
  int64_t reach_lo[7]{}, reach_hi[7]{};  // sums over terms n and later
  int64_t before = 0, after = 0;         // row size in bytes of each tensor
  int count = 0, budget = 1 << 12;

  void add(int64_t stride, int64_t lo, int64_t hi) {
    if (!stride || lo == hi) return;
    for (int n = 0; n < count; ++n)
      if (term[n].stride == stride) return void((term[n].lo += lo, term[n].hi += hi));
    term[count++] = {stride, lo, hi};
  }
  void add(const Tensor& t, int sign) {
    const int64_t size = size_of(t.dtype);
    const std::pair<int64_t, int64_t> axes[] = {
        {t.stride.batch, t.extent.batch}, {t.stride.seq, t.extent.seq}, {t.stride.head, t.extent.head}};
    for (const auto& [stride, extent] : axes)
      sign > 0 ? add(stride * size, 0, extent - 1) : add(stride * size, 1 - extent, 0);
  }
  void ready() {
    std::sort(term, term + count, [](const Term& a, const Term& b) { return a.stride > b.stride; });
    reach_lo[count] = reach_hi[count] = 0;
    for (int n = count; n-- > 0;) {
      reach_lo[n] = reach_lo[n + 1] + term[n].stride * term[n].lo;
      reach_hi[n] = reach_hi[n + 1] + term[n].stride * term[n].hi;
    }
  }
  bool found(int64_t distance, int n) {
    if (n == count) return -before < distance && distance < after;
    if (--budget < 0) return true;
    const auto& [stride, lo, hi] = term[n];
    const int64_t first = std::max(lo, ceil_div(1 - before - distance - reach_hi[n + 1], stride));
    const int64_t last = std::min(hi, floor_div(after - 1 - distance - reach_lo[n + 1], stride));
    for (int64_t x = first; x <= last; ++x)
      if (found(distance + stride * x, n + 1)) return true;
    return false;
  }
};

}  // namespace

bool bytes_of(const Tensor& t, Bytes& out) {
  const auto first = reinterpret_cast<uintptr_t>(t.data);
  out = {first, first};
  const auto& [batch, seq, head, dim] = t.extent;
  if ((batch | seq | head | dim) < 0 || (t.stride.batch | t.stride.seq | t.stride.head) < 0) return false;
  if (empty(t)) return true;
  int64_t bytes = row_bytes(t);
  const std::pair<int64_t, int64_t> axes[] = {{t.stride.batch, batch}, {t.stride.seq, seq}, {t.stride.head, head}};
  for (const auto& [stride, extent] : axes) {
    int64_t span;
    if (__builtin_mul_overflow(stride, (extent - 1) * size_of(t.dtype), &span) || span > kMaxBytes) return false;
    bytes += span;
  }
  out.last = first + uintptr_t(bytes);
  return bytes <= kMaxBytes && out.last >= first;
}

bool share_memory(const Tensor& a, const Tensor& b) {
  if (empty(a) || empty(b)) return false;
  Bytes in_a, in_b;
  if (!bytes_of(a, in_a) || !bytes_of(b, in_b) || !in_a.meets(in_b)) return false;
  Search s{.before = row_bytes(a), .after = row_bytes(b)};
  s.add(a, 1), s.add(b, -1), s.ready();
  return s.found(int64_t(in_a.first - in_b.first), 0);
}

bool overlaps_itself(const Tensor& t) {
  if (empty(t)) return false;
  std::pair<int64_t, int64_t> axes[] = {
      {t.stride.batch, t.extent.batch}, {t.stride.seq, t.extent.seq}, {t.stride.head, t.extent.head}};
  if (axes[0] < axes[1]) std::swap(axes[0], axes[1]);  // three axes, largest stride first
  if (axes[1] < axes[2]) std::swap(axes[1], axes[2]);
  if (axes[0] < axes[1]) std::swap(axes[0], axes[1]);
  int64_t inside = t.extent.dim;  // elements spanned by the axes handled so far
  for (int n = 2; n >= 0; --n) {
    const auto [stride, extent] = axes[n];
    if (extent == 1) continue;
    if (stride < inside) return true;
    inside += (extent - 1) * stride;
  }
  return false;
}

Status check_places(std::span<const Placed> all) {
  for (const Placed& one : all)
    if (Bytes unused; !bytes_of(one.tensor, unused))
      return Status::no(one.name, ": extents or strides are negative, or reach past the end of memory");
  for (const Placed& one : all) {
    if (!one.written) continue;
    if (overlaps_itself(one.tensor))
      return Status::no(one.name, ": output strides overlap: two elements share an address");
    for (const Placed& other : all)
      if (&other != &one && share_memory(one.tensor, other.tensor))
        return Status::no(one.name, ": output shares memory with ", other.name);
  }
  return Status::good();
}

}  // namespace attune
