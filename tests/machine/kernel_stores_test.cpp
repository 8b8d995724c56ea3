// SPDX-License-Identifier: Apache-2.0
// The optional loops of a machine that store and multiply whole rows, each compared with its fallback.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "attention/cpu/gradients.h"
#include "tests/machine/machines.h"

namespace attune {
namespace {

constexpr int kDim = 24, kStride = 32;

class Stores : public testing::TestWithParam<const CpuKernels*> {
 protected:
  const CpuKernels& m = *GetParam();
  std::mt19937 random{7};
  std::vector<float> o = drawn(m.rows * cpu::padded(m, kDim)), factor = drawn(m.rows);

  std::vector<float> drawn(int n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& y : x) y = std::uniform_real_distribution<float>(-1.f, 1.f)(random);
    return x;
  }
  std::vector<float> unpacked() const {
    std::vector<float> rows(size_t(m.rows * kDim));
    m.unpack(o.data(), kDim, factor.data(), m.rows, rows.data(), kDim);
    return rows;
  }
  // Rows in a different order from the panel's; null for rows beyond n.
  std::vector<char*> places(std::vector<char>& memory, int n, int size) const {
    std::vector<char*> to(size_t(m.rows), nullptr);
    for (int r = 0; r < n; ++r) to[size_t(r)] = memory.data() + (r * 5 + 2) % m.rows * kStride * size;
    return to;
  }
  std::vector<int> counts() const { return {1, 2, 3, m.rows - 1, m.rows}; }
};

TEST_P(Stores, store_is_unpack_and_narrow_for_the_rows_asked_for) {
  const std::vector<float> rows = unpacked();
  for (const DType t : {m.dtype, DType::f32})
    for (const int n : counts()) {
      const int size = size_of(t);
      std::vector<char> got(size_t(m.rows * kStride * size), 77), want = got;
      const std::vector<char*> to = places(got, n, size), place = places(want, n, size);
      std::vector<float> row(size_t(m.rows * kDim));
      cpu::store_panel(m, t, o.data(), kDim, factor.data(), n, row.data(), to.data());
      for (int r = 0; r < n; ++r) cpu::write_row(m, t, &rows[size_t(r * kDim)], kDim, place[size_t(r)]);
      ASSERT_EQ(got, want) << n << " rows of " << name(t);
    }
}

TEST_P(Stores, rows_of_f32_an_even_step_apart_are_stored_alike) {
  const std::vector<float> rows = unpacked();
  for (const int step : {kStride, -kStride}) {
    std::vector<float> got(size_t(m.rows * kStride), 77.f), want = got, row(size_t(m.rows * kDim));
    std::vector<char*> to;
    for (int r = 0; r < m.rows; ++r) {
      const size_t at = size_t((step > 0 ? r : m.rows - 1 - r) * kStride);
      to.push_back(reinterpret_cast<char*>(&got[at]));
      std::copy_n(&rows[size_t(r * kDim)], kDim, &want[at]);
    }
    cpu::store_panel(m, DType::f32, o.data(), kDim, factor.data(), m.rows, row.data(), to.data());
    ASSERT_EQ(got, want) << step;
  }
}

TEST_P(Stores, join_weighs_what_is_there_and_does_not_read_it_at_0) {
  if (!m.join) GTEST_SKIP() << "this machine has no join of its own: rows are unpacked and joined";
  const std::vector<float> rows = unpacked();
  for (const int n : counts()) {
    std::vector<float> memory = drawn(m.rows * kStride), before = drawn(m.rows);
    std::vector<char> bytes(memory.size() * sizeof(float));
    before[0] = 0.f;
    std::vector<char*> to = places(bytes, n, sizeof(float));
    std::memcpy(bytes.data(), memory.data(), bytes.size());
    const auto at = [&](int r) { return reinterpret_cast<float*>(to[size_t(r)]); };
    std::fill_n(at(0), kDim, NAN);
    const std::vector<char> kept = bytes;
    m.join(o.data(), kDim, factor.data(), before.data(), n, to.data());
    for (int r = 0; r < n; ++r)
      for (int d = 0; d < kStride; ++d) {
        const float was = reinterpret_cast<const float*>(kept.data() + (to[size_t(r)] - bytes.data()))[d];
        const float now = rows[size_t(r * kDim + (d < kDim ? d : 0))], weighed = was * before[size_t(r)];
        const float want = d >= kDim ? was : r == 0 ? now : now + weighed;
        ASSERT_FLOAT_EQ(at(r)[d], want) << r << " " << d;
      }
  }
}

TEST_P(Stores, dot_is_the_sum_of_products_of_every_dim) {
  for (int n = 1; n <= 72; ++n) {
    const std::vector<float> x = drawn(n), y = drawn(n);
    std::vector<char> a(size_t(n * size_of(m.dtype))), b = a;
    m.narrow(x.data(), n, a.data()), m.narrow(y.data(), n, b.data());
    std::vector<float> wide(x.size()), other(y.size());
    m.widen(a.data(), n, wide.data()), m.widen(b.data(), n, other.data());
    double want = 0;
    for (size_t i = 0; i < wide.size(); ++i) want += double(wide[i]) * double(other[i]);
    ASSERT_NEAR(cpu::dot_of(m, m.dtype, a.data(), b.data(), n), want, 2e-6 * n) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Stores, testing::ValuesIn(machines()), label);

TEST(FillSteps, agrees_with_each_row_wherever_it_begins_and_ends_to_grow) {
  for (int n = 1; n <= 14; ++n)
    for (int from = -3; from < 16; ++from)
      for (int until = from; until < 18; ++until) {
        const auto f = [&](int r) { return clamp(r, from, until); };
        int got[16], want[16];
        cpu::fill_steps(n, f, got), cpu::fill_each(n, f, want);
        for (int r = 0; r < n; ++r) ASSERT_EQ(got[r], want[r]) << n << " " << from << " " << until << " row " << r;
      }
}

}  // namespace
}  // namespace attune
