// SPDX-License-Identifier: Apache-2.0
// Every loop of every machine that this CPU can run, compared with the plain formula in double, at each feature level.
// Panels are opaque, so the machine's own loops fill and read them: p is read by multiplying it with the unit matrix.
#include "machine/cpu/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <list>
#include <random>
#include <vector>

#include "core/mask.h"
#include "tests/machine/machines.h"

namespace attune {
namespace {

using Matrix = std::vector<std::vector<double>>;

constexpr size_t kGuard = 256;  // bytes of poison behind every buffer

// Memory filled with NaN, followed by a guard that must not change.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count) : bytes_(count * sizeof(T)), memory_(bytes_ + kGuard + 256, char(0xFF)) {
    const size_t at = reinterpret_cast<uintptr_t>(memory_.data()) % 64;
    start_ = memory_.data() + (at ? 64 - at : 0);
  }
  T* data() { return reinterpret_cast<T*>(start_); }
  T& operator[](size_t n) { return data()[n]; }
  bool guarded() const {
    for (size_t n = 0; n < kGuard; ++n)
      if (start_[bytes_ + n] != char(0xFF)) return false;
    return true;
  }

 private:
  size_t bytes_;
  std::vector<char> memory_;
  char* start_;
};

double rounded(DType t, double x) {
  if (t == DType::f16) return F16(float(x));
  if (t == DType::bf16) return Bf16(float(x));
  return float(x);
}

class Kernels : public testing::TestWithParam<const CpuKernels*> {
 protected:
  const CpuKernels& m = *GetParam();
  std::mt19937 random{7};
  // The error of rounding an operand, and of the exponential on a machine with bf16 operands.
  const double operand = m.operand_bytes == 2 ? rounding_of(DType::bf16) : rounding_of(DType::f32);
  const double exponential = m.operand_bytes == 2 ? 1e-4 : 5e-7;

  double draw(double from = -1, double to = 1) { return std::uniform_real_distribution<double>(from, to)(random); }

  // Rows in memory layout, with poison behind each.
  struct Stored {
    Matrix values;
    Buffer<char> memory;
    std::vector<const void*> rows;
  };
  Stored stored(int n, int dim) {
    const int size = size_of(m.dtype), stride = (dim + 8) * size;
    Stored s{Matrix(n, std::vector<double>(dim)), Buffer<char>(size_t(n) * stride), {}};
    std::vector<float> row(dim);
    for (int r = 0; r < n; ++r) {
      for (int d = 0; d < dim; ++d) row[d] = float(s.values[r][d] = rounded(m.dtype, draw()));
      m.narrow(row.data(), dim, s.memory.data() + int64_t(r) * stride);
      s.rows.push_back(s.memory.data() + int64_t(r) * stride);
    }
    return s;
  }

  // Rows as panels of s, and back.
  Buffer<float> panel_of(const Matrix& plain) {
    const int n = int(plain[0].size());
    Buffer<float> rows(size_t(m.rows) * n), s(size_t(m.rows) * n);
    for (int r = 0; r < m.rows; ++r)
      for (int j = 0; j < n; ++j) rows[size_t(r) * n + j] = float(plain[r][j]);
    m.write_scores(rows.data(), n, n, s.data());
    EXPECT_TRUE(s.guarded());
    return s;
  }
  Matrix plain_of(Buffer<float>& s, int n) {
    const int stride = n + 3;
    Buffer<float> rows(size_t(m.rows) * stride);
    m.read_scores(s.data(), n, rows.data(), stride);
    EXPECT_TRUE(rows.guarded());
    Matrix plain(m.rows, std::vector<double>(n));
    for (int r = 0; r < m.rows; ++r)
      for (int j = 0; j < n; ++j) plain[r][j] = rows[size_t(r) * stride + j];
    return plain;
  }
  Matrix random_rows(int n, double from, double to) {
    Matrix plain(m.rows, std::vector<double>(n));
    for (auto& row : plain)
      for (double& x : row) x = float(draw(from, to));
    return plain;
  }
  int keys_of(int n) const { return int(round_up(n, m.keys)); }
  int padded(int dim) const { return int(round_up(dim, m.dim_step)); }
  Buffer<char> operand_panel(int n) { return Buffer<char>(size_t(m.rows) * n * m.operand_bytes); }

