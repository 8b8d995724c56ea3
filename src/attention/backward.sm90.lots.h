// Backward attention for Hopper: blocks of prepare and finish in the launch of the kernel that owns keys, so that what
// is bound by memory runs beside what is bound by products. Heads of keys go in lots. The blocks of a lot's keys have
// between them those that prepare rows of the next lot and those that finish dQ of the last but one. The first lot is
// prepared, and the last two are finished, by kernels of their own, which have all multiprocessors then.
//
// A block waits only for blocks of lower numbers, which have begun.
#pragma once
#include "attention/backward.sm90.producer.h"
#include "attention/row_statistics.h"
#include "core/far.h"
#include "machine/sm80/matrix.h"

namespace attune::sm90 {

__device__ inline char* row_of(const StridedRows& t, int bytes, int64_t b, int64_t s, int64_t h) {
  return static_cast<char*>(t.data) + (b * t.batch + s * t.seq + h * t.head) * bytes;
}

// Rows of all heads, one behind the other, `padded` each.
template <class C>
struct Rows {
  const LotParams& x;
  int64_t first, last;
  __device__ Rows(const LotParams& p, int lot, int chunk) : x(p) {
    const int64_t unit = int64_t(p.group) * p.padded, end = min((lot + 1) * p.lot_units, p.units) * unit;
    first = lot * p.lot_units * unit + int64_t(chunk) * p.chunk;
    last = min(first + p.chunk, end);
  }
};

// Statistics of a chunk of rows, and zeros for their sums of dQ. As prepare_kernel of backward.sm80.ends.h.
template <class C>
__device__ void prepare_rows(const LotParams& x, int lot, int chunk, char* memory, uint32_t shared) {
  using T = typename C::T;
  constexpr int kZeros = 32768, kAtOnce = C::kWide == 64 ? 8 : 4, kParts = C::kWide / 64, kStep = C::kThreads / 8;
  const Rows<C> rows(x, lot, chunk);
  for (int n = threadIdx.x; n < kZeros / 16; n += C::kThreads) reinterpret_cast<uint4*>(memory)[n] = {};
  publish_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    char* to = reinterpret_cast<char*>(x.dq + rows.first * C::kWide);
    for (int64_t left = (rows.last - rows.first) * C::kWide * 4; left > 0; left -= kZeros, to += kZeros)
      store_bytes(to, shared, int(min(left, int64_t(kZeros))));
    close_stores();
  }
  const int part = threadIdx.x % 8 * 8;
#pragma unroll 1
  for (int64_t n = rows.first + threadIdx.x / 8; n < rows.last + threadIdx.x / 8; n += kAtOnce * kStep) {
    uint4 out[kAtOnce][kParts], d_out[kAtOnce][kParts];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int64_t at = n + r * kStep, head = at / x.padded, i = at - head * x.padded;
      const int64_t b = head / x.heads, h = head - b * x.heads;
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        const bool there = at < rows.last && i < x.rows && c * 64 + part < x.dim_v;
        out[r][c] = d_out[r][c] = {};
        const int byte = (c * 64 + part) * 2;
        if (there) out[r][c] = *reinterpret_cast<const uint4*>(row_of(x.from_out, 2, b, i, h) + byte);
        if (there) d_out[r][c] = *reinterpret_cast<const uint4*>(row_of(x.from_d_out, 2, b, i, h) + byte);
      }
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      float sum = 0.f;
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        const uint4 &one = out[r][c], &other = d_out[r][c];
        const uint32_t u[4] = {one.x, one.y, one.z, one.w}, v[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float2 f = sm80::unpack<T>(u[e]), g = sm80::unpack<T>(v[e]);
          sum = fmaf(f.x, g.x, fmaf(f.y, g.y, sum));
        }
      }
      for (int m = 1; m < 8; m *= 2) sum += __shfl_xor_sync(~0u, sum, m);
      const int64_t at = n + r * kStep;
      if (part || at >= rows.last) continue;
      const int64_t head = at / x.padded, i = at - head * x.padded, b = head / x.heads, h = head - b * x.heads;
      float2 row{INFINITY, 0.f};
      if (i < x.rows) {
        const float lse = *reinterpret_cast<const float*>(row_of(x.from_lse, 4, b, i, h));
        if (lse != -INFINITY) row = {lse_of_weights(lse), sum * x.kept};
        if (is_far(row.x)) *x.far_found = x.launch;
      }
      sm80::store_statistics<C::kPairs>(x.stats_rows, at, row);
    }
  }
  __threadfence();
  if (threadIdx.x == 0) wait_stores();
  __syncthreads();
  if (threadIdx.x == 0) sm80::add_count(x.counts + lot);
}

