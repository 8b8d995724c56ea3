#pragma once
#include "core/number.h"
#include "tests/emulated/gpu.h"

namespace attune::sm90 {

inline uint32_t operand(uint32_t address, uint32_t panel) { return (address & 0x3FFFF) >> 4 | panel >> 4 << 16; }
inline void begin_products() { __syncwarp(); }
inline void close_products() {
  emulated::gpu.now->groups.push_back(std::move(emulated::gpu.now->open));
  emulated::gpu.now->open.clear();
  ++emulated::gpu.products;
}
// A warp as one: none of its lanes goes on, and gives places back, before all have read them.
template <int Pending>
void wait_products() {
  auto& groups = emulated::gpu.now->groups;
  for (; int(groups.size()) > Pending; groups.erase(groups.begin()))
    for (const auto& product : groups.front()) product();
  __syncwarp();
}
template <int N>
void pin(float (&)[N]) {}
template <int N>
void move(uint32_t (&to)[N], const uint32_t (&from)[N]) { std::copy(from, from + N, to); }
inline void own_register(int&) {}
template <int N>
void forget(float (&d)[N]) { std::fill(d, d + N, NAN); }

template <class T>
float number_at(uint32_t address) {
  T x;
  std::memcpy(&x.bits, emulated::shared(emulated::swizzled(address)), 2);
  return float(x);
}

template <class T, int N>
struct Product {
  struct Rows { float x[2][16]; };  // of a lane: its two rows of a
  // b(k, column), a number.
  template <class B>
  static void multiply(float* d, const Rows& a, bool add, B b) {
    for (int n = 0; n < N / 8; ++n)
      for (int c = 0; c < 2; ++c) {
        float sum[2] = {};
        for (int k = 0; k < 16; ++k) {
          const float y = b(k, 8 * n + emulated::lane() % 4 * 2 + c);
          sum[0] += a.x[0][k] * y, sum[1] += a.x[1][k] * y;
        }
        for (int r = 0; r < 2; ++r) d[4 * n + 2 * r + c] = (add ? d[4 * n + 2 * r + c] : 0.f) + sum[r];
      }
  }
  static uint32_t address(uint32_t operand) { return (operand & 0x3FFF) << 4; }
  static void shared(float (&d)[N / 2], uint32_t a, uint32_t b, int add) {
    float* const to = d;
    emulated::gpu.now->open.push_back([=] {
      const int row = int(emulated::gpu.now->number / 32 % 4) * 16 + emulated::lane() / 4;
      Rows rows;
      for (int r = 0; r < 2; ++r)
        for (int k = 0; k < 16; ++k) rows.x[r][k] = number_at<T>(address(a) + uint32_t((row + 8 * r) * 128 + k * 2));
      multiply(to, rows, add,
               [&](int k, int column) { return number_at<T>(address(b) + uint32_t(column * 128 + k * 2)); });
    });
  }
  // Rows are of k: of both, or of a alone.
  static void turned(float (&d)[N / 2], uint32_t a, uint32_t b, int add) { turned_rows<true>(d, a, b, add); }
  static void turned_a(float (&d)[N / 2], uint32_t a, uint32_t b, int add) { turned_rows<false>(d, a, b, add); }
  template <bool both>
  static void turned_rows(float (&d)[N / 2], uint32_t a, uint32_t b, int add) {
    float* const to = d;
    emulated::gpu.now->open.push_back([=] {
      const int row = int(emulated::gpu.now->number / 32 % 4) * 16 + emulated::lane() / 4;
      const uint32_t panel = b >> 16 << 4;
      Rows rows;
      for (int r = 0; r < 2; ++r)
        for (int k = 0; k < 16; ++k) rows.x[r][k] = number_at<T>(address(a) + uint32_t(k * 128 + (row + 8 * r) * 2));
      multiply(to, rows, add, [&](int k, int column) {
        if (!both) return number_at<T>(address(b) + uint32_t(column * 128 + k * 2));
        return number_at<T>(address(b) + uint32_t(column / 64) * panel + uint32_t(k * 128 + column % 64 * 2));
      });
    });
  }
  // Rows of b are of k, or columns.
  static void registers(float (&d)[N / 2], const uint32_t* a, uint32_t b, int add) { of_registers<true>(d, a, b, add); }
  static void by_rows(float (&d)[N / 2], const uint32_t* a, uint32_t b, int add) { of_registers<false>(d, a, b, add); }
  template <bool turned>
  static void of_registers(float (&d)[N / 2], const uint32_t* a, uint32_t b, int add) {
    float* const to = d;
    const auto said = emulated::tell(a, 4);
    Rows rows;
    for (int q = 0; q < 4; ++q)
      for (int i = 0; i < 4; ++i)
        for (int half = 0; half < 2; ++half) {
          T x;
          x.bits = uint16_t(said[emulated::lane() / 4 * 4 + q][i] >> (16 * half));
          rows.x[i % 2][i / 2 * 8 + q * 2 + half] = float(x);
        }
    emulated::gpu.now->open.push_back([=] {
      const uint32_t panel = b >> 16 << 4;
      multiply(to, rows, add, [&](int k, int column) {
        if (!turned) return number_at<T>(address(b) + uint32_t(column * 128 + k * 2));
        return number_at<T>(address(b) + uint32_t(column / 64) * panel + uint32_t(k * 128 + column % 64 * 2));
      });
    });
  }
};

}  // namespace attune::sm90
