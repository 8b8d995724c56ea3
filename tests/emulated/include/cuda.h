// SPDX-License-Identifier: Apache-2.0
// A tensor map of 16-bit numbers, {column, row, head, batch}, copied in boxes of `box` rows of 64 columns. Or a line
// map of f32, {column, head, batch}, copied `box` columns at a time.
#pragma once
#include "tests/emulated/gpu.h"
#include "vector_types.h"

struct CUtensorMap {
  char* data;
  int64_t row, head, batch;  // strides
  int columns, rows, heads, batches, box;
  bool line = false;
};
