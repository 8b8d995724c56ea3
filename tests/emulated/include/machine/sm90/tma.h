// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tests/emulated/include/cuda.h"

namespace attune::sm90 {

enum class Keep : uint64_t { first_to_go, last_to_go };

// Visits each number of a box: its address in the tensor (null if outside) and in shared memory.
template <class Do>
void each_of_box(const CUtensorMap& map, uint32_t at, int column, int row, int head, int batch, Do do_it) {
  for (int r = 0; r < map.box; ++r)
    for (int c = 0; c < 64; ++c) {
      const bool inside = row + r >= 0 && row + r < map.rows && column + c < map.columns && head < map.heads &&
                          batch < map.batches;
      char* const here = map.data + 2 * ((row + r) * map.row + head * map.head + batch * map.batch + column + c);
      do_it(inside ? here : nullptr, emulated::swizzled(at + uint32_t(r * 128 + c * 2)));
    }
}

inline void prefetch_map(const CUtensorMap&) {}
inline void prefetch_tile(const CUtensorMap&, int, int, int, int) {}
// What other CTAs have announced by a counter is visible to bulk copies only behind a fence.
inline void expect_fenced() {
  if (emulated::gpu.now->unfenced)
    emulated::may_not_be("a bulk copy follows a counter without a fence of the async proxy");
}
inline void load_line(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int head, int batch) {
  const CUtensorMap* const from = &map;
  expect_fenced();
  if (to % 128) emulated::may_not_be("a line is loaded to where none begins");
  emulated::load_later(to, map.box * 4, barrier, [=](char* shared) {
    const float* const line = reinterpret_cast<const float*>(from->data) + batch * from->batch + head * from->head;
    for (int c = 0; c < from->box; ++c) {
      const float x = column + c < from->columns ? line[column + c] : 0.f;
      std::memcpy(shared + to + 4 * c, &x, 4);
    }
  });
}
inline void load_tile(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int row, int head, int batch,
                      Keep) {
  if (map.line) return load_line(to, map, barrier, column, row, head);
  const CUtensorMap* const from = &map;
  expect_fenced();
  if (emulated::gpu.loads) emulated::gpu.loads(map.data, row, head, batch);
  if (to % 128 || (to % 1024 && map.box >= 8)) emulated::may_not_be("a tile is loaded to where no swizzle begins");
  emulated::load_later(to, map.box * 128, barrier, [=](char* shared) {
    each_of_box(*from, to, column, row, head, batch, [&](const char* x, uint32_t at) {
      const uint16_t zero = 0;
      std::memcpy(shared + at, x ? x : reinterpret_cast<const char*>(&zero), 2);
    });
  });
}
inline void store_tile(const CUtensorMap& map, uint32_t from, int column, int row, int head, int batch) {
  const CUtensorMap* const to = &map;
  emulated::store_later(from, map.box * 128, [=](const char* read) {
    each_of_box(*to, from, column, row, head, batch, [&](char* x, uint32_t at) {
      if (x) std::memcpy(x, read + (at - from), 2);
    });
  });
}
// Unordered with respect to other pending stores; each store is atomic.
template <bool added>
void send_floats(float* to, uint32_t from, int bytes) {
  expect_fenced();
  if (from % 16 || bytes % 16 || reinterpret_cast<uintptr_t>(to) % 16)
    emulated::may_not_be("sums are not at multiples of 16");
  emulated::store_later(from, bytes, [=](const char* read) {
    for (int n = 0; n < bytes / 4; ++n) {
      float more;
      std::memcpy(&more, read + 4 * n, 4);
      to[n] = added ? to[n] + more : more;
    }
  });
}
inline void add_floats(float* to, uint32_t from, int bytes, Keep) { send_floats<true>(to, from, bytes); }
inline void store_floats(float* to, uint32_t from, int bytes, Keep) { send_floats<false>(to, from, bytes); }
inline void close_stores() {}
inline void wait_stores_read() { emulated::wait_stores_until("its bulk stores to read", &emulated::Thread::unread); }
inline void wait_stores() { emulated::wait_stores_until("its bulk stores to write", &emulated::Thread::unwritten); }
inline void publish_shared() { emulated::publish(); }
inline void publish_global() { emulated::gpu.now->unfenced = false; }
template <bool transposed = false>
void store_matrix4(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const auto said = emulated::tell(&to, 1);
  const uint32_t of[] = {a, b, c, d};
  const int lane = emulated::lane();
  emulated::writes_shared(to, 16);
  for (int m = 0; m < 4; ++m)
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4, column = lane % 4 * 2 + half;
      const uint16_t x = uint16_t(of[m] >> (16 * half));
      const uint32_t at = said[m * 8 + (transposed ? column : row)][0] + uint32_t(transposed ? row : column) * 2;
      std::memcpy(emulated::shared(at), &x, 2);
    }
}

}  // namespace attune::sm90