  // The weights of a panel: o = p times the unit matrix.
  Matrix weights_of(Buffer<char>& p, int n) {
    const int dim = padded(int(round_up(n, 8)));
    std::vector<std::vector<char>> unit(n, std::vector<char>(size_t(dim) * size_of(m.dtype)));
    std::vector<const void*> rows;
    for (int j = 0; j < n; ++j) {
      std::vector<float> row(dim);
      row[j] = 1.f;
      m.narrow(row.data(), dim, unit[j].data());
      rows.push_back(unit[j].data());
    }
    Buffer<char> v(size_t(n) * dim * m.operand_bytes);
    m.pack_v(rows.data(), n, dim, v.data(), n);
    Buffer<float> o(size_t(m.rows) * dim);
    std::fill_n(o.data(), m.rows * dim, 0.f);
    m.accumulate(p.data(), v.data(), n, 0, n, dim, o.data());
    EXPECT_TRUE(v.guarded() && o.guarded());
    return unpacked(o, dim, n);
  }
  Matrix unpacked(Buffer<float>& o, int dim, int n) {
    const std::vector<float> one(m.rows, 1.f);
    Buffer<float> rows(size_t(m.rows) * dim);
    m.unpack(o.data(), dim, one.data(), m.rows, rows.data(), dim);
    EXPECT_TRUE(rows.guarded());
    Matrix plain(m.rows, std::vector<double>(n));
    for (int r = 0; r < m.rows; ++r)
      for (int d = 0; d < n; ++d) plain[r][d] = rows[size_t(r) * dim + d];
    return plain;
  }
};

TEST_P(Kernels, are_shaped_as_the_algorithm_expects) {
  EXPECT_EQ(m.rows % 4, 0);
  EXPECT_LE(m.rows, 64);
  EXPECT_EQ(m.tile % m.keys, 0);
  EXPECT_LE(m.tile, 512);
  EXPECT_TRUE(8 % m.dim_step == 0 || m.dim_step % 8 == 0);
}

TEST_P(Kernels, scores_are_dot_products_and_padding_is_zero) {
  for (const int dim : {8, 16, 24, 64, 72, 128, 200, 256})
    for (const int keys : {1, 7, 8, 31, m.tile}) {
      const int used = 1 + int(draw(0, m.rows - 0.01)), n = keys_of(keys), wide = padded(dim);
      const double scale = m.scale_in_q ? 0.37f : 1.0;
      Stored q = stored(used, dim), k = stored(keys, dim);
      Buffer<char> q_panel = operand_panel(wide), k_tile(size_t(n) * wide * m.operand_bytes);
      m.pack_q(q.rows.data(), used, dim, float(scale), q_panel.data());
      m.pack_k(k.rows.data(), keys, dim, k_tile.data());
      ASSERT_TRUE(q_panel.guarded() && k_tile.guarded());
      Buffer<float> s(size_t(m.rows) * n), top(m.rows);
      m.scores(q_panel.data(), k_tile.data(), n, wide, s.data(), top.data());
      ASSERT_TRUE(s.guarded() && top.guarded());
      const Matrix got = plain_of(s, n);
      for (int r = 0; r < m.rows; ++r) {
        double most = -INFINITY;
        for (int j = 0; j < n; ++j) {
          double sum = 0, size = 0;
          if (r < used && j < keys)
            for (int d = 0; d < dim; ++d) {
              sum += q.values[r][d] * k.values[j][d] * scale;
              size += std::fabs(q.values[r][d] * k.values[j][d] * scale);
            }
          ASSERT_NEAR(got[r][j], sum, 4e-7 * size) << "dim " << dim << " keys " << keys << " row " << r << " key " << j;
          most = std::max(most, got[r][j]);
        }
        ASSERT_EQ(top[size_t(r)], most) << "row " << r;
      }
    }
}

