// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper: partial results of stream-K query tiles (tile/stream_k.h). A CTA writes its partial
// result to memory in register order. A second kernel combines them, in the order of the keys.
#pragma once
#include <vector_types.h>

#include "attention/tile/stream_k.h"
#include "core/status.h"
#include "core/tensor.h"

namespace attune::cuda {
class Launcher;
}

namespace attune::sm90 {

// Size of the partial result of a warp's 16 rows, in float4: the sums as a lane holds them, four at a time, [dim_v /
// 8][lane], then the maxima and sums of its two rows. Layout: [slot][warp].
ATTUNE_HD constexpr int partial_size(int dim_v) { return (dim_v / 8 + 1) * 32; }

struct CombineParams {
  StreamK stream_k;
  const float4* partials;
  int warps, dim;            // per query tile; head dim of the kernel's values
  int first, tiles_of_head;  // first stream-K query tile, as the kernel counts them; query tiles per head
  int heads, rows, dim_v;
  char* out;
  Strides out_stride;
  float* lse;                // null: not requested
  Strides lse_stride;
};

// Writes out and lse of the stream-K query tiles; out has this dtype.
Status combine_partials(const cuda::Launcher&, DType, const CombineParams&);

}  // namespace attune::sm90
