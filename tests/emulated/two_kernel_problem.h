// SPDX-License-Identifier: Apache-2.0
// A problem for the kernels of sm90/backward/two_kernel/ and sm90/backward/general/, with its solution from attention
// in double.
#pragma once
#include <gtest/gtest.h>

#include "tests/emulated/gpu.h"

#include "attention/sm90/backward/two_kernel/common.h"
#include "core/mask.h"
#include "core/problem.h"

namespace attune::sm90 {

// [batch][row][head][column], with extra columns behind each head that are never read or written.
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
  std::vector<double> doubles() const {
    std::vector<double> all(x.size());
    for (size_t n = 0; n < x.size(); ++n) all[n] = double(float(x[n]));
    return all;
  }
  CUtensorMap map(int box) {
    return {.data = reinterpret_cast<char*>(x.data()), .row = int64_t(at(0, 1, 0)), .head = int64_t(at(0, 0, 1)),
            .batch = int64_t(at(1, 0, 0)), .columns = dim, .rows = rows, .heads = heads, .batches = batch, .box = box};
  }
  // Error relative to the norm of `wanted`; infinite if a column behind a head was written.
  double error(const std::vector<double>& wanted) const {
    double off = 0, size = 0;
    for (size_t n = 0; n < x.size(); ++n) {
      const double e = double(float(x[n])) - wanted[n];
      if (int(n) % (dim + kMore) < dim) off += e == e ? e * e : INFINITY, size += wanted[n] * wanted[n];
      else if (float(x[n]) != 7.f) off = INFINITY;
    }
    return off == 0 ? 0 : std::sqrt(off / size);
  }
};

struct Asked {
  int batch, heads, heads_kv, rows, keys, dim_qk, dim_v;
  Mask mask{};         // with blocks: half of them are listed
  int persistent = 0;  // CTAs of the dQ kernel; 0: one per tile
};

template <class T>
struct TwoKernelProblem {
  const Asked w;
  std::mt19937 random;
  const int group = w.heads / w.heads_kv, padded = int(round_up(w.rows, 128));
  const double scale = 1 / std::sqrt(double(w.dim_qk));
  const Band band = band_of(w.mask, w.rows, w.keys, 0, 0);
  Rows<T> q{w.batch, w.rows, w.heads, w.dim_qk, &random}, d_out{w.batch, w.rows, w.heads, w.dim_v, &random};
  Rows<T> k{w.batch, w.keys, w.heads_kv, w.dim_qk, &random}, v{w.batch, w.keys, w.heads_kv, w.dim_v, &random};
  Rows<T> dq{w.batch, w.rows, w.heads, w.dim_qk, nullptr};
  Rows<T> dk{w.batch, w.keys, w.heads_kv, w.dim_qk, nullptr}, dv{w.batch, w.keys, w.heads_kv, w.dim_v, nullptr};
  std::vector<double> want_dq, want_dk, want_dv;
  std::vector<float2> stats;  // [batch][head][padded]
  Blocks blocks = w.mask.blocks;
  // The list by query block and by key block: begin of [batch][head][blocks + 1].
  std::vector<int32_t> begin, column, begin_k, row_k;