TEST_P(Kernels, a_nan_reaches_its_row_only) {
  const int n = keys_of(8), wide = padded(16);
  Stored q = stored(3, 16), k = stored(n, 16);
  const float nan = NAN;
  m.narrow(&nan, 1, const_cast<void*>(q.rows[1]));
  Buffer<char> q_panel = operand_panel(wide), k_tile(size_t(n) * wide * m.operand_bytes);
  m.pack_q(q.rows.data(), 3, 16, 1.f, q_panel.data());
  m.pack_k(k.rows.data(), n, 16, k_tile.data());
  Buffer<float> s(size_t(m.rows) * n), top(m.rows);
  m.scores(q_panel.data(), k_tile.data(), n, wide, s.data(), top.data());
  const std::vector<float> ref(m.rows, 2.f);
  std::vector<float> sum(m.rows, 0.f);
  Buffer<char> p = operand_panel(n);
  m.weights(s.data(), n, 1.f, ref.data(), sum.data(), p.data());
  const Matrix weights = weights_of(p, n);
  for (int r = 0; r < m.rows; ++r) {
    EXPECT_EQ(std::isnan(sum[r]), r == 1) << r;
    EXPECT_EQ(std::isnan(weights[r][3]), r == 1) << r;
  }
}

TEST_P(Kernels, hide_leaves_what_a_row_sees) {
  for (const int n : {m.keys, 3 * m.keys, m.tile}) {
    const Matrix before = random_rows(n, -5, 5);
    Buffer<float> s = panel_of(before), top(m.rows);
    std::vector<int> first(m.rows), last(m.rows);
    for (int r = 0; r < m.rows; ++r) {
      first[r] = int(draw(-5, n)), last[r] = int(draw(-5, n + 5));
      if (r == 0) first[r] = 0, last[r] = n;
      if (r == 1) first[r] = last[r] = n / 2;
    }
    m.hide(s.data(), n, first.data(), last.data(), top.data());
    ASSERT_TRUE(s.guarded() && top.guarded());
    const Matrix got = plain_of(s, n);
    for (int r = 0; r < m.rows; ++r) {
      double most = -INFINITY;
      for (int j = 0; j < n; ++j) {
        const double want = first[r] <= j && j < last[r] ? before[r][j] : -INFINITY;
        ASSERT_EQ(got[r][j], want) << "row " << r << " key " << j << " of " << first[r] << ", " << last[r];
        most = std::max(most, want);
      }
      ASSERT_EQ(top[size_t(r)], most) << r;
    }
  }
}

TEST_P(Kernels, weights_are_powers_of_two_and_hidden_keys_are_zero) {
  const float scale = m.scale_in_q ? 1.f : 0.75f;
  for (const int n : {m.keys, 5 * m.keys, m.tile < 256 ? m.tile : 256}) {
    Matrix plain = random_rows(n, -30, 8);
    std::vector<float> ref(m.rows), sum(m.rows);
    for (int r = 0; r < m.rows; ++r) {
      ref[r] = r == 1 ? -INFINITY : r == 2 ? 3e6f : std::round(float(draw(-40, 40)));
      sum[r] = float(draw(0, 3));
      for (double& x : plain[r]) x = float((x + (r == 1 ? -1 : double(ref[r]))) / scale);
      plain[r][0] = -INFINITY;
      plain[r][1] = (r == 1 ? 0 : ref[r]) / scale - 400;  // far below the maximum
      if (r == 0) plain[r].assign(n, -INFINITY);
    }
    Buffer<float> s = panel_of(plain);
    Buffer<char> p = operand_panel(n);
    const std::vector<float> sum_before = sum;
    m.weights(s.data(), n, scale, ref.data(), sum.data(), p.data());
    ASSERT_TRUE(p.guarded());
    const Matrix got = weights_of(p, n);
    for (int r = 0; r < m.rows; ++r) {
      double total = sum_before[r];
      for (int j = 0; j < n; ++j) {
        // The argument itself is rounded to f32 once.
        const double x = plain[r][j] * scale - (r == 1 ? 0 : ref[r]), want = std::exp2(x);
        const double argument = std::isinf(x) ? 0 : std::fabs(plain[r][j] * scale) * 0x1p-23;
        ASSERT_NEAR(got[r][j], want, want * (exponential + operand + argument) + 2e-38) << "row " << r << " key " << j;
        if (plain[r][j] == -INFINITY) {
          ASSERT_EQ(got[r][j], 0);
        }
        total += want;
      }
      const double argument = (r == 1 ? 0 : std::fabs(ref[r])) * 0x1p-23;
      ASSERT_NEAR(sum[r], total, total * (exponential + 2e-6 + argument)) << "row " << r;
    }
  }
}

