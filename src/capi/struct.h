// A struct of this version from one of any: what the caller's does not have is zero, and what it has more must be.
#pragma once
#include <algorithm>
#include <cstring>

#include "capi/convert.h"

namespace attune {

// Null stands for all defaults. T's first field is `size`; no version's ends inside a pointer, so it is a multiple of
// what those are aligned to.
template <class T>
Status copied(const T* given, const char* what, T& out) {
  out = {};
  if (!given) return Status::good();
  if (given->size < sizeof given->size || given->size > kMostBytes || given->size % alignof(T))
    return Status::no(what, ".size = ", given->size, " is not that of its struct");
  const char* bytes = reinterpret_cast<const char*>(given);
  for (size_t n = sizeof out; n < given->size; ++n)
    if (bytes[n]) return Status::no(what, ": a field is set that this version does not know");
  std::memcpy(&out, given, std::min<size_t>(given->size, sizeof out));
  return Status::good();
}

}  // namespace attune
