// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/number.h"
#include "tests/emulated/gpu.h"

namespace attune::sm90 {

inline uint32_t operand(uint32_t address, uint32_t panel) { return (address & 0x3FFFF) >> 4 | panel >> 4 << 16; }
inline void begin_products() { __syncwarp(); }
inline void close_products() {
  for (const emulated::Issued& x : emulated::gpu.now->open)
    if (x.weighs && emulated::lane() == 0) emulated::my_warp().weighed = true;
  emulated::gpu.now->groups.push_back(std::move(emulated::gpu.now->open));
  emulated::gpu.now->open.clear();
  ++emulated::gpu.products;
}
inline void run_groups(size_t pending) {
  emulated::Block& block = *emulated::gpu.now->block;
  const unsigned warp = emulated::gpu.now->number / 32;
  emulated::Thread** const lanes = block.of_warp[warp];
  while (lanes[0]->groups.size() > pending) {
    for (size_t n = 0; n < lanes[0]->groups.front().size(); ++n) {
      emulated::Issued* one[32];
      for (int l = 0; l < 32; ++l) one[l] = &lanes[l]->groups.front()[n];
      one[0]->run(block, int(warp), one);
    }
    for (int l = 0; l < 32; ++l) lanes[l]->groups.erase(lanes[l]->groups.begin());
  }
}
// The warp waits as one: no lane continues, and releases its operands, before all have read them. The last lane
// computes.
template <int Pending>
void wait_products() {
  emulated::pause();
  emulated::Warp& warp = emulated::my_warp();
  if (warp.there == 31) run_groups(Pending);
  emulated::meet(warp);
}
template <int N>
void pin(float (&)[N]) {}
template <int N>
void move(uint32_t (&to)[N], const uint32_t (&from)[N]) { std::copy(from, from + N, to); }
inline void own_register(int&) {}
template <int N>
void forget(float (&d)[N]) { std::fill(d, d + N, NAN); }

// D (64 x N) = A (64 x 16) B (16 x N) + D; a warp has 16 rows.
template <class T, int N>
struct Product {
  using Issued = emulated::Issued;
  enum class A { registers, rows, transposed };  // location of A; transposed: rows along k

