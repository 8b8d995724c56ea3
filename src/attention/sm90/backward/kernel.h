// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper: the fused kernel, between the pre- and postprocessing of gpu/backward_pre_post.h.
//
// A CTA owns 128 keys and walks the query tiles that see one of them, for all heads of the GQA group. dK and dV stay in
// registers and are summed without atomics. One thread streams Q, dO and the rows' statistics. Each of two consumer
// warpgroups owns 64 keys.
#pragma once
#include "attention/sm90/backward/prepare_ahead.h"
#include "attention/sm90/backward/consumer.h"
#include "attention/sm90/backward/list_walk.h"

namespace attune::sm90 {

// A persistent CTA, which takes the next free tile. The heads of the first tiles are already prepared. In a
// deterministic order the first tile comes from the counter too: a CTA that waits for another tile must be sure that it
// has started.
template <class C>
__device__ void persist(const typename C::Params& x, uint32_t shared, int group, int warp) {
  KeyTile t;
  if (group == kProducerGroup) {
    shrink_registers<C::kProducerRegisters>();
    if constexpr (C::kWalks) return walk_lists<C>(x, shared);
    if constexpr (C::kDeterministic) {
      if (threadIdx.x >= kHelpers) return add_persistent<C>(x, shared);
    } else {
      if (threadIdx.x >= kHelpers) return prepare_others<C>(x);
    }
    if (threadIdx.x > kLoader) return;
    const BackwardProducer<C> producer{x, shared, t};
    uint32_t step = 0, round = 0;
    const auto next = [&] { return (C::kDeterministic ? 0 : grid_size()) + atomicAdd(x.taken, 1); };
    int tile = C::kDeterministic ? next() : int(blockIdx.x);
#pragma unroll 1
    for (; tile < works<C>(x); ++round) {
      t = find_work<C>(x, tile);
      if constexpr (!C::kDeterministic) wait_ready<C>(x, t);
      step = producer.run_persistent(step, round, tile);
      // Two steps before its keys are needed: earlier, a CTA would hold a tile that another one has time for.
      tile = next();
    }
    producer.tell_tile(round, tile);
  } else {
    grow_registers<C::kConsumerRegisters>();
    BackwardConsumer<C> consumer{x, shared, t, group - kFirstConsumer, warp, int(threadIdx.x % 32)};
    consumer.buffer = consumer.again = 0;
#pragma unroll 1
    for (uint32_t round = 0;; ++round) {
      const int tile = told_tile<C>(shared, round);
      if (tile >= works<C>(x)) break;
      t = find_work<C>(x, tile);
      if constexpr (C::kWalks) consumer.run_listed(round, tile);
      else consumer.run_persistent(round, tile);
    }
    if constexpr (C::kCarries) consumer.add_last_dq();
    if (threadIdx.x % 32 == 0) wait_stores();
  }
}

// A CTA with one tile.
template <class C>
__device__ void own_one_tile(const typename C::Params& x, uint32_t shared, int group, int warp) {
  int block = int(blockIdx.x);
  if constexpr (C::kDeterministic) {  // a CTA waits for earlier ones, so those must have started
    int* const shared_block = static_cast<int*>(__cvta_shared_to_generic(shared + C::kBlock));
    if (threadIdx.x == 0) *shared_block = int(uint32_t(atomicAdd(x.tickets, 1)) % gridDim.x);
    __syncthreads();
    block = *shared_block;
  }
  const KeyTile t = find_keys<C>(x, block);
  if constexpr (C::kTabled)
    if (t.tiles == 0 && (x.cleared || t.key >= t.keys)) return;
  if (group == kProducerGroup) {
    shrink_registers<C::kProducerRegisters>();
    if (threadIdx.x == kLoader && (C::kListed || t.tiles > 0)) {
      const BackwardProducer<C> producer{x, shared, t};
      if constexpr (C::kListed) producer.run_listed();
      else producer.run();
    }
    if constexpr (C::kDeterministic)
      if (threadIdx.x % 32 == 0 && threadIdx.x > 0 && threadIdx.x <= 32 * C::kAdders && t.tiles > 0)
        BackwardAdder<C>{x, shared, t, threadIdx.x / 32 - 1}.run(0);
  } else {
    grow_registers<C::kConsumerRegisters>();
    BackwardConsumer<C> consumer{x, shared, t, group - kFirstConsumer, warp, int(threadIdx.x % 32)};
    consumer.ask_large_logits();
    consumer.run();
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) backward_kernel(const __grid_constant__ typename C::Params x) {
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), warp = __shfl_sync(~0u, int(threadIdx.x) / 32 % 4, 0);
  if (threadIdx.x == 0) {
    for (int n = 0; n < C::kPlacesK; ++n) {
      barrier_init(shared + C::kKFull + 8 * n, 1);
      if constexpr (C::kPersistent) {
        barrier_init(shared + C::kKEmpty + 8 * n, C::kWarps + C::kAdders);
        barrier_init(shared + C::kTileFull + 8 * n, 1);
      }
    }
    if constexpr (C::kPersistent)
      for (int n = 0; n < C::kPlacesV; ++n)
        barrier_init(shared + C::kVFull + 8 * n, 1), barrier_init(shared + C::kVEmpty + 8 * n, C::kWarps);
    for (int n = 0; n < C::kBuffers; ++n)
      barrier_init(shared + C::kDsFull + 8 * n, C::kWarps), barrier_init(shared + C::kDsEmpty + 8 * n, C::kWarps);
    for (int n = 0; n < C::kStages; ++n) {
      barrier_init(shared + C::kQFull + 8 * n, 1), barrier_init(shared + C::kQEmpty + 8 * n, C::kWarps);
      barrier_init(shared + C::kOFull + 8 * n, 1), barrier_init(shared + C::kOEmpty + 8 * n, C::kWarps);
    }
    for (int n = 0; n < 2; ++n)
      barrier_init(shared + C::kDqFull + 8 * n, C::kWarps), barrier_init(shared + C::kDqEmpty + 8 * n, 1);
    if constexpr (C::kTakesTickets)
      for (int n = 0; n < 2; ++n) barrier_init(shared + C::kTicket + 8 * n, 1);
    if constexpr (C::kWalks)
      for (int n = 0; n < kVisitsAhead; ++n)
        barrier_init(shared + C::kVisitFull + 8 * n, 1), barrier_init(shared + C::kVisitEmpty + 8 * n, 1);
    barrier_init_done();
  }
  __syncthreads();
  sm80::wait_for_previous();
  sm80::admit_next();
  if constexpr (C::kPersistent) persist<C>(x, shared, group, warp);
  else own_one_tile<C>(x, shared, group, warp);
}

}  // namespace attune::sm90
