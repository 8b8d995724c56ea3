// Forward attention for Hopper: parts of the last tiles of queries (shares.h). What a block has of one goes to memory
// as it lies in registers, and a kernel behind it adds the parts up, in the order of the keys.
#pragma once
#include <vector_types.h>

#include "attention/tile/stream_k.h"
#include "core/tensor.h"
#include "plan/backend.h"

namespace attune::sm90 {

// Of a warp's 16 rows: the sums as a lane holds them, four at a time, [dim_v / 8][lane], then maxima and sums of its
// two rows. [place][warp]
ATTUNE_HD constexpr int part_size(int dim_v) { return (dim_v / 8 + 1) * 32; }

struct PartsParams {
  StreamK stream_k;
  const float4* parts;
  int warps, dim;                 // of a query tile; of the kernel's values
  int first, tiles_of_unit;       // the first shared tile of queries, as the kernel counts them
  int heads, rows, dim_v;
  char* out;
  Strides out_stride;
  float* lse;                     // null: not wanted
  Strides lse_stride;
};

Status join_parts(std::string_view who, const Problem&, const PartsParams&, int device, Stream);

}  // namespace attune::sm90