TEST_P(Kernels, p_has_weights_as_they_are_said_to_be_rounded) {
  EXPECT_EQ(m.rounded_weight != nullptr, m.operand_bytes == 2);
  const int n = m.keys;
  Buffer<float> rows(size_t(m.rows) * n);
  for (int at = 0; at < m.rows * n; ++at)  // every second one halfway between two bf16, odd and even
    rows[at] = at % 2 ? float(draw(0.5, 1)) : float(0.5 + 0x1p-9 + at / 2 * 0x1p-8);
  Buffer<char> p = operand_panel(n);
  m.write_weights(rows.data(), n, n, p.data());
  const Matrix got = weights_of(p, n);
  for (int r = 0; r < m.rows; ++r)
    for (int j = 0; j < n; ++j) {
      const float x = rows[size_t(r) * n + j];
      EXPECT_EQ(got[r][j], m.rounded_weight ? m.rounded_weight(x) : x) << x;
    }
}

TEST_P(Kernels, accumulate_adds_products_of_a_part_of_a_tile) {
  for (const int dim : {8, 40, 64, 128, 256})
    for (const int keys : {5, 8, 33, 96}) {
      const int room = keys_of(keys) + m.keys, wide = padded(dim);
      Stored v = stored(keys, dim);
      Buffer<char> tile(size_t(room) * wide * m.operand_bytes);
      m.pack_v(v.rows.data(), keys, dim, tile.data(), room);
      ASSERT_TRUE(tile.guarded());
      Buffer<float> o(size_t(m.rows) * wide);
      std::fill_n(o.data(), m.rows * wide, 0.f);
      Matrix want(m.rows, std::vector<double>(dim)), size = want;
      const int all = keys_of(keys);
      std::vector<float> factor(m.rows);
      for (const auto& [first, n] : {std::pair{0, all}, {all - m.keys, m.keys}, {0, m.keys}}) {
        for (int r = 0; r < m.rows; ++r) factor[r] = float(draw(0, 1));
        m.rescale(o.data(), wide, factor.data());
        Matrix plain = random_rows(n, 0, 1);
        Buffer<float> rows(size_t(m.rows) * n);
        for (int r = 0; r < m.rows; ++r)
          for (int j = 0; j < n; ++j) {
            plain[r][j] = rounded(m.operand_bytes == 2 ? DType::bf16 : DType::f32, plain[r][j]);
            rows[size_t(r) * n + j] = float(plain[r][j]);
          }
        Buffer<char> p = operand_panel(n);
        m.write_weights(rows.data(), n, n, p.data());
        ASSERT_TRUE(p.guarded());
        m.accumulate(p.data(), tile.data(), room, first, n, wide, o.data());
        ASSERT_TRUE(o.guarded());
        for (int r = 0; r < m.rows; ++r)
          for (int d = 0; d < dim; ++d) {
            want[r][d] *= factor[r], size[r][d] *= factor[r];
            for (int j = 0; j < n && first + j < keys; ++j) {
              want[r][d] += plain[r][j] * v.values[first + j][d];
              size[r][d] += std::fabs(plain[r][j] * v.values[first + j][d]);
            }
          }
      }
      const Matrix got = unpacked(o, dim, dim);
      for (int r = 0; r < m.rows; ++r)
        for (int d = 0; d < dim; ++d)
          ASSERT_NEAR(got[r][d], want[r][d], 4e-7 * size[r][d]) << "dim " << dim << " row " << r << " d " << d;
    }
}

