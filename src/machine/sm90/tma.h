// SPDX-License-Identifier: Apache-2.0
// Copies of whole tiles by TMA, with tensor maps of four axes {column, row, head, batch}. One thread issues a copy, and
// an mbarrier counts its bytes. Elements outside the tensor read as zero and are not written. Also the proxy fences and
// stmatrix, which copies and products need.
#pragma once
#include <cuda.h>

#include <cstdint>

namespace attune::sm90 {

// L2 eviction priority: q is read once, keys and values by many CTAs.
enum class Keep : uint64_t { first_to_go = 0x12F0000000000000u, last_to_go = 0x14F0000000000000u };

__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
__device__ inline void load_tile(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int row, int head,
                                 int batch, Keep keep) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(uint64_t(keep))
      : "memory");
}
// Prefetches into L2.
__device__ inline void prefetch_tile(const CUtensorMap& map, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(column), "r"(row),
               "r"(head), "r"(batch)
               : "memory");
}
// Adds contiguous floats to global memory. The order among CTAs is undefined.
__device__ inline void add_floats(float* to, uint32_t from, int bytes, Keep keep) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%0], [%1], %2, %3;" ::"l"(
                   to),
               "r"(from), "r"(bytes), "l"(uint64_t(keep))
               : "memory");
}
__device__ inline void store_floats(float* to, uint32_t from, int bytes, Keep keep) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(to), "r"(from),
               "r"(bytes), "l"(uint64_t(keep))
               : "memory");
}
__device__ inline void store_tile(const CUtensorMap& map, uint32_t from, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}
__device__ inline void close_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// For the issuing thread: waits until its stores have read shared memory; until they are complete.
__device__ inline void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Orders this thread's ordinary writes to shared memory before copies and products that read it.
__device__ inline void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Orders this thread's view of global memory before its copies that add there.
__device__ inline void publish_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Stores four 8x8 matrices of 16-bit elements from registers. Lane l holds the address of row l % 8 of matrix l / 8;
// transposed: of that column.
template <bool transposed = false>
__device__ inline void store_matrix4(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  if constexpr (transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

}  // namespace attune::sm90