  TwoKernelProblem(const Asked& asked, unsigned seed) : w(asked), random(seed) {
    want_dq.resize(q.x.size()), want_dk.resize(k.x.size()), want_dv.resize(v.x.size());
    stats.assign(size_t(w.batch * w.heads * padded), float2{INFINITY, 0});
    if (blocks.q) make_list();
    solve();
  }
  int row_blocks() const { return int(ceil_div(w.rows, blocks.q)); }
  int key_blocks() const { return int(ceil_div(w.keys, blocks.k)); }
  void make_list() {
    for (int n = 0; n < w.batch * w.heads; ++n) {
      std::vector<std::vector<int>> by_key(static_cast<size_t>(key_blocks()));
      for (int row = 0; row < row_blocks(); ++row) {
        begin.push_back(int32_t(column.size()));
        for (int key = 0; key < key_blocks(); ++key)
          if (random() % 2) column.push_back(key), by_key[size_t(key)].push_back(row);
      }
      begin.push_back(int32_t(column.size()));
      for (const std::vector<int>& rows : by_key) {
        begin_k.push_back(int32_t(row_k.size()));
        row_k.insert(row_k.end(), rows.begin(), rows.end());
      }
      begin_k.push_back(int32_t(row_k.size()));
    }
    blocks.bound = int(column.size());
  }
  bool visible(int b, int h, int i, int j) const {
    if (!band.visible(i, j)) return false;
    if (blocks.q == 0) return true;
    const int32_t* const of_head = begin.data() + (b * w.heads + h) * (row_blocks() + 1);
    return BlockList{blocks, of_head, column.data()}.find(i / blocks.q, j / blocks.k) >= 0;
  }
  static double dot(const double* x, const double* y, int dim) {
    double sum = 0;
    for (int d = 0; d < dim; ++d) sum += x[d] * y[d];
    return sum;
  }
  // Adds factor * x to `sum`.
  static void add(double* sum, double factor, const double* x, int dim) {
    for (int d = 0; d < dim; ++d) sum[d] += factor * x[d];
  }
  void solve() {
    const std::vector<double> all_q = q.doubles(), all_k = k.doubles(), all_v = v.doubles(), all_do = d_out.doubles();
    std::vector<double> p(size_t(w.keys)), dp(p.size());
    for (int b = 0; b < w.batch; ++b)
      for (int h = 0; h < w.heads; ++h)
        for (int i = 0; i < w.rows; ++i) {
          const int head = h / group;
          const double *const of_q = &all_q[q.at(b, i, h)], *const of_do = &all_do[d_out.at(b, i, h)];
          std::vector<int> seen;
          double sum = 0, delta = 0;
          for (int j = 0; j < w.keys; ++j) {
            if (!visible(b, h, i, j)) continue;
            seen.push_back(j);
            p[size_t(j)] = std::exp(dot(of_q, &all_k[k.at(b, j, head)], w.dim_qk) * scale);
            dp[size_t(j)] = dot(of_do, &all_v[v.at(b, j, head)], w.dim_v);
            sum += p[size_t(j)], delta += p[size_t(j)] * dp[size_t(j)];
          }
          if (sum == 0) continue;
          delta /= sum;
          stats[size_t((b * w.heads + h) * padded + i)] = {float(std::log2(sum)), float(delta)};
          for (const int j : seen) {
            const double weight = p[size_t(j)] / sum, ds = weight * (dp[size_t(j)] - delta) * scale;
            add(&want_dq[q.at(b, i, h)], ds, &all_k[k.at(b, j, head)], w.dim_qk);
            add(&want_dk[k.at(b, j, head)], ds, of_q, w.dim_qk);
            add(&want_dv[v.at(b, j, head)], weight, of_do, w.dim_v);
          }
        }
  }
  // Parameters for a run; resets the gradients.
  TwoKernelParams params() {
    for (Rows<T>* const x : {&dq, &dk, &dv}) std::fill(x->x.begin(), x->x.end(), T(7.f));
    const auto end = [](int64_t side) { return int(std::clamp<int64_t>(side, -(1 << 28), 1 << 28)); };
    return {.q = q.map(64), .d_out = d_out.map(64), .k = k.map(64), .v = v.map(64),
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
  }
  // The number of CTAs of the dQ kernel.
  int blocks_of_rows(const TwoKernelParams& x) const {
    return w.persistent ? w.persistent : x.of_rows.tiles * x.of_rows.heads;
  }
  void expect_right() const {
    const double most = std::is_same_v<T, Bf16> ? 8e-3 : 1e-3;
    EXPECT_LT(dq.error(want_dq), most);
    EXPECT_LT(dk.error(want_dk), most);
    EXPECT_LT(dv.error(want_dv), most);
  }
};

// Runs both kernels at several schedules.
template <class OfRows, class OfKeys, class AProblem, class Params>
void expect_right(AProblem&& p, void (*rows)(Params), void (*keys)(Params), unsigned first = 1, unsigned paces = 4) {
  const auto schedule = emulated::Schedule::number;
  for (unsigned pace = first; pace < first + paces; ++pace) {
    SCOPED_TRACE("q" + std::to_string(p.w.rows) + " k" + std::to_string(p.w.keys) + " " + name(p.w.mask) + " blocks " +
                 std::to_string(p.w.persistent) + " pace " + std::to_string(pace));
    Params x = p.params();
    x.k.box = x.v.box = OfRows::kTileK;
    const emulated::Grid of_rows{p.blocks_of_rows(x), OfRows::kThreads};
    ASSERT_EQ(emulated::launch(of_rows, schedule(pace), [&] { rows(x); }), "") << "rows";
    x.q.box = x.d_out.box = OfKeys::kTileQ, x.stats.box = 2 * OfKeys::kTileQ, x.k.box = x.v.box = OfKeys::kTileK;
    const int blocks = x.of_keys.tiles * x.of_keys.heads;
    ASSERT_EQ(emulated::launch({blocks, OfKeys::kThreads}, schedule(pace), [&] { keys(x); }), "") << "keys";
    p.expect_right();
  }
}

inline constexpr Mask kFull{}, kCausal{.kind = MaskKind::causal},
    kTopLeft{.kind = MaskKind::causal, .align = Align::top_left},
    kWindow{.kind = MaskKind::window, .left = 40, .right = 3};

// The n-th case of a matrix with up to `queries` and `keys` per ring: more steps than the rings have stages, by keys
// and by queries; rows that see no key, and keys that no query sees. CTAs are persistent only if all tiles have keys.
inline constexpr int kMatrix = 10;
inline Asked matrix_case(int n, int dim_qk, int dim_v, int queries, int keys) {
  const Asked cases[kMatrix] = {
      {1, 1, 1, queries - 9, keys - 9, dim_qk, dim_v, kFull},
      {1, 1, 1, 130, 2 * keys - 9, dim_qk, dim_v, kFull, 1},
      {1, 1, 1, 3 * queries - 9, 3 * keys - 9, dim_qk, dim_v, kCausal},
      {1, 2, 1, 2 * queries - 9, 20, dim_qk, dim_v, kFull, 2},
      {1, 1, 1, 5 * queries - 9, 30, dim_qk, dim_v, kFull, 1},
      {1, 1, 1, 70, 5 * keys - 9, dim_qk, dim_v, kCausal},
      {1, 1, 1, 300, 3 * keys, dim_qk, dim_v, kWindow},
      {1, 1, 1, 300, 90, dim_qk, dim_v, kCausal},
      {1, 1, 1, 40, 200, dim_qk, dim_v, kTopLeft},
      {1, 3, 1, queries, keys, dim_qk, dim_v, kCausal},
  };
  return cases[n];
}

}  // namespace attune::sm90