TEST_P(Kernels, runs_of_keys_add_up_as_one_after_the_other) {
  if (!m.accumulate_runs) GTEST_SKIP() << "this machine adds run by run: there is no loop over several";
  const int room = 4 * m.keys, many = 19, wide = padded(40);
  std::vector<Stored> stored_v;
  std::vector<Buffer<char>> tiles;
  std::vector<KeyRun> runs;
  int all = 0;
  for (int n = 0; n < many; ++n) {
    stored_v.push_back(stored(room, 40));
    tiles.emplace_back(size_t(room) * wide * m.operand_bytes);
    m.pack_v(stored_v.back().rows.data(), room, 40, tiles.back().data(), room);
    runs.push_back({tiles.back().data(), n % 2 * m.keys, (1 + n % 3) * m.keys});
    all += runs.back().n;
  }
  const Matrix plain = random_rows(all, 0, 1);
  Buffer<float> rows(size_t(m.rows) * all), want(size_t(m.rows) * wide), got(size_t(m.rows) * wide);
  for (int r = 0; r < m.rows; ++r)
    for (int j = 0; j < all; ++j) rows[size_t(r) * all + j] = float(plain[r][j]);
  Buffer<char> p = operand_panel(all);
  m.write_weights(rows.data(), all, all, p.data());
  for (int n = 0; n < m.rows * wide; ++n) want[n] = got[n] = float(n % 7);
  int done = 0;
  for (const KeyRun& run : runs) {
    m.accumulate(p.data() + int64_t(done) * m.rows * m.operand_bytes, run.v, room, run.first, run.n, wide, want.data());
    done += run.n;
  }
  m.accumulate_runs(p.data(), runs.data(), many, room, wide, got.data());
  ASSERT_TRUE(got.guarded());
  EXPECT_EQ(std::memcmp(want.data(), got.data(), size_t(m.rows) * wide * sizeof(float)), 0);
}

// From q to o: the result of a row does not depend on the size of its panel.
TEST_P(Kernels, smaller_panels_give_the_same_bits) {
  const CpuKernels* small = smaller_panels(m);
  if (!small) GTEST_SKIP() << "this machine has panels of one size";
  const int dim = 64, keys = 5 * m.keys, rows = small->rows;
  Stored q = stored(m.rows, dim), k = stored(keys, dim), v = stored(keys, dim);
  const auto attend = [&](const CpuKernels& by) {
    Buffer<char> q_panel(size_t(by.rows) * dim * by.operand_bytes), k_tile(size_t(keys) * dim * by.operand_bytes),
        v_tile(size_t(keys) * dim * by.operand_bytes), p(size_t(by.rows) * keys * by.operand_bytes);
    Buffer<float> s(size_t(by.rows) * keys), o(size_t(by.rows) * dim), out(size_t(by.rows) * dim);
    std::vector<float> top(by.rows), ref(by.rows, 1.f), sum(by.rows, 0.f), one(by.rows, 1.f);
    by.pack_q(q.rows.data(), by.rows, dim, 1.f, q_panel.data());
    by.pack_k(k.rows.data(), keys, dim, k_tile.data());
    by.pack_v(v.rows.data(), keys, dim, v_tile.data(), keys);
    by.scores(q_panel.data(), k_tile.data(), keys, dim, s.data(), top.data());
    by.weights(s.data(), keys, 1.f, ref.data(), sum.data(), p.data());
    std::fill_n(o.data(), by.rows * dim, 0.f);
    by.accumulate(p.data(), v_tile.data(), keys, 0, keys, dim, o.data());
    by.unpack(o.data(), dim, one.data(), by.rows, out.data(), dim);
    std::vector<float> all(out.data(), out.data() + rows * dim);
    all.insert(all.end(), sum.begin(), sum.begin() + rows);
    return all;
  };
  EXPECT_EQ(attend(m), attend(*small));
}

