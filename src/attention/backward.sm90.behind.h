// Backward attention for Hopper: where blocks stay, dQ of a head becomes numbers of its own dtype as soon as all of its
// tiles of keys have been added, while others are under way; no kernel behind does it. Warps without other work take
// 32 rows at a time, in the order of heads, and those of the warpgroups too when no tile is left.
//
// Tiles of a head that are all in memory are counted by the thread that loads, which learns so from who gives keys back;
// where a block has whole heads, by the one that adds. Nobody waits for that. No wait here is without end: a tile that
// is not counted is some running block's, and nothing of it waits for these rows.
#pragma once
#include "attention/backward.sm90.shape.h"
#include "machine/sm80/matrix.h"
#include "machine/sm80/memory.h"
#include "machine/sm90/barrier.h"
#include "machine/sm90/scalar.h"
#include "machine/sm90/wgmma.h"

namespace attune::sm90 {

inline constexpr int kRowsOfEnd = 32;
template <class C>
inline constexpr int kRowsOfPart = C::kTurned ? 8 : 16;  // of a fragment
template <class C>
inline constexpr int kPartsOfEnd = kRowsOfEnd / kRowsOfPart<C>;
ATTUNE_HD constexpr int ends_of(int rows) { return (rows + kRowsOfEnd - 1) / kRowsOfEnd; }

// Which head of keys a block's n-th tile has, in shared memory until it is counted: registers are too few.
template <class C>
__device__ uint32_t unit_place(uint32_t shared, uint32_t n) { return shared + C::kUnits + 4 * (n % 4); }
template <class C>
__device__ void keep_unit(const typename C::Params& x, uint32_t shared, uint32_t n, const KeyTile& t) {
  sm80::store_shared(unit_place<C>(shared, n), uint32_t(t.batch * x.heads_kv + t.head));
}
template <class C>
__device__ void tell_added(const typename C::Params& x, uint32_t shared, uint32_t n) {
  if (x.behind.jobs > 0) sm80::add_count(x.behind.added + load_shared(unit_place<C>(shared, n)));
}
template <class C>
__device__ void tell_end(const typename C::Params& x) {
  if (x.behind.jobs == 0) return;
  if (sm80::next_count(x.behind.ended) + 1 == grid_size()) *x.far = 0;  // a graph has the same number again
}

// By the thread that loads. When it has loaded a tile, the keys of kPlacesK before it are free. In a fixed order dQ of
// those is in memory then, else of those before them; behind the last tile, of all.
template <class C>
__device__ void loaded_tile(const typename C::Params& x, uint32_t shared, uint32_t round, const KeyTile& t) {
  constexpr uint32_t kBefore = C::kPlacesK + !C::kOrdered;
  keep_unit<C>(x, shared, round, t);
  if (round >= kBefore) tell_added<C>(x, shared, round - kBefore);
}
template <class C>
__device__ void loaded_all(const typename C::Params& x, uint32_t shared, uint32_t rounds) {
  constexpr uint32_t kBefore = C::kPlacesK + !C::kOrdered;
  const auto wait_free = [&](uint32_t n) { wait(shared + C::kKEmpty + 8 * (n % C::kPlacesK), n / C::kPlacesK & 1); };
  if (x.behind.jobs == 0) return;
  if constexpr (!C::kOrdered) wait_free(rounds);
  for (uint32_t n = rounds > kBefore ? rounds - kBefore : 0; n < rounds; ++n) {
    if constexpr (C::kOrdered) wait_free(n);
    tell_added<C>(x, shared, n);
  }
  tell_end<C>(x);
}

// Eight neighbours of a row, as they lie in one fragment of 16 x 8, or in half of a turned one of 16 columns x 8 rows.
template <bool Turned>
__device__ void load_eight(const float* from, float (&to)[8]) {
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    if constexpr (Turned) {
      to[n] = __ldcg(from + n * 16), to[n + 1] = __ldcg(from + n * 16 + 16);
    } else {
      const float2 two = __ldcg(reinterpret_cast<const float2*>(from + n * 2));
      to[n] = two.x, to[n + 1] = two.y;
    }
  }
}

// A row of fragments of a head of all sequences, to the tensor; a lane loads AtOnce eights before it stores one.
template <class C, int AtOnce>
__device__ void finish_rows(const typename C::Params& x, int head, int first) {
  using T = typename C::T;
  constexpr int kRows = kRowsOfPart<C>, kLanes = 32 / kRows;  // of a row
  const int lane = lane_id(), row = lane % kRows, eight = lane / kRows;
  const int within = C::kTurned ? row / 2 * 4 + row % 2 + eight % 2 * 2 : row % 8 * 16 + row / 8 * 2;
  const float* from = x.dq + int64_t(head) * x.padded * C::kWide + first * (C::kTurned ? 16 : C::kWide) + within +
                      (C::kTurned ? eight / 2 * x.behind.across : eight * 128);
  const uint32_t batch = uint32_t(head) / uint32_t(x.heads);
  T* to = view<T>(x.behind.dq).row(batch, first + row, head - int(batch) * x.heads) + eight * 8;
  const bool here = first + row < x.rows;
#pragma unroll 1
  for (int column = eight * 8; column < x.behind.dim; column += AtOnce * kLanes * 8, to += AtOnce * kLanes * 8) {
    float y[AtOnce][8];
#pragma unroll
    for (int i = 0; i < AtOnce; ++i, from += C::kTurned ? kLanes / 2 * x.behind.across : kLanes * 128)
      load_eight<C::kTurned>(from, y[i]);
#pragma unroll
    for (int i = 0; i < AtOnce; ++i) {
      if (!here || column + i * kLanes * 8 >= x.behind.dim) continue;
      for (float& one : y[i]) one *= x.behind.scale;
      *reinterpret_cast<uint4*>(to + i * kLanes * 8) = {
          sm80::pack<T>(y[i][0], y[i][1]), sm80::pack<T>(y[i][2], y[i][3]), sm80::pack<T>(y[i][4], y[i][5]),
          sm80::pack<T>(y[i][6], y[i][7])};
    }
  }
}

// Rows of fragments are numbered through all heads.
struct End { uint32_t head, first; };
template <class C>
__device__ End find_end(const typename C::Params& x, int part) {
  const uint32_t each = uint32_t(ends_of(x.rows)) * kPartsOfEnd<C>, head = uint32_t(part) / each;
  return {head, (uint32_t(part) - head * each) * kRowsOfPart<C>};
}
template <class C, int AtOnce>
__device__ void finish_heads(const typename C::Params& x) {
  if (x.behind.jobs == 0) return;
#pragma unroll 1
  for (;;) {
    int taken = 0;
    if (lane_id() == 0) taken = atomicAdd(x.behind.taken, 1);
    int part = __shfl_sync(~0u, taken, 0) * kPartsOfEnd<C>;
    if (part >= x.behind.jobs * kPartsOfEnd<C>) return;
    if (lane_id() == 0)
      while (sm80::load_count(x.behind.added + find_end<C>(x, part).head / uint32_t(x.group)) < x.tiles) pause();
    __syncwarp();
#pragma unroll 1
    do {
      own_register(part);  // what follows from it is made again, not kept: there are 24 registers
      const End at = find_end<C>(x, part);
      finish_rows<C, AtOnce>(x, int(at.head), int(at.first));
    } while (++part % kPartsOfEnd<C>);
  }
}

}  // namespace attune::sm90
