// A map of 16-bit numbers, {column, row, head, batch}, copied `box` rows of 64 columns at a time; or of f32 numbers,
// {column, row, batch}, `line` of them at a time, as they lie.
#pragma once
#include "tests/emulated/gpu.h"
#include "vector_types.h"

struct CUtensorMap {
  char* data;
  int64_t row, head, batch;  // strides
  int columns, rows, heads, batches, box;
  int line = 0;
};
