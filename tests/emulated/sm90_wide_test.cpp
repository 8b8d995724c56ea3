// Kernels of backward.sm90.wide.rows.h and .keys.h thread by thread on a CPU, against attention in double, at several
// paces of warps and copies.
#include <gtest/gtest.h>

#include "tests/emulated/gpu.h"

#include "attention/backward.sm90.wide.keys.h"
#include "attention/backward.sm90.wide.rows.h"
#include "core/mask.h"

namespace attune::sm90 {

alignas(1024) char memory[1];  // the kernels' name for shared memory: its address is 0 (barrier.h)

namespace {

struct Asked {
  int batch, heads, heads_kv, rows, keys, dim_qk, dim_v;
  Mask mask{};
  int blocks = 0;  // of rows, that stay; 0: one for each tile
};

// [batch][row][head][column], with columns behind those of a head that nobody reads or writes.
template <class T>
struct Rows {
  static constexpr int kMore = 8;
  int batch, rows, heads, dim;
  std::vector<T> x;

  Rows(int b, int r, int h, int d, std::mt19937* random) : batch(b), rows(r), heads(h), dim(d) {
    std::normal_distribution<float> normal;
    x.assign(at(batch, 0, 0), T(7.f));
    for (size_t n = 0; random && n < x.size(); ++n) x[n] = int(n) % (dim + kMore) < dim ? T(normal(*random)) : T(NAN);
  }
  size_t at(int b, int row, int head) const { return size_t(((b * rows + row) * heads + head) * (dim + kMore)); }
  double get(int b, int row, int head, int d) const { return double(float(x[at(b, row, head) + size_t(d)])); }
  CUtensorMap map(int box) {
    return {.data = reinterpret_cast<char*>(x.data()), .row = int64_t(at(0, 1, 0)), .head = int64_t(at(0, 0, 1)),
            .batch = int64_t(at(1, 0, 0)), .columns = dim, .rows = rows, .heads = heads, .batches = batch, .box = box};
  }
  // Of the size of what is wanted; infinite where a column behind a head was written.
  double error(const std::vector<double>& wanted) const {
    double off = 0, size = 0;
    for (size_t n = 0; n < x.size(); ++n) {
      const double e = double(float(x[n])) - wanted[n];
      if (int(n) % (dim + kMore) < dim) off += e == e ? e * e : INFINITY, size += wanted[n] * wanted[n];
      else if (float(x[n]) != 7.f) off = INFINITY;
    }
    return std::sqrt(off / size);
  }
};

template <class T, int DimQk, int DimV>
void expect_right(const Asked& w, unsigned seed) {
  using OfRows = WideRowsShape<T, DimQk, DimV>;
  using OfKeys = WideKeysShape<T, DimQk, DimV>;
  std::mt19937 random(seed);
  Rows<T> q(w.batch, w.rows, w.heads, w.dim_qk, &random), d_out(w.batch, w.rows, w.heads, w.dim_v, &random);
  Rows<T> k(w.batch, w.keys, w.heads_kv, w.dim_qk, &random), v(w.batch, w.keys, w.heads_kv, w.dim_v, &random);
  std::vector<double> want_dq(q.x.size()), want_dk(k.x.size()), want_dv(v.x.size());
  const Band band = band_of(w.mask, w.rows, w.keys, 0, 0);
  const int padded = int(round_up(w.rows, 128)), group = w.heads / w.heads_kv;
  const double scale = 1 / std::sqrt(double(w.dim_qk));
  std::vector<float2> stats(size_t(w.batch * w.heads * padded), float2{INFINITY, 0});
  const auto dot = [](const Rows<T>& a, const Rows<T>& b, int batch, int i, int h, int j, int head) {
    double sum = 0;
    for (int d = 0; d < a.dim; ++d) sum += a.get(batch, i, h, d) * b.get(batch, j, head, d);
    return sum;
  };
  for (int b = 0; b < w.batch; ++b)
    for (int h = 0; h < w.heads; ++h)
      for (int i = 0; i < w.rows; ++i) {
        const int head = h / group;
        std::vector<double> p(size_t(w.keys)), dp(p.size());
        double sum = 0, delta = 0;
        for (int j = 0; j < w.keys; ++j) {
          if (!band.visible(i, j)) continue;
          p[size_t(j)] = std::exp(dot(q, k, b, i, h, j, head) * scale), dp[size_t(j)] = dot(d_out, v, b, i, h, j, head);
          sum += p[size_t(j)], delta += p[size_t(j)] * dp[size_t(j)];
        }
        if (sum == 0) continue;
        delta /= sum;
        stats[size_t((b * w.heads + h) * padded + i)] = {float(std::log2(sum)), float(delta)};
        for (int j = 0; j < w.keys; ++j) {
          const double weight = p[size_t(j)] / sum, ds = weight * (dp[size_t(j)] - delta) * scale;
          for (int d = 0; d < w.dim_qk; ++d) {
            want_dq[q.at(b, i, h) + size_t(d)] += ds * k.get(b, j, head, d);
            want_dk[k.at(b, j, head) + size_t(d)] += ds * q.get(b, i, h, d);
          }
          for (int d = 0; d < w.dim_v; ++d)
            want_dv[v.at(b, j, head) + size_t(d)] += weight * d_out.get(b, i, h, d);
        }
      }
  for (unsigned pace = 0; pace < 4; ++pace) {
    Rows<T> dq(w.batch, w.rows, w.heads, w.dim_qk, nullptr);
    Rows<T> dk(w.batch, w.keys, w.heads_kv, w.dim_qk, nullptr), dv(w.batch, w.keys, w.heads_kv, w.dim_v, nullptr);
    const auto end = [](int64_t side) { return int(std::clamp<int64_t>(side, -(1 << 28), 1 << 28)); };
    const WideParams x{
        .q = q.map(64), .d_out = d_out.map(64), .k = k.map(64), .v = v.map(64),
        .dq = dq.map(16), .dk = dk.map(16), .dv = dv.map(16),
        .stats = {.data = reinterpret_cast<char*>(stats.data()), .row = 0, .head = 2 * padded,
                  .batch = 2 * padded * w.heads, .columns = 2 * padded, .rows = 1, .heads = w.heads,
                  .batches = w.batch, .box = 2 * 64, .line = true},
        .row_stats = stats.data(), .scale2 = float(scale) * kLog2e, .kept = 1, .scale = float(scale),
        .rows = w.rows, .keys = w.keys, .heads = w.heads, .heads_kv = w.heads_kv, .group = group,
        .left = end(band.left), .right = end(band.right), .offset = end(band.q_first - band.k_first),
        .padded = padded, .wants_dk = true, .wants_dv = true, .alone = false,
        .of_rows = {int(ceil_div(w.rows, 128)), w.batch * w.heads, 2},
        .of_keys = {int(ceil_div(w.keys, 64)), w.batch * w.heads_kv, 1}};
    const int tiles = x.of_rows.tiles * x.of_rows.heads;
    ASSERT_EQ(emulated::launch(w.blocks ? w.blocks : tiles, OfRows::kThreads, seed + pace,
                               [&] { wide_rows_kernel<OfRows>(x); }), "") << "rows, pace " << pace;
    ASSERT_EQ(emulated::launch(x.of_keys.tiles * x.of_keys.heads, OfKeys::kThreads, seed + pace,
                               [&] { wide_keys_kernel<OfKeys>(x); }), "") << "keys, pace " << pace;
    const double most = std::is_same_v<T, Bf16> ? 8e-3 : 1e-3;
    EXPECT_LT(dq.error(want_dq), most) << "pace " << pace;
    EXPECT_LT(dk.error(want_dk), most) << "pace " << pace;
    EXPECT_LT(dv.error(want_dv), most) << "pace " << pace;
  }
}

constexpr Mask kFull{}, kCausal{.kind = MaskKind::causal};

TEST(Sm90Wide, gradients_of_192_and_values_of_128_are_right) {
  expect_right<Bf16, 192, 128>({1, 2, 1, 150, 130, 192, 128, kFull, 2}, 1);
  expect_right<F16, 192, 128>({2, 2, 2, 70, 200, 136, 72, kCausal}, 2);
}
TEST(Sm90Wide, gradients_of_192_are_right) { expect_right<F16, 192, 192>({1, 2, 1, 140, 100, 184, 192, kCausal}, 3); }
TEST(Sm90Wide, gradients_of_256_are_right) { expect_right<Bf16, 256, 256>({1, 2, 1, 130, 150, 256, 200, kCausal}, 4); }

}  // namespace
}  // namespace attune::sm90