TEST_P(Kernels, panels_of_four_that_lie_apart_give_the_same_bits_as_one_panel) {
  if (!m.scores_gathered) GTEST_SKIP() << "this machine has no panel whose rows lie apart";
  const CpuKernels* four = &m;
  while (four->rows > 4) ASSERT_TRUE(four = smaller_panels(*four));
  const int dim = 72, keys = 5 * m.keys, many = m.rows / 4;
  Stored q = stored(m.rows, dim), k = stored(keys, dim), v = stored(keys, dim);
  Buffer<char> q_panel = operand_panel(dim), k_tile(size_t(keys) * dim * m.operand_bytes),
               v_tile(size_t(keys) * dim * m.operand_bytes), p = operand_panel(keys);
  Buffer<float> s(size_t(m.rows) * keys), s_apart(size_t(m.rows) * keys), o(size_t(m.rows) * dim);
  std::vector<float> top(m.rows), top_apart(m.rows), ref(m.rows, 1.f), sum(m.rows, 0.f), one(m.rows, 1.f);
  m.pack_k(k.rows.data(), keys, dim, k_tile.data());
  m.pack_v(v.rows.data(), keys, dim, v_tile.data(), keys);
  m.pack_q(q.rows.data(), m.rows, dim, 1.f, q_panel.data());
  m.scores(q_panel.data(), k_tile.data(), keys, dim, s.data(), top.data());
  std::list<Buffer<char>> q_of;
  std::list<Buffer<float>> o_of;
  std::vector<const void*> queries;
  std::vector<float*> sums;
  for (int n = many - 1; n >= 0; --n) {  // in a different order from their rows
    four->pack_q(q.rows.data() + 4 * n, 4, dim, 1.f, q_of.emplace_back(size_t(4 * dim * m.operand_bytes)).data());
    queries.insert(queries.begin(), q_of.back().data());
    float* const zeros = o_of.emplace_back(size_t(4 * dim)).data();
    std::fill_n(zeros, 4 * dim, float(n));
    sums.insert(sums.begin(), zeros);
  }
  m.scores_gathered(queries.data(), k_tile.data(), keys, dim, s_apart.data(), top_apart.data());
  EXPECT_EQ(top, top_apart);
  EXPECT_EQ(plain_of(s, keys), plain_of(s_apart, keys));
  m.weights(s.data(), keys, 1.f, ref.data(), sum.data(), p.data());
  std::fill_n(o.data(), m.rows * dim, 0.f);
  m.accumulate(p.data(), v_tile.data(), keys, 0, keys, dim, o.data());
  m.accumulate_scattered(p.data(), v_tile.data(), keys, keys, dim, sums.data());
  Buffer<float> whole(size_t(m.rows) * dim), part(size_t(4 * dim));
  m.unpack(o.data(), dim, one.data(), m.rows, whole.data(), dim);
  for (int n = 0; n < many; ++n) {
    four->unpack(sums[size_t(n)], dim, one.data(), 4, part.data(), dim);
    for (int i = 0; i < 4 * dim; ++i)
      ASSERT_NEAR(part[size_t(i)], whole[size_t(4 * n * dim + i)] + float(n), 1e-4) << "panel " << n;
  }
  for (const auto& x : o_of) EXPECT_TRUE(x.guarded());
  EXPECT_TRUE(s_apart.guarded());
}

TEST_P(Kernels, add_row_changes_one_row) {
  for (const int dim : {8, 24, 64, 256})
    for (const int row : {0, 1, m.rows / 2 + 1, m.rows - 1}) {
      const int wide = padded(dim);
      Buffer<float> o(size_t(m.rows) * wide);
      for (int n = 0; n < m.rows * wide; ++n) o[size_t(n)] = float(draw());
      const Matrix before = unpacked(o, wide, dim);
      std::vector<float> x(size_t(wide), 0.f);
      for (int d = 0; d < dim; ++d) x[size_t(d)] = float(d + 2);
      m.add_row(x.data(), wide, row, o.data());
      ASSERT_TRUE(o.guarded());
      const Matrix after = unpacked(o, wide, dim);
      for (int r = 0; r < m.rows; ++r)
        for (int d = 0; d < dim; ++d)
          ASSERT_EQ(float(after[r][d]), float(before[r][d]) + (r == row ? x[size_t(d)] : 0.f)) << r << ", " << d;
    }
}

TEST_P(Kernels, unpack_writes_the_rows_asked_for_and_no_others) {
  for (const int n : {1, 3, m.rows - 1, m.rows}) {
    const int dim = 24, stride = 29;
    Buffer<float> o(size_t(m.rows) * padded(dim));
    std::fill_n(o.data(), m.rows * padded(dim), 3.f);
    std::vector<float> factor(m.rows);
    for (int r = 0; r < m.rows; ++r) factor[r] = float(r + 1);
    Buffer<float> rows(size_t(m.rows) * stride);
    m.unpack(o.data(), dim, factor.data(), n, rows.data(), stride);
    ASSERT_TRUE(rows.guarded());
    for (int r = 0; r < m.rows; ++r)
      for (int d = 0; d < stride; ++d) {
        const float got = rows[size_t(r) * stride + d];
        if (r < n && d < dim) {
          ASSERT_EQ(got, 3.f * (r + 1)) << r;
        } else {
          ASSERT_TRUE(std::isnan(got)) << "row " << r << " of " << n << ", " << d;
        }
      }
  }
}

