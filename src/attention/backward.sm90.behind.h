// Backward attention for Hopper: what warps without other work do behind the products, where blocks stay. When all key
// tiles of a head have added to dQ, its sums go to their tensor, while products of other heads are under way: finish
// then has the last heads only.
//
// A warp counts the tiles whose sums have arrived, for the threads that add: they would wait for that. Whoever counts
// the last tile of a head names it in a line, and warps take rows of heads from that line, until the last tile of all
// is taken. Nobody waits for them.
#pragma once
#include "attention/backward.sm90.producer.h"
#include "machine/sm80/matrix.h"

namespace attune::sm90 {

// Tiles of the block, when their dQ has been added: by one warp, between jobs; at last it waits for them. What it keeps
// from time to time is in shared memory.
template <class C>
__device__ void count_tiles(const typename C::Params& x, uint32_t shared, bool waits) {
  if (threadIdx.x >= 64) return;
#pragma unroll 1
  for (;;) {
    const uint32_t round = load_shared(shared + C::kCount), place = round % C::kPlacesK;
    uint32_t unit = load_shared(shared + C::kCount + 4);  // and 1, or 0: not known yet
    if (unit == 0) {
      if (!waits && !__all_sync(~0u, test(shared + C::kTileFull + 8 * place, round / C::kPlacesK & 1))) return;
      const int tile = told_tile<C>(shared, round);
      if (tile >= x.tiles * x.units) return;
      unit = unit_of(x, tile) + 1;
      if (lane_id() == 0) {
        sm80::store_shared(shared + C::kCount + 4, unit);
        // So it is at most a round behind the others, and no phase of a barrier goes by unseen.
        arrive(shared + C::kKEmpty + 8 * place);
      }
      __syncwarp();
    }
    const uint32_t added = shared + C::kAdded + 8 * (round % C::kAddedPlaces), parity = round / C::kAddedPlaces & 1;
    if (waits) wait(added, parity);
    else if (!__all_sync(~0u, test(added, parity))) return;
    if (lane_id() == 0) {
      sm80::store_shared(shared + C::kCount, round + 1);
      sm80::store_shared(shared + C::kCount + 4, 0);
      int* const done = x.taken + kJobsDone + x.units * x.group;
      __threadfence();
      if (atomicAdd(done + (unit - 1), 1) == x.tiles - 1) {
        __threadfence();
        sm80::store_count(done + x.units + atomicAdd(x.taken + kHeadsAdded, 1), unit);
      }
    }
    __syncwarp();
  }
}

// Rows that a warp takes at a time, from sums to the tensor.
struct End { int head, first; };  // of all sequences; row
__device__ inline End find_end(const BackwardParams& x, int job) {
  const int head = job / x.behind.ends;
  return {head, (job - head * x.behind.ends) * kEndRows};
}
__device__ inline char* row_of_end(const BackwardParams& x, End end, int row) {
  const int batch = end.head / x.heads;
  return row_address(x.behind.dq, batch, end.first + row, end.head - batch * x.heads);
}

// Sums in fragments of 16 rows x 8 columns: a lane has two columns of two rows.
template <class C>
__device__ void convert_rows(const typename C::Params& x, End end) {
  using T = typename C::T;
  const float* from = x.dq + (int64_t(end.head) * x.padded + end.first) * C::kWide + lane_id() * 4;
  char* to = row_of_end(x, end, lane_id() / 4) + lane_id() % 4 * 4;
  const int there = x.rows - end.first - lane_id() / 4;
#pragma unroll 1
  for (int row = 0; row < kEndRows; row += 16) {
#pragma unroll 4
    for (int column = 0; column < C::kWide; column += 8, to += 16, from += TurnedTile::kFragment) {
      const float4 sum = __ldcg(reinterpret_cast<const float4*>(from));
      if (column >= x.behind.dim) continue;
      if (row < there)
        *reinterpret_cast<uint32_t*>(to) = sm80::pack<T>(sum.x * x.scale_k, sum.y * x.scale_k);
      if (row + 8 < there)
        *reinterpret_cast<uint32_t*>(to + x.behind.step) = sm80::pack<T>(sum.z * x.scale_k, sum.w * x.scale_k);
    }
    to += 2 * x.behind.step - 2 * C::kWide;
  }
}
// Turned, of 16 columns x 8 rows: a lane has two columns that are 8 apart, of two rows. It gives those of one row to
// the lane that has the columns beside, and takes that one's of the other.
template <class T>
__device__ uint32_t beside(float first, float second, float scale) {
  const bool odd = lane_id() / 4 % 2;
  const float other = __shfl_xor_sync(~0u, odd ? first : second, 4);
  return odd ? sm80::pack<T>(other * scale, second * scale) : sm80::pack<T>(first * scale, other * scale);
}
template <class C>
__device__ void convert_turned_rows(const typename C::Params& x, End end) {
  using T = typename C::T;
  const float* from = x.dq + int64_t(end.head) * x.padded * C::kWide + TurnedTile{x.padded}.fragment(end.first, 0) +
                      lane_id() * 4;
  const int own = lane_id() % 4 * 2 + lane_id() / 4 % 2, there = x.rows - end.first - own;
  char* to = row_of_end(x, end, own) + lane_id() / 8 * 4;
  constexpr int kRows = kEndRows / 8;
  // n: of fragments, which lie behind each other for the rows of 16 columns.
#pragma unroll 1
  for (int n = 0; n < (x.behind.dim + 15) / 16 * kRows; n += 2) {
    if (n > 0 && n % kRows == 0) {
      to += 2 * TurnedTile::kColumns - kRows * x.behind.step;
      from += TurnedTile::kColumns * x.padded - kRows * TurnedTile::kFragment;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i, to += x.behind.step, from += TurnedTile::kFragment) {
      const float4 sum = __ldcg(reinterpret_cast<const float4*>(from));
      const uint32_t low = beside<T>(sum.x, sum.y, x.scale_k), high = beside<T>(sum.z, sum.w, x.scale_k);
      if ((n + i) % kRows * 8 >= there) continue;
      *reinterpret_cast<uint32_t*>(to) = low;
      if (n / kRows * 16 + 8 < x.behind.dim) *reinterpret_cast<uint32_t*>(to + 16) = high;
    }
  }
}

// The unit whose rows these are; -1: the last tile of all is taken, and finish has the rest.
template <class C>
__device__ int wait_added(const typename C::Params& x, uint32_t shared, int job) {
#pragma unroll 1
  for (;;) {
    count_tiles<C>(x, shared, false);
    own_register(job);  // what follows from it is made again, not kept: there are 24 registers
    const int* const line = x.taken + kJobsDone + x.units * (x.group + 1);
    int unit = sm80::load_count(line + job / (x.behind.ends * x.group));
    if (sm80::load_count(x.taken) + grid_size() >= x.tiles * x.units) unit = -1;
    unit = __shfl_sync(~0u, unit, 0);
    if (unit) return unit > 0 ? unit - 1 : -1;
    __nanosleep(500);
  }
}

template <class C>
__device__ void finish_others(const typename C::Params& x, uint32_t shared) {
#pragma unroll 1
  for (; x.behind.finished;) {
    int taken = 0;
    if (lane_id() == 0) taken = atomicAdd(x.taken + kEndsTaken, 1);
    int job = __shfl_sync(~0u, taken, 0);
    if (job >= x.units * x.group * x.behind.ends) break;
    const int unit = wait_added<C>(x, shared, job);
    if (unit < 0) break;
    job = job % (x.behind.ends * x.group) + unit * (x.behind.ends * x.group);
    if constexpr (C::kTurned) convert_turned_rows<C>(x, find_end(x, job));
    else convert_rows<C>(x, find_end(x, job));
    own_register(job);
    if (lane_id() == 0) x.behind.finished[job] = 1;
  }
  count_tiles<C>(x, shared, true);
}

}  // namespace attune::sm90
