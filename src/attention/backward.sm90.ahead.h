// Clearing the sums of dQ while the kernel runs. Done before it, they would all be written to memory, and read again
// when they are added to. Here the blocks of one lot of heads, at least as many as run at once, clear the sums of the
// next one, which are still in the second-level cache then; prepare clears those of the first.
#pragma once
#include "attention/backward.sm90.shape.h"
#include "machine/sm80/memory.h"
#include "machine/sm90/memory.h"
#include "machine/sm90/tma.h"

namespace attune::sm90 {

// By one warp: this block's share of the lot behind its own, in strips of 16 rows.
template <class C>
__device__ inline void clear_next_lot(const BackwardParams& x, uint32_t shared, int block) {
  const int blocks = x.ahead.units * x.tiles, next = block / blocks + 1, lane = int(threadIdx.x % 32);
  if (next >= x.ahead.lots) return;
  for (int n = lane; n < C::kBytesZeros / 16; n += 32) store_shared4(shared + C::kZeros + n * 16, 0.f, 0.f, 0.f, 0.f);
  publish_shared();
  __syncwarp();
  if (lane > 0) return;
  const int of_head = x.group * (x.padded / 16), strips = min(x.ahead.units, x.units - next * x.ahead.units) * of_head;
  const int each = (strips + blocks - 1) / blocks, first = (block - (next - 1) * blocks) * each;
  char* to = reinterpret_cast<char*>(x.dq) + (int64_t(next) * x.ahead.units * of_head + first) * C::kBytesZeros;
  for (int n = first; n < min(strips, first + each); ++n, to += C::kBytesZeros)
    store_bytes(to, shared + C::kZeros, C::kBytesZeros);
  close_stores();
  wait_stores();
  sm80::add_count(x.ahead.counts + next);
}

// By the thread that loads: until this block's lot is clear.
__device__ inline void wait_for_clear(const BackwardParams& x, int block) {
  const int blocks = x.ahead.units * x.tiles, lot = block / blocks;
  if (lot == 0) return;
  while (sm80::load_count(x.ahead.counts + lot) < blocks) {}
}

}  // namespace attune::sm90
