// SPDX-License-Identifier: Apache-2.0
// Products of every layout and dtype compared with a sum in double, with a BLAS if present and with our own loop.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "machine/gemm.h"
#include "machine/host.h"

namespace attune {
namespace {

struct Numbers {
  DType type;
  std::vector<float> wide;
  std::vector<uint16_t> narrow;

  Numbers(size_t count, DType t, unsigned seed) : type(t), wide(count), narrow(count) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.f, 1.f);
    for (size_t n = 0; n < count; ++n) set(n, uniform(random));
  }
  void set(size_t n, float x) {
    narrow[n] = type == DType::f16 ? F16(x).bits : Bf16(x).bits;
    wide[n] = x;
  }
  double get(size_t n) const {
    F16 f;
    Bf16 b;
    f.bits = b.bits = narrow[n];
    return type == DType::f32 ? wide[n] : type == DType::f16 ? float(f) : float(b);
  }
  void* data() { return type == DType::f32 ? static_cast<void*>(wide.data()) : narrow.data(); }
};

void compare(const Device& d, int m, int n, int k, bool x_transposed, bool y_transposed, DType in, DType out,
             float beta, bool apart) {
  const int pitch_x = (x_transposed ? m : k) + 3, pitch_y = (y_transposed ? k : n) + 1, pitch_to = n + 2;
  Numbers x(size_t(pitch_x) * size_t(x_transposed ? k : m), in, 1),
      y(size_t(pitch_y) * size_t(y_transposed ? n : k), in, 2);
  Numbers to(size_t(pitch_to) * size_t(m), out, 3), plus(size_t(pitch_to) * size_t(m), out, 4);
  const Numbers before = to;
  ASSERT_EQ(gemm(d,
                 {.in = in,
                  .out = out,
                  .m = m,
                  .n = n,
                  .k = k,
                  .x_transposed = x_transposed,
                  .y_transposed = y_transposed,
                  .pitch_x = pitch_x,
                  .pitch_y = pitch_y,
                  .pitch_to = pitch_to,
                  .x = x.data(),
                  .y = y.data(),
                  .plus = apart ? plus.data() : nullptr,
                  .to = to.data(),
                  .alpha = 0.5f,
                  .beta = beta},
                 nullptr, nullptr)
                .message,
            "");
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < pitch_to; ++j) {
      const size_t at = size_t(i) * size_t(pitch_to) + size_t(j);
      if (j >= n) {
        ASSERT_EQ(to.get(at), before.get(at)) << "between rows";
        continue;
      }
      double sum = 0;
      for (int p = 0; p < k; ++p)
        sum += x.get(size_t(x_transposed ? p * pitch_x + i : i * pitch_x + p)) *
               y.get(size_t(y_transposed ? j * pitch_y + p : p * pitch_y + j));
      const double want = 0.5 * sum + (beta != 0.f ? beta * (apart ? plus : before).get(at) : 0);
      ASSERT_NEAR(to.get(at), want, (1 + std::abs(want)) * (rounding_of(out) + 1e-6 * std::sqrt(k)))
          << m << " x " << n << " x " << k << " at " << i << ", " << j;
    }
}

TEST(Gemm, every_layout_dtype_and_size) {
  Device own_loop = this_cpu();
  own_loop.features = 0, own_loop.units = 3;
  for (const Device& d : {this_cpu(), own_loop})
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {65, 70, 130}, {3, 200, 64}, {128, 5, 0}, {200, 33, 257}})
      for (const int layout : {0, 1, 2, 3})
        for (const auto& [in, out] : {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::bf16},
                                      {DType::bf16, DType::f32}, {DType::f16, DType::f16}})
          for (const float beta : {0.f, 1.f, -0.25f})
            compare(d, m, n, k, layout & 1, layout & 2, in, out, beta, layout == 2);
}

TEST(Gemm, bits_do_not_depend_on_threads) {
  for (const uint32_t features : {this_cpu().features, 0u}) {
    std::vector<float> first;
    for (const int units : {1, 2, 5}) {
      Device d = this_cpu();
      d.units = units, d.features = features;
      Numbers x(300 * 200, DType::f32, 1), y(200 * 150, DType::f32, 2);
      std::vector<float> to(300 * 150);
      ASSERT_EQ(gemm(d, {.m = 300, .n = 150, .k = 200, .pitch_x = 200, .pitch_y = 150, .pitch_to = 150, .x = x.data(),
                         .y = y.data(), .to = to.data()}, nullptr, nullptr).message, "");
      if (first.empty()) first = to;
      EXPECT_EQ(to, first);
    }
  }
}

TEST(Gemm, refuses_other_dtypes) {
  EXPECT_EQ(gemm(this_cpu(), {.in = DType::f64, .out = DType::f64, .m = 1, .n = 1, .k = 1}, nullptr, nullptr).message,
            "gemm: f64 to f64 given; f32, f16 and bf16 are accepted, to the same type or f32");
}

}  // namespace
}  // namespace attune