  static uint32_t address(uint32_t operand) { return (operand & 0x3FFF) << 4; }
  // Chunks of 8 numbers: along the columns of one k if transposed, else along k of one row of A or column of B.
  template <bool transposed, class Do>
  static void each_chunk(uint32_t at, uint32_t panel, int first, int count, Do do_it) {
    if (transposed) {
      for (int k = 0; k < 16; ++k)
        for (int c = first; c < first + count; c += 8)
          do_it(emulated::swizzled(at + uint32_t(c / 64) * panel + uint32_t(k * 128 + c % 64 * 2)), k, c);
    } else {
      for (int c = first; c < first + count; ++c)
        for (int k = 0; k < 16; k += 8) do_it(emulated::swizzled(at + uint32_t(c * 128 + k * 2)), k, c);
    }
  }
  template <A of_a, bool turned_b, class Do>
  static void each_of(const Issued& x, int warp, Do do_it) {
    const int row = warp % 4 * 16;
    const auto of_rows = [&](uint32_t at, int k, int r) { do_it(at, k, r, true); };
    if (of_a == A::rows) each_chunk<false>(address(x.a), 0, row, 16, of_rows);
    if (of_a == A::transposed) each_chunk<true>(address(x.a), 0, row, 16, of_rows);
    each_chunk<turned_b>(address(x.b), x.b >> 16 << 4, 0, N,
                         [&](uint32_t at, int k, int c) { do_it(at, k, c, false); });
  }
  template <A of_a, bool turned_b>
  static void run(emulated::Block& block, int warp, Issued* const (&lanes)[32]) {
    using Four = float __attribute__((vector_size(16)));
    alignas(16) float a[16][16], b[16][N], d[16][N];
    const int first = warp % 4 * 16;
    const Issued& x = *lanes[0];
    const uint32_t time = block.warps[warp].clock.at[size_t(warp)];
    bool tainted = x.tainted;
    each_of<of_a, turned_b>(x, warp, [&](uint32_t at, int k, int line, bool is_a) {
      T eight[8];
      std::memcpy(eight, block.shared + at, 16);
      emulated::Piece& piece = block.shadow.pieces[at / 16];
      if (piece.read[warp] == emulated::Piece::kPending) {
        piece.read[warp] = time;
        tainted |= block.shadow.taints && piece.spoiled >> warp & 1;
        piece.spoiled &= ~(1u << warp);
      }
      const bool along_k = is_a ? of_a == A::rows : !turned_b;
      for (int n = 0; n < 8; ++n) {
        const int row_k = along_k ? k + n : k, other = along_k ? line : line + n;
        if (is_a) a[other - first][row_k] = float(eight[n]);
        else b[row_k][other] = float(eight[n]);
      }
    });
    if (of_a == A::registers)
      for (int l = 0; l < 32; l += 4)
        for (int r = 0; r < 2; ++r) std::copy(lanes[l]->rows[r], lanes[l]->rows[r] + 16, a[l / 4 + 8 * r]);
    for (int r = 0; r < 16; ++r)
      for (int c = 0; c < N; c += 4) {
        Four sum{};
        for (int k = 0; k < 16; ++k) {
          Four y;
          std::memcpy(&y, &b[k][c], 16);
          sum += y * a[r][k];
        }
        std::memcpy(&d[r][c], &sum, 16);
      }
    for (int l = 0; l < 32; ++l) {
      Issued& to = *lanes[l];
      if (!to.before.empty()) std::copy(to.before.begin(), to.before.end(), to.to);
      for (int n = 0; n < N / 2; ++n) {
        const float sum = tainted ? NAN : d[l / 4 + n / 2 % 2 * 8][n / 4 * 8 + l % 4 * 2 + n % 2];
        to.to[n] = (to.add ? to.to[n] : 0.f) + sum;
      }
    }
  }
  // The sums are NaN until the product has been waited for; until then its operands must not be overwritten.
  template <A of_a, bool turned_b>
  static Issued& issue(float (&d)[N / 2], uint32_t a, uint32_t b, int add, bool idle = false) {
    emulated::Thread& me = *emulated::gpu.now;
    const auto same = [&](const Issued& one) { return one.to == d; };
    bool begins = std::none_of(me.open.begin(), me.open.end(), same);
    for (const auto& group : me.groups) begins = begins && std::none_of(group.begin(), group.end(), same);
    Issued& x = me.open.emplace_back();
    x.to = d, x.run = run<of_a, turned_b>, x.a = a, x.b = b, x.add = add;
    x.idle = idle, x.weighs = of_a == A::registers;
    if (begins) x.before.assign(d, d + N / 2), std::fill(d, d + N / 2, NAN);
    if (emulated::lane() == 0 && !idle) mark<of_a, turned_b>(x);
    return x;
  }
  template <A of_a, bool turned_b>
  static void mark(Issued& x) {
    emulated::Shadow& shadow = emulated::gpu.now->block->shadow;
    const int warp = int(emulated::gpu.now->number / 32);
    const emulated::Clock& now = emulated::my_clock();
    each_of<of_a, turned_b>(x, warp, [&](uint32_t at, int, int, bool) {
      const emulated::Piece& piece = shadow.pieces[at / 16];
      if (!(piece.written > now.at[piece.writer] || piece.generic)) return;
      const std::string what = shadow.unseen(piece, at, now, true);
      if (what.empty()) return;
      if (shadow.taints) x.tainted = true;
      else emulated::may_not_be("a product " + what);
    });
    if (x.tainted) return;
    each_of<of_a, turned_b>(x, warp, [&](uint32_t at, int, int, bool) {
      emulated::Piece& piece = shadow.pieces[at / 16];
      if (piece.written) piece.read[warp] = emulated::Piece::kPending;  // otherwise NaN, which cannot go unnoticed
    });
  }
  static void shared(float (&d)[N / 2], uint32_t a, uint32_t b, int add) { issue<A::rows, false>(d, a, b, add); }
  // Rows run along k: in both operands, or in A alone.
  static void transposed(float (&d)[N / 2], uint32_t a, uint32_t b, int add) {
    issue<A::transposed, true>(d, a, b, add);
  }
  static void transposed_a(float (&d)[N / 2], uint32_t a, uint32_t b, int add) {
    issue<A::transposed, false>(d, a, b, add);
  }
  // Rows of B run along k, or columns do.
  static void registers(float (&d)[N / 2], const uint32_t* a, uint32_t b, int add) { of_registers<true>(d, a, b, add); }
  static void by_rows(float (&d)[N / 2], const uint32_t* a, uint32_t b, int add) { of_registers<false>(d, a, b, add); }
  template <bool transposed>
  static void of_registers(float (&d)[N / 2], const uint32_t* a, uint32_t b, int add) {
    const auto said = emulated::tell(a, 4);
    // A first product with all-zero A, whose result is discarded, may read uninitialized memory.
    const auto none = [](const uint32_t* of_lane) { return !(of_lane[0] | of_lane[1] | of_lane[2] | of_lane[3]); };
    const bool idle = !emulated::my_warp().weighed && std::all_of(said, said + 32, none);
    Issued& x = issue<A::registers, transposed>(d, 0, b, add, idle);
    for (int q = 0; q < 4; ++q)
      for (int i = 0; i < 4; ++i)
        for (int half = 0; half < 2; ++half) {
          T number;
          number.bits = uint16_t(said[emulated::lane() / 4 * 4 + q][i] >> (16 * half));
          x.rows[i % 2][i / 2 * 8 + q * 2 + half] = float(number);
        }
  }
};

}  // namespace attune::sm90
