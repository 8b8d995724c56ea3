// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tests/emulated/gpu.h"

namespace attune::sm90 {

inline uint32_t load_shared(uint32_t from) {
  uint32_t x;
  emulated::reads_shared(from, 4);
  std::memcpy(&x, emulated::shared(from), 4);
  return x;
}

inline int lane_id() { return emulated::lane(); }
inline int grid_size() { return int(emulated::gpu.blocks); }

}  // namespace attune::sm90
