// SPDX-License-Identifier: Apache-2.0
// The loops for few rows of every machine that has them, compared with the plain formula in double.
#include <cmath>
#include <random>

#include "tests/machine/machines.h"

namespace attune {
namespace {

class RowLoops : public testing::TestWithParam<const CpuKernels*> {
 protected:
  const CpuKernels& m = *GetParam();
  std::mt19937 random{7};

  void SetUp() override {
    if (!m.row_scores) GTEST_SKIP() << "requires loops for few rows, but those of " << m.isa << " are for panels only";
  }
  std::vector<float> numbers(size_t count, float least = -1) {
    std::vector<float> x(count);
    for (float& y : x) y = std::uniform_real_distribution<float>(least, 1)(random);
    return x;
  }
  // Rows of keys in the machine's dtype, `numbers` after rounding, and their addresses.
  struct Keys {
    std::vector<float> numbers;
    std::vector<char> memory;
    std::vector<const void*> rows{};
  };
  Keys keys(int n, int dim) {
    const size_t size = size_t(size_of(m.dtype)), pitch = (size_t(dim) + 3) * size;
    Keys k{numbers(size_t(n) * size_t(dim)), std::vector<char>(size_t(n) * pitch, char(0xFF))};  // NaN between rows
    for (int j = 0; j < n; ++j) {
      char* to = k.memory.data() + size_t(j) * pitch;
      m.narrow(&k.numbers[size_t(j) * size_t(dim)], dim, to);
      m.widen(to, dim, &k.numbers[size_t(j) * size_t(dim)]);
      k.rows.push_back(to);
    }
    return k;
  }
};

constexpr int kStride = 48, kGuard = 4;

TEST_P(RowLoops, scores_are_dot_products) {
  for (const int dim : {8, 24, 64, 72, 256})
    for (int rows = 1; rows <= 4; ++rows)
      for (const int n : {1, 2, 3, 7, 8, 9, 31}) {
        const Keys k = keys(n, dim);
        const std::vector<float> q = numbers(size_t(rows * dim));
        std::vector<float> s(4 * kStride + kGuard, 3.f);
        m.row_scores(q.data(), rows, k.rows.data(), n, dim, s.data(), kStride);
        for (int r = 0; r < 4; ++r)
          for (int j = 0; j < kStride; ++j) {
            double want = 0;
            for (int d = 0; r < rows && j < n && d < dim; ++d)
              want += double(q[size_t(r * dim + d)]) * k.numbers[size_t(j * dim + d)];
            if (r >= rows || j >= n) want = 3;  // untouched
            ASSERT_NEAR(s[size_t(r * kStride + j)], want, 1e-5) << rows << " rows, " << n << " keys, dim " << dim;
          }
      }
}

TEST_P(RowLoops, a_score_has_the_same_bits_whatever_its_neighbours) {
  constexpr int kDim = 72, kKeys = 17;
  const Keys k = keys(kKeys, kDim);
  const std::vector<float> q = numbers(4 * kDim);
  std::vector<float> all(4 * kStride), one(kStride);
  m.row_scores(q.data(), 4, k.rows.data(), kKeys, kDim, all.data(), kStride);
  for (int r = 0; r < 4; ++r)
    for (int j = 0; j < kKeys; ++j) {
      m.row_scores(&q[size_t(r * kDim)], 1, &k.rows[size_t(j)], 1, kDim, one.data(), kStride);
      ASSERT_EQ(one[0], all[size_t(r * kStride + j)]);
    }
}

TEST_P(RowLoops, weights_are_powers_of_two) {
  for (const float ref : {0.f, 5.f, -3e7f}) {
    std::vector<float> s(32), x;
    for (size_t j = 0; j < s.size(); ++j) s[j] = j % 5 == 4 ? -INFINITY : ref - float(j) / 2;
    x = s;
    double sum = 0;
    const float got = m.row_weights(s.data(), int(s.size()), ref);
    for (size_t j = 0; j < s.size(); ++j) {
      const double want = std::exp2(double(x[j]) - ref);
      EXPECT_NEAR(s[j], want, 5e-7 * want) << j;
      sum += want;
    }
    EXPECT_NEAR(got, sum, 1e-6 * sum);
  }
  std::vector<float> s(16, 0.f);
  s[3] = NAN;
  EXPECT_TRUE(std::isnan(m.row_weights(s.data(), 16, 0.f)));
  EXPECT_TRUE(std::isnan(s[3]) && !std::isnan(s[4]));
}

TEST_P(RowLoops, accumulate_adds_products) {
  for (const int dim : {8, 24, 64, 72, 256})
    for (int rows = 1; rows <= 4; ++rows)
      for (const int n : {1, 3, 31}) {
        const Keys v = keys(n, dim);
        const std::vector<float> p = numbers(4 * kStride, 0), before = numbers(size_t(4 * dim + kGuard));
        std::vector<float> o = before;
        m.row_accumulate(p.data(), rows, kStride, v.rows.data(), n, dim, o.data());
        for (int at = 0; at < 4 * dim + kGuard; ++at) {
          double want = before[size_t(at)];
          for (int j = 0; at < rows * dim && j < n; ++j)
            want += double(p[size_t(at / dim * kStride + j)]) * v.numbers[size_t(j * dim + at % dim)];
          ASSERT_NEAR(o[size_t(at)], want, 1e-5) << rows << " rows, " << n << " keys, dim " << dim;
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Cpu, RowLoops, testing::ValuesIn(machines()), label);

}  // namespace
}  // namespace attune