// dQ of a chunk of rows to its tensor, when all blocks of the lot have added to it. As finish_kernel.
template <class C>
__device__ void finish_rows(const LotParams& x, int lot, int chunk, char* memory) {
  using T = typename C::T;
  constexpr int kPitch = C::kWide + 8, kBlocks = 128 / C::kWide;  // of 16 rows, at once: 16 fragments a warp
  const Rows<C> rows(x, lot, chunk);
  const int tiles = (min((lot + 1) * x.lot_units, x.units) - lot * x.lot_units) * x.tiles;
  if (threadIdx.x == 0)
    for (int n = 0; sm80::load_count(x.counts + x.lots + lot) < tiles * C::kWarps && n < kLongest; ++n) {}
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const tile = reinterpret_cast<float*>(memory) + warp * 16 * kBlocks * kPitch;
#pragma unroll 1
  for (int64_t at = rows.first + warp * 16 * kBlocks; at < rows.last; at += C::kThreads / 32 * 16 * kBlocks) {
    float4 part[16];
#pragma unroll
    for (int f = 0; f < 16; ++f) {
      const int64_t row = at + f / (16 / kBlocks) * 16;  // first of its 16
      const int fragment = f % (16 / kBlocks);
      const float* from = x.dq + row * C::kWide + fragment * 128;
      if constexpr (C::kTurned) {  // two of 16 columns x 8 queries, for two of 16 rows x 8 columns
        static_assert(C::kTurnedBand);
        const int i = int(row % x.padded);
        from = x.dq + (row - i) * C::kWide + TurnedTile{x.padded}.fragment(i + fragment % 2 * 8, fragment / 2 * 16);
      }
      part[f] = row < rows.last ? __ldcg(reinterpret_cast<const float4*>(from) + lane) : float4{};
    }
#pragma unroll
    for (int f = 0; f < 16; ++f) {
      const int row = f / (16 / kBlocks) * 16, fragment = f % (16 / kBlocks);
      const float c[4] = {part[f].x * x.scale, part[f].y * x.scale, part[f].z * x.scale, part[f].w * x.scale};
      if constexpr (C::kTurned) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          tile[(row + fragment % 2 * 8 + TurnedTile::query(lane, e)) * kPitch + fragment / 2 * 16 +
               TurnedTile::column(lane, e)] = c[e];
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(tile + (row + half * 8 + lane / 4) * kPitch + fragment * 8 + lane % 4 * 2) = {
              c[2 * half], c[2 * half + 1]};
      }
    }
    __syncwarp();
    constexpr int kLanes = C::kWide / 8;  // a row
#pragma unroll
    for (int n = 0; n < 16 * kBlocks * kLanes / 32; ++n) {
      const int r = n * (32 / kLanes) + lane / kLanes, column = lane % kLanes * 8;
      const float4* two = reinterpret_cast<const float4*>(tile + r * kPitch + column);
      const float4 low = two[0], high = two[1];
      const int64_t row = at + r, head = row / x.padded, i = row - head * x.padded, b = head / x.heads;
      if (row < rows.last && i < x.rows && column < x.dim_qk)
        *reinterpret_cast<uint4*>(row_of(x.to_dq, 2, b, i, head - b * x.heads) + column * 2) = {
            sm80::pack<T>(low.x, low.y), sm80::pack<T>(low.z, low.w), sm80::pack<T>(high.x, high.y),
            sm80::pack<T>(high.z, high.w)};
    }
    __syncwarp();
  }
}

// What a block is for. Without a division: what follows from one is not known to be the same for all threads, and then
// neither are the descriptors of products.
struct BlockRole {
  int lot, number;
  bool of_keys;
  __device__ explicit BlockRole(const LotParams& x) {
    lot = int(__umulhi(blockIdx.x, x.by_span));
    const uint32_t n = blockIdx.x - lot * x.span, before = n * x.others >> 16, behind = (n + 1) * x.others >> 16;
    of_keys = before == behind;
    number = int(of_keys ? n - before : before);
  }
};
template <class C>
__device__ void run_other(const LotParams& x, const BlockRole& role, uint32_t shared) {
  char* const memory = static_cast<char*>(__cvta_shared_to_generic(shared));
  if (role.number < x.lot_chunks) {
    if (role.lot + 1 < x.lots) prepare_rows<C>(x, role.lot + 1, role.number, memory, shared);
  } else if (role.lot >= 2) {
    finish_rows<C>(x, role.lot - 2, role.number - x.lot_chunks, memory);
  }
}

// A warp has added all that it has to dQ.
template <class C>
__device__ void count_added(const LotParams& x, const KeyTile& t) {
  if constexpr (C::kApart) __threadfence();
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    const int lot = (t.batch * x.heads_kv + t.head) / x.lot_units;
    sm80::add_count(x.counts + x.lots + lot);
  }
}

}  // namespace attune::sm90
