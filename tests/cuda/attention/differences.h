// SPDX-License-Identifier: Apache-2.0
// Compares GPU memory on the GPU, so that a thousand results can be compared with the first.
#pragma once
#include <cstddef>

#include "core/status.h"

namespace attune {

// Adds the number of bytes in which `a` and `b` differ to `count`. All pointers are device memory; runs in stream
// order.
Status count_differences(const void* a, const void* b, size_t bytes, unsigned long long* count, void* stream);

}  // namespace attune
