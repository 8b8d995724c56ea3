// Forward attention for Hopper: stream-K parts of the last query tiles (tile/stream_k.h). A CTA writes its part to
// memory in register order. A second kernel adds the parts, in the order of the keys.
#pragma once
#include <vector_types.h>

#include "attention/tile/stream_k.h"
#include "core/tensor.h"
#include "plan/backend.h"

namespace attune::sm90 {

// Size of a part of a warp's 16 rows, in float4: the sums as a lane holds them, four at a time, [dim_v / 8][lane], then
// the maxima and sums of its two rows. Layout: [slot][warp].
ATTUNE_HD constexpr int part_size(int dim_v) { return (dim_v / 8 + 1) * 32; }

struct PartsParams {
  StreamK stream_k;
  const float4* parts;
  int warps, dim;            // per query tile; head dim of the kernel's values
  int first, tiles_of_unit;  // first stream-K query tile, as the kernel counts them; query tiles per unit
  int heads, rows, dim_v;
  char* out;
  Strides out_stride;
  float* lse;                // null: not requested
  Strides lse_stride;
};

Status join_parts(std::string_view who, const Problem&, const PartsParams&, int device, Stream);

}  // namespace attune::sm90
