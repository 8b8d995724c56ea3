// SPDX-License-Identifier: Apache-2.0
// Keys of a forward with block lists, packed in advance.
#pragma once
#include "attention/cpu/unit.h"

namespace attune::cpu {

// With a block list, a query block has too few rows to amortize the packing of its keys. If lists have as many entries
// as there are key blocks, all keys are packed once in advance: block after block, in tiles.
struct PackedKeys {
  std::byte *k = nullptr, *v = nullptr;  // [batch][KV head][block][tile]
  int64_t k_bytes = 0, v_bytes = 0;      // per tile
  int64_t tiles_per_block = 1;
  int64_t slots = 0;                     // tiles per head
  int capacity = 0;                      // keys per tile

  explicit operator bool() const { return capacity > 0; }
  int64_t slot(const Problem& p, int b, int head_kv, int64_t of_head) const {
    return (int64_t(b) * p.heads_kv + head_kv) * slots + of_head;
  }
};

inline PackedKeys carve_keys(Workspace& ws, const Plan& plan, const CpuKernels& m) {
  const Problem& p = plan.problem;
  const Blocks size = p.mask.blocks;
  const int64_t blocks = by_head(p) ? ceil_div(p.len_k, size.k) : 0;
  if (!blocks || size.bound < int64_t(p.batch) * p.heads_kv * blocks) return {};
  PackedKeys all{.tiles_per_block = ceil_div(std::min(size.k, p.len_k), m.tile),
                 .capacity = int(round_up(std::min({size.k, p.len_k, m.tile}), m.keys))};
  all.slots = blocks * all.tiles_per_block;
  all.k_bytes = packed_bytes(m, all.capacity, p.dim_qk), all.v_bytes = packed_bytes(m, all.capacity, p.dim_v);
  const int64_t every = all.slot(p, p.batch, 0, 0);
  all.k = ws.take<std::byte>(size_t(every * all.k_bytes));
  all.v = ws.take<std::byte>(size_t(every * all.v_bytes));
  return all;
}

// Packs the n-th tile of all keys; a head has `of_head` tiles.
inline void pack_keys(const Problem& p, const Args& a, const CpuKernels& m, const PackedKeys& to, const void** rows,
                      General* scores, int64_t n, int64_t of_head) {
  const int64_t slot = n % of_head, set = n / of_head;
  const int b = int(set / p.heads_kv), head = int(set % p.heads_kv), tile = std::min(p.mask.blocks.k, m.tile);
  const Unit u = unit_of(p, a, b, head * (p.heads_q / p.heads_kv), scores);
  const int64_t start = slot / to.tiles_per_block * p.mask.blocks.k, first = start + slot % to.tiles_per_block * tile;
  const int count = int(std::min({first + tile, start + p.mask.blocks.k, int64_t(u.seq.len_k)}) - first);
  if (count <= 0) return;
  const int64_t place = to.slot(p, b, head, slot);
  gather_keys(u, Role::k, int(first), count, rows);
  m.pack_k(rows, count, p.dim_qk, to.k + place * to.k_bytes);
  gather_keys(u, Role::v, int(first), count, rows);
  m.pack_v(rows, count, p.dim_v, to.v + place * to.v_bytes, to.capacity);
}

}  // namespace attune::cpu
