// Dense kernels of backward.sm90.h, thread by thread on a CPU: against attention in double, at paces of their own of
// warps and copies. What prepare leaves and finish takes is made here.
#include <gtest/gtest.h>

#include "tests/emulated/gpu.h"

#include "attention/backward.sm90.h"

namespace attune::sm90 {

alignas(1024) char memory[1];  // the kernel's name for shared memory: its address is 0 (barrier.h)

namespace {

struct Dense {
  int heads, group, rows, keys;
  bool causal;
  int lots = 1;
  bool bhsd = false;
};

template <class C>
struct Call {
  using T = typename C::T;
  static constexpr int kDim = C::kDim;
  const Dense w;
  std::mt19937 random;
  std::vector<T> q, k, v, out, d_out, dq, dk, dv;
  std::vector<float> lse, delta, stats, sums;
  std::vector<double> want_dq, want_dk, want_dv;
  std::vector<int> counts;
  uint64_t far = 0;
  const int padded;

  int heads_kv() const { return w.heads / w.group; }
  static size_t size(int heads, int rows) { return size_t(heads) * size_t(rows) * kDim; }
  size_t place(int head, int row, int heads, int rows) const {
    return (w.bhsd ? size_t(head) * size_t(rows) + size_t(row) : size_t(row) * size_t(heads) + size_t(head)) * kDim;
  }
  Call(const Dense& asked, unsigned seed)
      : w(asked), random(seed), q(size(w.heads, w.rows)), k(size(heads_kv(), w.keys)), v(k.size()), out(q.size()),
        d_out(q.size()), dq(q.size(), T(NAN)), dk(k.size(), T(NAN)), dv(k.size(), T(NAN)),
        padded(int(round_up(C::kTurnedBand ? w.rows + C::kTileQ : round_up(w.rows, C::kTileQ), 64))) {
    std::normal_distribution<float> normal;
    for (auto* t : {&q, &k, &v, &d_out})
      for (T& x : *t) x = T(normal(random));
    lse.resize(size_t(w.heads * w.rows)), delta.resize(lse.size());
    stats.assign(size_t(w.heads) * size_t(padded) * 2, NAN);
    sums.assign(stats.size() / 2 * C::kWide, NAN);
    want_dq.resize(q.size()), want_dk.resize(k.size()), want_dv.resize(k.size());
    differentiate();
  }
  void differentiate() {
    const double scale = 1 / std::sqrt(double(kDim));
    std::vector<double> p(size_t(w.keys));
    for (int h = 0; h < w.heads; ++h)
      for (int i = 0; i < w.rows; ++i) {
        const int hk = h / w.group, end = w.causal ? std::clamp(i + 1 + w.keys - w.rows, 0, w.keys) : w.keys;
        const size_t at = place(h, i, w.heads, w.rows);
        const auto dot = [&](const std::vector<T>& a, size_t x, const std::vector<T>& b, size_t y) {
          double sum = 0;
          for (size_t d = 0; d < kDim; ++d) sum += double(float(a[x + d])) * double(float(b[y + d]));
          return sum;
        };
        double sum = 0, d = 0;
        for (int j = 0; j < end; ++j)
          sum += p[size_t(j)] = std::exp(scale * dot(q, at, k, place(hk, j, heads_kv(), w.keys)));
        for (size_t c = 0; c < kDim; ++c) {
          double x = 0;
          for (int j = 0; j < end; ++j)
            x += p[size_t(j)] / sum * double(float(v[place(hk, j, heads_kv(), w.keys) + c]));
          out[at + c] = T(float(x));
          d += double(float(out[at + c])) * double(float(d_out[at + c]));
        }
        lse[size_t(h * w.rows + i)] = float(std::log(sum)), delta[size_t(h * w.rows + i)] = float(d);
        for (int j = 0; j < end; ++j) {
          const size_t to = place(hk, j, heads_kv(), w.keys);
          const double weight = p[size_t(j)] / sum, ds = weight * (dot(d_out, at, v, to) - d) * scale;
          for (size_t c = 0; c < kDim; ++c) {
            want_dq[at + c] += ds * double(float(k[to + c])), want_dk[to + c] += ds * double(float(q[at + c]));
            want_dv[to + c] += weight * double(float(d_out[at + c]));
          }
        }
      }
  }
  CUtensorMap map(std::vector<T>& t, int heads, int rows, int box) const {
    return {.data = reinterpret_cast<char*>(t.data()), .row = int64_t(place(0, 1, heads, rows)),
            .head = int64_t(place(1, 0, heads, rows)), .batch = 0, .columns = kDim, .rows = rows, .heads = heads,
            .batches = 1, .box = box};
  }
  StridedRows rows_of(std::vector<T>& t) const {
    return {t.data(), 0, int64_t(place(0, 1, w.heads, w.rows)), int64_t(place(1, 0, w.heads, w.rows))};
  }
  void prepare(int heads) {
    for (int h = 0; h < heads; ++h)
      for (int i = 0; i < padded; ++i) {
        const size_t row = size_t(h) * size_t(padded) + size_t(i);
        const float x = i < w.rows ? lse[size_t(h * w.rows + i)] * kLog2e : INFINITY;
        const float y = i < w.rows ? delta[size_t(h * w.rows + i)] : 0.f;
        (C::kPairs ? stats[row / 2 * 4 + row % 2] : stats[row * 2]) = x;
        (C::kPairs ? stats[row / 2 * 4 + 2 + row % 2] : stats[row * 2 + 1]) = y;
        std::fill_n(sums.begin() + long(row * C::kWide), C::kWide, 0.f);
      }
  }
  void finish(int first_head) {
    for (int h = first_head; h < w.heads; ++h)
      for (int i = 0; i < w.rows; ++i)
        for (int c = 0; c < kDim; ++c) {
          const size_t head = size_t(h) * size_t(padded) * C::kWide;
          size_t at;
          if constexpr (C::kTurned) {
            const int query = C::kTurnedBand ? i : i % C::kTileQ;
            const int lane = c % 8 * 4 + query % 8 / 2, e = c / 8 % 2 * 2 + query % 2;
            at = size_t((i - query) * C::kWide + TurnedTile{C::kTurnedBand ? padded : C::kTileQ}.fragment(query, c) +
                        lane * 4 + e);
          } else {
            const int lane = i % 8 * 4 + c % 8 / 2, e = i / 8 % 2 * 2 + c % 2;
            at = size_t(i / 16 * 16 * C::kWide + c / 8 * 128 + lane * 4 + e);
          }
          dq[place(h, i, w.heads, w.rows) + size_t(c)] = T(sums[head + at] / std::sqrt(float(kDim)));
        }
  }
  std::string run(unsigned seed) {
    typename C::Params x{};
    x.q = map(q, w.heads, w.rows, C::kTileQ), x.d_out = map(d_out, w.heads, w.rows, C::kTileQ);
    x.k = map(k, heads_kv(), w.keys, 128), x.v = map(v, heads_kv(), w.keys, 128);
    x.dk = map(dk, heads_kv(), w.keys, 16), x.dv = map(dv, heads_kv(), w.keys, 16);
    x.stats = {.data = reinterpret_cast<char*>(stats.data()), .row = 2 * padded, .head = 0, .batch = 0,
               .columns = 2 * padded, .rows = w.heads, .heads = 1, .batches = 1, .box = 0, .line = 2 * C::kTileQ};
    x.scale2 = kLog2e / std::sqrt(float(kDim)), x.kept = 1.f, x.scale_k = 1.f / std::sqrt(float(kDim));
    x.rows = x.rows_of_dq = w.rows, x.keys = w.keys, x.heads = w.heads, x.heads_kv = heads_kv(), x.group = w.group;
    x.low = -(1 << 28), x.high = w.causal ? w.keys - w.rows : 1 << 28;
    x.tiles = (w.keys + 127) / 128, x.units = heads_kv(), x.section = w.causal ? heads_kv() : 1;
    x.padded = padded, x.dq = sums.data(), x.far = &far, x.launch = 7;
    int blocks = x.tiles * x.units, first = 0;
    if constexpr (C::kLots) {
      x.lots = w.lots, x.lot_units = (heads_kv() + w.lots - 1) / w.lots, x.chunk = 131072 / C::kWide / 4;
      if (x.section > 1) x.section = x.lot_units;
      x.lot_chunks = (x.lot_units * w.group * padded + x.chunk - 1) / x.chunk;
      x.span = uint32_t(x.lot_units * x.tiles + 2 * x.lot_chunks);
      x.by_span = uint32_t(((int64_t(1) << 32) + x.span - 1) / x.span);
      x.others = uint32_t(((int64_t(2 * x.lot_chunks) << 16) + x.span - 1) / x.span);
      counts.assign(size_t(2 * w.lots), 0), x.counts = counts.data();
      x.from_out = rows_of(out), x.from_d_out = rows_of(d_out), x.to_dq = rows_of(dq);
      x.from_lse = {lse.data(), 0, 1, w.rows}, x.stats_rows = reinterpret_cast<float2*>(stats.data());
      x.scale = x.scale_k, x.dim_qk = x.dim_v = kDim, x.far_found = &far;
      blocks = int(x.span) * w.lots, first = std::max(w.lots - 2, 0) * x.lot_units * w.group;
      prepare(std::min(x.lot_units * w.group, w.heads));
    } else {
      prepare(w.heads);
    }
    const std::string wrong =
        emulated::launch(C::kStays ? 2 : blocks, C::kThreads, seed, [&] { backward_kernel<C>(x); });
    finish(first);
    return wrong;
  }
  // Root mean squares of what is wrong, by those of what is wanted.
  static double error(const std::vector<T>& got, const std::vector<double>& want) {
    double off = 0, all = 0;
    for (size_t n = 0; n < got.size(); ++n) {
      const double e = double(float(got[n])) - want[n];
      off += e == e ? e * e : INFINITY, all += want[n] * want[n];
    }
    return std::sqrt(off / all);
  }
};

template <int Dim, int TileQ, bool Stays, int Tricks, class T = Bf16>
void expect_right(const Dense& w, unsigned seed) {
  using C = BackwardShape<T, Dim, TileQ, Dim == 64, false, false, false, false, Stays, Tricks>;
  SCOPED_TRACE("d" + std::to_string(Dim) + " tile " + std::to_string(TileQ) + " tricks " + std::to_string(Tricks) +
               " h" + std::to_string(w.heads) + " q" + std::to_string(w.rows) + " k" + std::to_string(w.keys) +
               " seed " + std::to_string(seed));
  Call<C> call(w, seed);
  ASSERT_EQ(call.run(seed), "");
  EXPECT_LT(call.error(call.dq, call.want_dq), 0.01);
  EXPECT_LT(call.error(call.dk, call.want_dk), 0.01);
  EXPECT_LT(call.error(call.dv, call.want_dv), 0.01);
}

constexpr int kAll = kTrickKeep | kTrickSplit | kTrickPairs | kTrickAhead;

TEST(Sm90Backward, tiles_of_64_and_128_queries_are_right) {
  expect_right<128, 64, false, 0>({2, 2, 150, 200, true}, 1);
  expect_right<64, 128, false, 0>({2, 1, 300, 260, false}, 2);
}
TEST(Sm90Backward, turned_tiles_with_a_band_are_right) {
  expect_right<128, 80, false, 0>({2, 1, 170, 190, false}, 13);
  expect_right<128, 80, false, kTrickBand>({2, 1, 300, 300, true}, 3);
  expect_right<128, 80, false, kTrickBand>({2, 2, 170, 290, true, 1, true}, 4);
  expect_right<128, 80, false, kTrickBand | kAll>({1, 1, 250, 129, false}, 5);
}
TEST(Sm90Backward, pairs_and_split_keys_are_right) {
  expect_right<128, 64, false, kAll>({2, 2, 150, 200, true}, 6);
  expect_right<128, 64, true, kAll>({2, 1, 256, 256, true}, 7);
  expect_right<64, 128, false, kAll>({2, 1, 300, 300, true}, 8);
  expect_right<64, 128, true, kAll>({2, 1, 256, 256, false}, 14);
}
TEST(Sm90Backward, lots_are_right) {
  expect_right<128, 64, false, kAll | kTrickLots>({5, 1, 140, 140, true, 3}, 9);
  expect_right<128, 80, false, kAll | kTrickBand | kTrickLots>({4, 1, 170, 140, false, 4}, 10);
  expect_right<64, 128, false, kAll | kTrickLots>({8, 2, 200, 200, true, 4, true}, 11);
  expect_right<64, 128, false, kAll | kTrickLots>({3, 1, 130, 100, false, 3}, 12);
}

}  // namespace
}  // namespace attune::sm90