TEST_P(Kernels, add_is_unpack_and_add_for_the_rows_asked_for) {
  if (!m.add) GTEST_SKIP() << "this machine has no add of its own: rows are unpacked and added";
  for (const int n : {1, 3, m.rows - 1, m.rows}) {
    const int dim = 24, stride = 29;
    Buffer<float> o(size_t(m.rows) * padded(dim)), parts(size_t(m.rows) * dim), rows(size_t(m.rows) * stride);
    for (int i = 0; i < m.rows * padded(dim); ++i) o[size_t(i)] = float(draw());
    const std::vector<float> factor(m.rows, 0.3f);
    m.unpack(o.data(), dim, factor.data(), m.rows, parts.data(), dim);
    std::vector<float*> to(m.rows, nullptr);  // rows beyond n must not be touched
    std::vector<float> before(size_t(n) * dim);
    for (int r = 0; r < n; ++r) {
      to[r] = &rows[size_t((r * 5 + 2) % m.rows) * stride];
      for (int d = 0; d < dim; ++d) before[size_t(r) * dim + d] = to[r][d] = float(draw());
    }
    m.add(o.data(), dim, 0.3f, n, to.data());
    ASSERT_TRUE(rows.guarded());
    for (int r = 0; r < n; ++r) {
      for (int d = 0; d < dim; ++d)
        ASSERT_EQ(to[r][d], before[size_t(r) * dim + d] + parts[size_t(r) * dim + d]) << r << " " << d;
      ASSERT_TRUE(std::isnan(to[r][dim])) << "behind row " << r;
    }
  }
}

TEST_P(Kernels, gradients_and_their_transpose) {
  const float scale = m.scale_in_q ? 1.f : 0.75f;
  const int panels = 2, keys = panels * m.rows;  // panels of keys, adjacent in the result
  for (const int n : {keys_of(8), keys_of(24), keys_of(m.rows) + m.keys}) {
    const int query_panels = int(ceil_div(n, m.rows));
    const int64_t panel = int64_t(keys) * m.rows;
    Buffer<char> exchanged(size_t(query_panels * panel) * m.operand_bytes);
    std::memset(exchanged.data(), 0, size_t(query_panels * panel) * m.operand_bytes);
    Matrix want(n, std::vector<double>(keys)), size = want;
    for (int at = 0; at < keys; at += m.rows) {
      Matrix s = random_rows(n, -20, 0);
      const Matrix dp = random_rows(n, -2, 2);
      std::vector<float> lse(n), delta(n);
      for (int j = 0; j < n; ++j) lse[j] = j == 3 ? INFINITY : float(draw(-1, 4)), delta[j] = float(draw());
      s[1].assign(n, -INFINITY);
      Buffer<float> s_panel = panel_of(s), dp_panel = panel_of(dp);
      Buffer<char> p = operand_panel(n), ds = operand_panel(n);
      const float sum =
          m.gradients(s_panel.data(), dp_panel.data(), n, scale, lse.data(), delta.data(), p.data(), ds.data());
      ASSERT_TRUE(p.guarded() && ds.guarded());
      const Matrix p_got = weights_of(p, n), ds_got = weights_of(ds, n);
      double whole = 0, apart = 0;
      for (int r = 0; r < m.rows; ++r)
        for (int j = 0; j < n; ++j) {
          const double weight = std::exp2(s[r][j] * scale - lse[j]), far = std::fabs(dp[r][j]) + std::fabs(delta[j]);
          ASSERT_NEAR(p_got[r][j], weight, weight * (exponential + operand + 4e-6) + 2e-38) << r << " " << j;
          want[j][at + r] = weight * (dp[r][j] - delta[j]);
          size[j][at + r] = weight * far * (exponential + operand + 4e-6) + 2e-38;
          ASSERT_NEAR(ds_got[r][j], want[j][at + r], size[j][at + r]) << r << " " << j;
          whole += want[j][at + r], apart += weight * far * (exponential + 4e-6);
        }
      ASSERT_NEAR(sum, whole, apart) << "of numbers that are not rounded to operands";
      if (m.summed_gradients) {
        const float near = m.summed_gradients(s_panel.data(), dp_panel.data(), n, scale, lse.data(), delta.data(),
                                              p.data(), ds.data());
        ASSERT_NEAR(near, whole, apart * 0.05) << "with exponentials of f32";
      }
      m.transpose(ds.data(), n, exchanged.data(), m.rows, panel, at);
      ASSERT_TRUE(exchanged.guarded());
      if (const CpuKernels* small = smaller_panels(m)) {  // the first key of every query, from smaller panels
        const int64_t size = int64_t(keys) * small->rows;
        Buffer<char> others(size_t(ceil_div(n, small->rows) * size) * m.operand_bytes);
        m.transpose(ds.data(), n, others.data(), small->rows, size, at);
        ASSERT_TRUE(others.guarded());
        for (int j = 0; j < n; ++j)
          for (int r = 0; r < m.rows; ++r) {
            const auto of = [&](Buffer<char>& x, int rows, int64_t stride) {
              const int group = m.operand_bytes == 2 ? 4 : 1;  // keys stored together
              return x.data() + (j / rows * stride + int64_t(at + r) / group * group * rows + j % rows * group +
                                 (at + r) % group) * m.operand_bytes;
            };
            ASSERT_EQ(std::memcmp(of(others, small->rows, size), of(exchanged, m.rows, panel), m.operand_bytes), 0)
                << "query " << j << " key " << r;
          }
      }
    }
    for (int q = 0; q < query_panels; ++q) {
      Buffer<char> one = operand_panel(keys);
      std::memcpy(one.data(), exchanged.data() + q * panel * m.operand_bytes, size_t(panel) * m.operand_bytes);
      const Matrix got = weights_of(one, keys);
      for (int r = 0; r < m.rows; ++r)
        for (int k = 0; k < keys; ++k) {
          const int j = q * m.rows + r;
          if (j < n) {
            ASSERT_NEAR(got[r][k], want[j][k], size[j][k]) << "query " << j << " key " << k;
          } else {
            ASSERT_EQ(got[r][k], 0) << "query " << j << " is beyond the end";
          }
        }
    }
  }
}

