#include "attention/sm80/backward/instances.h"

namespace attune::sm80 {

BackwardKernels backward_kernels_96() {
  // queries, keys; warps over keys, over queries; queries of a step; warps of dK and dV over keys, of dQ over queries;
  // stages; blocks
  static constinit BackwardKernel keys[] = {
      backward_keys_row<96, KeyShape<64, 128, 4, 2, 32, 4, 4, 3, 1>, false, Room::large>(),
      backward_keys_row<96, KeyShape<64, 128, 4, 2, 32, 4, 4, 1, 1>, false, Room::middle>(),
      backward_keys_row<96, KeyShape<64, 64, 2, 2, 32, 2, 2, 1, 1>, false, Room::small>(),
      backward_keys_row<96, KeyShape<64, 64, 4, 2, 32, 4, 4, 1, 1>, true, Room::any>(),
  };
  // queries, keys, stages, blocks
  static constinit BackwardKernel rows = backward_rows_row<96, RowShape<64, 64, 1, 2>>();
  return {keys, &rows};
}

}  // namespace attune::sm80
