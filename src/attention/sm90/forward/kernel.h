// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper: the kernel entry point. Plain scores, 16-bit inputs, f32 softmax and sums. The output
// has the dtype of q, or is f32, which may be a running result.
//
// One persistent CTA per SM takes query tiles, longest first, from a counter. Two threads stream tiles of q, k and v
// into shared memory. Each consumer warpgroup owns 64 queries and does for key tile j
//   issue S(j+1) = Q K(j+1)^T | issue O += P(j) V(j) | softmax of S(j+1) while P(j) V(j) is in flight
// The key tiles of successive query tiles form one unbroken sequence of such steps. The first S of the next query tile
// is issued with the last P V of this one, and O leaves while the second S of the next one runs.
#pragma once
#include <type_traits>

#include "attention/sm90/forward/consumer_band.h"
#include "attention/sm90/forward/consumer_lists.h"
#include "machine/sm80/dependent_launch.h"

namespace attune::sm90 {

// Threads of the producer warpgroup that have a role, each the first of its warp.
enum WarpRole : unsigned {
  kProducer = 0,        // loads k and v; with a list per warpgroup: k
  kTileScheduler = 32,  // takes query tiles and loads q
  kValueProducer = 64,  // with a list per warpgroup: loads v
};

template <class C>
using OwnerOf = std::conditional_t<C::kLists == Lists::each, ListConsumer<C>,
                                   std::conditional_t<C::kOwnKeyTiles, BandConsumer<C>, Consumer<C>>>;

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) forward_kernel(const __grid_constant__ ForwardParams x) {
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), warp = __shfl_sync(~0u, int(threadIdx.x) / 32 % 4, 0);
  if (threadIdx.x == 0) {
    for (int n = 0; n < C::kQStages; ++n)
      barrier_init(shared + C::kQFull + 8 * n, 1), barrier_init(shared + C::kQEmpty + 8 * n, C::kReleases * 32);
    for (int n = 0; n < C::kStages; ++n) {
      barrier_init(shared + C::kKFull + 8 * n, 1), barrier_init(shared + C::kKEmpty + 8 * n, C::kReleases);
      barrier_init(shared + C::kVFull + 8 * n, 1), barrier_init(shared + C::kVEmpty + 8 * n, C::kReleases);
    }
    for (int n = 0; n < 8; ++n) barrier_init(shared + C::kTileReady + 8 * n, 1);  // and kPrefetchNext
    barrier_init_done();
  }
  // Starts while the previous kernel ends. If that one builds a tile table, TileScheduler waits for it. The next kernel
  // may start early too, unless it could find stale rows in a cache.
  if (!(C::kAhead && x.lists.count)) sm80::wait_for_previous();
  if (!x.accumulate) sm80::admit_next();
  __syncthreads();
  if (group == 0) {
    shrink_registers<C::kProducerRegisters>();
    if constexpr (C::kLists == Lists::each) {
      if (threadIdx.x == WarpRole::kProducer) ListProducer<C>{x, shared}.template run<false>();
      if (threadIdx.x == WarpRole::kValueProducer) ListProducer<C>{x, shared}.template run<true>();
    } else {
      if (threadIdx.x == WarpRole::kProducer) Producer<C>{x, shared}.run();
    }
    if (threadIdx.x == WarpRole::kTileScheduler) TileScheduler<C>{x, shared}.run();
  } else {
    grow_registers<C::kConsumerRegisters>();
    OwnerOf<C> consumer{x, shared, group - 1, warp, int(threadIdx.x % 32)};
    consumer.run();
  }
}

}  // namespace attune::sm90