TEST_P(Kernels, numbers_widen_and_narrow_as_the_formats_say) {
  std::vector<float> values = {0.f, -0.f, 1.f, -2.5f, 65504.f, 65519.f, 65520.f, 1e-7f, 6e-8f, 3e-8f, 1e-40f, 3.4e38f,
                               INFINITY, -INFINITY, NAN, 1.00390625f, 1.01171875f, 1.00048828125f, 1.00146484375f};
  while (values.size() < 45) values.push_back(float(std::ldexp(draw(), int(draw(-20, 20)))));
  const uint32_t all_ones = 0x7FFFFFFF;  // a NaN that rounding up would change to 0
  std::memcpy(&values[20], &all_ones, 4);
  for (size_t n = 0; n <= values.size(); ++n) {
    Buffer<char> thin(n * size_of(m.dtype));
    Buffer<float> wide(n);
    m.narrow(values.data(), int64_t(n), thin.data());
    m.widen(thin.data(), int64_t(n), wide.data());
    ASSERT_TRUE(thin.guarded() && wide.guarded()) << n;
    for (size_t i = 0; i < n; ++i) {
      const float want = float(rounded(m.dtype, values[i]));
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(wide[i])) << values[i];
      } else {
        ASSERT_EQ(wide[i], want) << values[i];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Kernels, testing::ValuesIn(machines()), label);

TEST(KernelTables, fewer_features_never_give_more) {
  for (const DType t : {DType::f32, DType::f16, DType::bf16}) {
    const CpuKernels* scalar = best_kernels(t, 0);
    ASSERT_NE(scalar, nullptr);
    EXPECT_STREQ(scalar->isa, "scalar");
    EXPECT_EQ(scalar->dtype, t);
    const CpuKernels* best = best_kernels(t, this_cpu().features);
    ASSERT_NE(best, nullptr);
    EXPECT_EQ(best->dtype, t);
    EXPECT_EQ(best->needs & ~this_cpu().features, 0u);
  }
  EXPECT_EQ(best_kernels(DType::f64, ~0u), nullptr);
}

}  // namespace
}  // namespace attune
