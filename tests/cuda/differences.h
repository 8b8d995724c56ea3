// Compares memory of a GPU where it lies, so that a thousand results can be held against the first.
#pragma once
#include <cstddef>

#include "core/status.h"

namespace attune {

// Adds the number of bytes in which `a` and `b` differ to `count`, all of them on the GPU, in the order of the stream.
Status count_differences(const void* a, const void* b, size_t bytes, unsigned long long* count, void* stream);

}  // namespace attune
