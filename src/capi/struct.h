// SPDX-License-Identifier: Apache-2.0
// Copies a struct of any version into this version's: missing fields become zero, additional ones must be zero.
#pragma once
#include <algorithm>
#include <cstring>

#include "capi/convert.h"

namespace attune {

// Null stands for all defaults. The first field of T is `size`. No version ends inside a pointer, so `size` is a
// multiple of the pointer alignment.
template <class T>
Status copied(const T* given, const char* what, T& out) {
  out = {};
  if (!given) return Status::good();
  if (given->size < sizeof given->size || given->size > kMostBytes || given->size % alignof(T))
    return Status::no(what, ".size = ", given->size, " is not the size of its struct");
  const char* bytes = reinterpret_cast<const char*>(given);
  for (size_t n = sizeof out; n < given->size; ++n)
    if (bytes[n]) return Status::no(what, ": a field is set that this version does not have");
  std::memcpy(&out, given, std::min<size_t>(given->size, sizeof out));
  return Status::good();
}

}  // namespace attune
