#include "attention/sm80/backward/instances.h"

namespace attune::sm80 {

BackwardKernels backward_kernels_192() {
  // queries, keys; warps over keys, over queries; queries of a step; warps of dK and dV over keys, of dQ over queries;
  // stages; blocks
  static constinit BackwardKernel keys[] = {
      backward_keys_row<192, KeyShape<64, 64, 2, 4, 16, 2, 2, 2, 1>, false, Room::large>(),
      backward_keys_row<192, KeyShape<64, 64, 4, 2, 32, 2, 2, 1, 1>, false, Room::middle>(),
      backward_keys_row<192, KeyShape<32, 32, 2, 2, 16, 2, 2, 1, 1>, false, Room::small>(),
      backward_keys_row<192, KeyShape<32, 32, 2, 2, 16, 2, 2, 1, 1>, true, Room::any>(),
  };
  // queries, keys, stages, blocks
  static constinit BackwardKernel rows = backward_rows_row<192, RowShape<64, 32, 1, 2>>();
  return {keys, &rows};
}

}  // namespace attune::sm80
