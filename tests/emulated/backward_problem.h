// SPDX-License-Identifier: Apache-2.0
// A problem for the kernels of sm90/backward/kernel.h with its solution from attention in double, and the
// configurations that are compiled (sm90/backward/instances/).
#pragma once
#include <gtest/gtest.h>

#include "tests/emulated/gpu.h"

#include "attention/sm90/backward/kernel.h"

namespace attune::sm90 {

alignas(1024) inline char memory[1];  // the kernel's symbol for shared memory: its address is 0 (barrier.h)

struct Asked {
  int batch, heads, heads_kv, head_splits, rows, keys, dim;
  Mask mask{};
  bool bhsd = false;
  int section = 1;
  int blocks = 0;  // persistent CTAs; 0: one CTA per key tile
  int ready = 0;   // heads already preprocessed; 0: all
  // large_logits: later heads have logits of 2^26. d_lse: all heads have a gradient of lse.
  enum { none, large_logits, d_lse } late = none;
  // Number of split key tiles (the first ones; with a full mask, the last), and the query splits of each.
  int divided = 0, query_splits = 1;
  int block_q = 0;       // queries per block of the block list, whose blocks have 128 keys; 0: no list
  double density = 0.5;  // of the block list
  // Tiles with more entries start first; every third tile has all blocks, unless this is INT32_MAX.
  int most_entries = INT32_MAX;
};

// Attention in double with its gradients. Not a template: every kernel would compile it again.
struct Solution {
  static constexpr int kMore = 8;  // extra columns behind each head, never read or written
  const Asked w;
  const int tile_k, pitch = w.dim + kMore, tiles = int(ceil_div(w.keys, tile_k)), padded;
  const double scale = 1 / std::sqrt(double(w.dim));
  const int ready = w.ready ? w.ready : w.batch * w.heads;
  std::vector<float> lse, d_lse;  // [batch][head][row], padded between heads; [batch][row][head]
  std::vector<double> want_out, want_dq, want_dk, want_dv;
  const Band band = band_of(w.mask, w.rows, w.keys, 0, 0);
  std::vector<int32_t> list_begin, list_row;  // [batch][head][key blocks + 1]; query blocks

  Solution(const Asked& asked, int a_tile_k, int a_padded) : w(asked), tile_k(a_tile_k), padded(a_padded) {}
  int line() const { return w.rows + 5; }  // row pitch of lse
  bool is_listed(int b, int h, int i, int j) const {
    if (w.block_q == 0) return true;
    const int32_t* const begin = list_begin.data() + (b * w.heads + h) * (tiles + 1) + j / tile_k;
    return std::count(list_row.begin() + begin[0], list_row.begin() + begin[1], i / w.block_q) > 0;
  }
  bool visible(int b, int h, int i, int j) const { return band.visible(i, j) && is_listed(b, h, i, j); }
  void make_list(std::mt19937& random) {
    std::bernoulli_distribution taken(w.density);
    for (int n = 0; n < w.batch * w.heads; ++n) {
      for (int tile = 0; tile < tiles; ++tile) {
        list_begin.push_back(int32_t(list_row.size()));
        for (int block = 0; block * w.block_q < w.rows; ++block)
          if (taken(random) || (w.most_entries < INT32_MAX && tile % 3 == 1)) list_row.push_back(block);
        if (w.most_entries == INT32_MAX)  // invalid entries, which must be ignored
          for (const int none : {INT32_MIN, -(1 << 24), -1, 1000, 1 << 24, INT32_MAX}) list_row.push_back(none);
      }
      list_begin.push_back(int32_t(list_row.size()));
    }
  }
  size_t place(int batch, int row, int head, int rows, int heads) const {
    const int at = w.bhsd ? head * rows + row : row * heads + head;
    return size_t(batch * rows * heads + at) * size_t(pitch);
  }
  // out has the opposite axis order to the other tensors.
  size_t place_of_out(int batch, int row, int head) const {
    const int at = w.bhsd ? row * w.heads + head : head * w.rows + row;
    return size_t(batch * w.rows * w.heads + at) * size_t(pitch);
  }
  double dot(const double* x, const double* y) const {
    double sum = 0;
    for (int d = 0; d < w.dim; ++d) sum += x[d] * y[d];
    return sum;
  }
  // Adds factor * x to `sum`.
  void add(double* sum, double factor, const double* x) const {
    for (int d = 0; d < w.dim; ++d) sum[d] += factor * x[d];
  }
  // The log-sum-exp in base 2 and the delta of a row; {INFINITY, 0} if it sees no key.
  struct Stats { float lse2 = INFINITY, delta = 0; };
  Stats differentiate(const std::vector<double>& q, const std::vector<double>& d_out, const std::vector<double>& k,
                      const std::vector<double>& v, int b, int h, int i) {
    const int head = h / (w.heads / w.heads_kv);
    const size_t row = place(b, i, h, w.rows, w.heads);
    std::vector<double> p(size_t(w.keys)), dp(p.size()), mean(size_t(w.dim));
    std::vector<int> seen;
    double sum = 0, delta = 0, most = -INFINITY;
    for (int j = 0; j < w.keys; ++j) {
      if (!visible(b, h, i, j)) continue;
      seen.push_back(j);
      p[size_t(j)] = dot(&q[row], &k[place(b, j, head, w.keys, w.heads_kv)]) * scale;
      most = std::max(most, p[size_t(j)]);
    }
    for (const int j : seen) {
      const size_t key = place(b, j, head, w.keys, w.heads_kv);
      p[size_t(j)] = std::exp(p[size_t(j)] - most), dp[size_t(j)] = dot(&d_out[row], &v[key]);
      sum += p[size_t(j)], delta += p[size_t(j)] * dp[size_t(j)];
      add(mean.data(), p[size_t(j)], &v[key]);
    }
    for (size_t d = 0; d < mean.size(); ++d) want_out[place_of_out(b, i, h) + d] = sum ? mean[d] / sum : 0;
    lse[size_t((b * w.heads + h) * line() + i)] = sum ? float(most + std::log(sum)) : -INFINITY;
    if (sum == 0) return {};
    delta = delta / sum - double(d_lse[size_t((b * w.rows + i) * w.heads + h)]);
    for (const int j : seen) {
      const size_t key = place(b, j, head, w.keys, w.heads_kv);
      const double weight = p[size_t(j)] / sum, ds = weight * (dp[size_t(j)] - delta) * scale;
      add(&want_dq[row], ds, &k[key]), add(&want_dk[key], ds, &q[row]), add(&want_dv[key], weight, &d_out[row]);
    }
    return {float((most + std::log(sum)) / std::log(2.)), float(delta)};
  }
  // Error relative to the norm of `wanted`; infinite if a column behind a head was written.
  double error(const std::vector<double>& wanted, const std::vector<float>& got) const {
    double off = 0, size = 0;
    for (size_t n = 0; n < wanted.size(); ++n) {
      const double e = double(got[n]) - wanted[n];
      if (int(n % size_t(pitch)) < w.dim) off += e == e ? e * e : INFINITY, size += wanted[n] * wanted[n];
      else if (got[n] != 7.f) off = INFINITY;
    }
    return off == 0 ? 0 : std::sqrt(off / size);
  }
};

template <class C>
struct Call : Solution {
  using T = typename C::T;
  std::vector<T> q, d_out, k, v, dk, dv, out;
  std::vector<float> stats, sums;            // log-sum-exps and deltas; dQ
  std::vector<float4> split_sums;            // of head splits
  std::vector<int> tickets;
  std::vector<KeyTile> table;                 // of one KV head

  std::vector<T> filled(int rows, int heads, std::mt19937& random) const {
    std::normal_distribution<float> normal;
    std::vector<T> t(size_t(w.batch) * size_t(rows) * size_t(heads) * size_t(pitch));
    for (size_t n = 0; n < t.size(); ++n) t[n] = int(n % size_t(pitch)) < w.dim ? T(normal(random)) : T(NAN);
    return t;
  }
  static std::vector<double> doubles(const std::vector<T>& t) {
    std::vector<double> all(t.size());
    for (size_t n = 0; n < t.size(); ++n) all[n] = double(float(t[n]));
    return all;
  }
  Call(const Asked& asked, unsigned seed)
      : Solution(asked, C::kTileK, int(round_up(C::kTransposed ? asked.rows + C::kTileQ : asked.rows, 128))) {
    std::mt19937 random(seed);
    q = filled(w.rows, w.heads, random), d_out = filled(w.rows, w.heads, random);
    k = filled(w.keys, w.heads_kv, random), v = filled(w.keys, w.heads_kv, random);
    if (w.block_q) make_list(random);
    if (w.late == Asked::large_logits)  // requires batch 1 and no GQA
      for (int h = ready; h < w.heads; ++h) enlarge(q, w.rows, h), enlarge(k, w.keys, h);
    out.assign(q.size(), T(NAN)), lse.assign(size_t(w.batch * w.heads * line()), NAN);
    d_lse.resize(size_t(w.batch * w.rows * w.heads));
    std::normal_distribution<float> normal;
    for (float& x : d_lse) x = w.late == Asked::d_lse ? normal(random) : 0.f;
    dk.assign(k.size(), T(7.f)), dv = dk;
    want_out.resize(q.size()), want_dq.resize(q.size()), want_dk.resize(k.size()), want_dv.resize(k.size());
    const size_t all = size_t(w.batch * w.heads * padded);
    stats.resize(2 * all), sums.resize(all * C::kDqPitch), tickets.resize(1 + all / kTicketRows);
    split_sums.assign(size_t(sums_offset(C::kDim, int64_t(w.batch) * w.heads_kv * w.head_splits * tiles, 0, false)),
                      {NAN, NAN, NAN, NAN});
    for (size_t n = 0; n < all; ++n) stats[stat(n, 0)] = INFINITY;
    const size_t late = size_t(ready) * size_t(padded);  // unprepared memory holds NaN
    std::fill(stats.begin() + long(2 * late), stats.end(), NAN);
    std::fill(sums.begin() + long(late * C::kDqPitch), sums.end(), NAN);
    if (C::kDeterministic && every_query_sees(key_tile_of({.len_q = w.rows, .len_k = w.keys, .band = band}, 0)))
      std::fill(sums.begin(), sums.end(), NAN);  // and dQ is not cleared either
    solve();
  }
  void solve() {
    const std::vector<double> real_q = doubles(q), real_k = doubles(k), real_v = doubles(v);
    const std::vector<double> real_d_out = doubles(d_out);
    for (int b = 0; b < w.batch; ++b)
      for (int h = 0; h < w.heads; ++h)
        for (int i = 0; i < w.rows; ++i) {
          const Stats of_row = differentiate(real_q, real_d_out, real_k, real_v, b, h, i);
          for (int d = 0; d < w.dim; ++d) {
            const size_t at = place_of_out(b, i, h) + size_t(d);
            out[at] = T(float(want_out[at]));
          }
          const size_t number = size_t((b * w.heads + h) * padded + i);
          if (of_row.lse2 < INFINITY && b * w.heads + h < ready)
            stats[stat(number, 0)] = of_row.lse2, stats[stat(number, 1)] = of_row.delta;
        }
  }
  void enlarge(std::vector<T>& t, int rows, int head) const {
    for (int i = 0; i < rows; ++i)
      for (int d = 0; d < w.dim; ++d) {
        T& x = t[place(0, i, head, rows, w.heads) + size_t(d)];
        x = T(float(x) * 0x1p13f);
      }
  }
  // Index of a row's log-sum-exp or delta.
  static size_t stat(size_t row, size_t which) {
    return C::kTransposed ? row / 2 * 4 + which * 2 + row % 2 : row * 2 + which;
  }
  // Deterministic CTAs wait for the CTAs before them, which own the keys behind theirs.
  void make_table() {
    for (int b = 0; b < w.batch; ++b)
      for (int n = 0; n < tiles; ++n) {
        table.push_back(key_tile_of({.q_batch = b, .k_batch = b, .len_q = w.rows, .len_k = w.keys, .band = band}, b));
        cut_key_tile(table.back(), C::kDeterministic ? tiles - 1 - n : n, C::kTileQ, C::kTileK, C::kGrain);
      }
  }
  CUtensorMap map(std::vector<T>& t, int rows, int heads, int box) const {
    return {.data = reinterpret_cast<char*>(t.data()),
            .row = int64_t(place(0, 1, 0, rows, heads)),
            .head = int64_t(place(0, 0, 1, rows, heads)),
            .batch = int64_t(place(1, 0, 0, rows, heads)),
            .columns = w.dim,
            .rows = rows,
            .heads = heads,
            .batches = w.batch,
            .box = box};
  }
  Tensor tensor(std::vector<T>& t) const {
    const CUtensorMap m = map(t, w.keys, w.heads_kv, 16);
    return {.data = t.data(), .stride = {.batch = m.batch, .seq = m.row, .head = m.head}};
  }
  std::string run(unsigned seed) {
    const KeyTile all = key_tile_of(Sequence{.len_q = w.rows, .len_k = w.keys, .band = band}, 0);
    uint64_t large_logits = 3;
    typename C::Params x{};
    x.q = map(q, w.rows, w.heads, C::kTileQ), x.d_out = map(d_out, w.rows, w.heads, C::kTileQ);
    x.k = map(k, w.keys, w.heads_kv, C::kTileK), x.v = map(v, w.keys, w.heads_kv, C::kTileK);
    x.stats = {.data = reinterpret_cast<char*>(stats.data()), .row = 0, .head = 2 * padded,
               .batch = 2 * padded * w.heads, .columns = 2 * padded, .rows = 1, .heads = w.heads, .batches = w.batch,
               .box = 2 * C::kTileQ, .line = true};
    x.dk = map(dk, w.keys, w.heads_kv, 16), x.dv = map(dv, w.keys, w.heads_kv, 16);
    x.scale2 = float(scale) * kLog2e, x.kept = 1;
    x.scale_k = C::kHeadSplits ? NAN : float(scale);  // with head splits, the combine kernel applies the scale
    x.rows = w.rows, x.keys = w.keys, x.heads = w.heads, x.low = all.low, x.high = all.high;
    x.heads_kv = w.heads_kv * w.head_splits, x.group = w.heads / x.heads_kv, x.heads_total = w.batch * x.heads_kv;
    x.tiles = tiles, x.section = w.section, x.padded = padded, x.dq = sums.data(), x.rows_of_dq = w.rows;
    x.tickets = tickets.data(), x.large_logits = &large_logits, x.launch = 4;
    x.inverse_splits = inverse_splits(w.head_splits), x.sums = split_sums.data();
    std::vector<int> counts(size_t(kJobsDone + w.batch * w.heads));
    x.taken = counts.data();
    x.ahead = {.ready = ready, .jobs = (w.batch * w.heads - ready) * (padded / kJobRows), .dim_v = w.dim,
               .out_step = int64_t(place_of_out(0, 256 / C::kDqPitch, 0)) * 2,
               .d_out_step = x.d_out.row * (512 / C::kDqPitch),
               .stats = reinterpret_cast<float2*>(stats.data()),
               .out = {.data = out.data(), .stride = {int64_t(place_of_out(1, 0, 0)), int64_t(place_of_out(0, 1, 0)),
                                                      int64_t(place_of_out(0, 0, 1))}},
               .d_out = {.data = d_out.data(), .stride = {x.d_out.batch, x.d_out.row, x.d_out.head}},
               .lse = {.data = lse.data(), .stride = {w.heads * line(), 1, line()}},
               .d_lse = {.data = w.late == Asked::d_lse ? d_lse.data() : nullptr,
                         .stride = {w.rows * w.heads, w.heads, 1}}};
    std::vector<float4> query_sums(size_t(sums_offset(C::kDim, int64_t(w.divided) * w.query_splits, 0, false)),
                                   {NAN, NAN, NAN, NAN});
    std::vector<int> left(size_t(w.divided * kSplitWarps));
    const int begin = w.mask.kind == MaskKind::full ? tiles * x.heads_total - w.divided : 0;
    x.query_splits = {begin, w.divided, w.query_splits, query_sums.data(), left.data()};
    if constexpr (C::kTabled) {
      make_table();
      x.table = table.data(), x.tiles = int(table.size()), x.heads_total = w.heads_kv;
      x.rows_q = w.rows, x.rows_k = w.keys, x.has_dk = x.has_dv = true, x.score.kept = x.kept_out = 1;
      x.dim_qk = x.dim_v = w.dim, x.dk_row = map(dk, w.keys, w.heads_kv, 1), x.dv_row = map(dv, w.keys, w.heads_kv, 1);
    }
    if constexpr (C::kListed) {
      x.list_begin = list_begin.data(), x.list_row = list_row.data();
      x.list_batch = w.heads * (tiles + 1), x.list_head = tiles + 1;
      x.blocks = {w.block_q, C::kTileK, int(list_row.size())}, x.most_entries = w.most_entries;
    }
    const int blocks = w.blocks ? w.blocks : x.tiles * x.heads_total;
    emulated::gpu.taints = C::kIndependent;  // its first dQ product reads uninitialized memory
    const std::string wrong = emulated::launch(blocks, C::kThreads, seed, [&] { backward_kernel<C>(x); });
    emulated::gpu.taints = false;
    // All tiles, in any order except for the first of each CTA, plus one end marker per CTA.
    const int works = x.tiles * x.heads_total + w.divided * (w.query_splits - 1);
    EXPECT_EQ(counts[0], C::kPersistent ? works + (C::kDeterministic ? blocks : 0) : 0);
    EXPECT_EQ(std::count(left.begin(), left.end(), w.query_splits), w.divided * kSplitWarps);
    const int idle = C::kWalks ? 2 : 3;  // idle warps per CTA, each of which takes one end marker
    EXPECT_EQ(counts[kJobsTaken], x.ahead.jobs ? x.ahead.jobs + idle * blocks : 0);
    for (int head = 0; head < w.batch * w.heads; ++head)
      EXPECT_EQ(counts[size_t(kJobsDone + head)], head < ready ? 0 : padded / kJobRows) << head;
    EXPECT_EQ(large_logits, w.late == Asked::large_logits ? 4u : 3u);
    if (!wrong.empty() || !C::kHeadSplits) return wrong;
    const CombineDkDvParams y{.sums = split_sums.data(), .head_splits = w.head_splits, .tiles = tiles,
                              .heads = w.heads_kv, .keys = w.keys, .dim = C::kDim, .dim_qk = w.dim, .dim_v = w.dim,
                              .scale = float(scale), .dk = tensor(dk), .dv = tensor(dv)};
    return emulated::launch(combine_blocks(y, w.batch), kSplitWarps * 32, seed, [&] { combine_dkdv_kernel<T>(y); });
  }
  double error_of_keys(const std::vector<double>& wanted, const std::vector<T>& got) const {
    return error(wanted, std::vector<float>(got.begin(), got.end()));
  }
  // Index of element (i, d) among the dQ sums of a head: fragments of 16 x 8, or of 8 x 16 if transposed.
  size_t sum_of(int i, int d) const {
    if constexpr (C::kTransposed)
      return size_t(TransposedTile{padded}.fragment(i, d) + (d % 8 * 4 + i % 8 / 2) * 4 + d % 16 / 8 * 2 + i % 2);
    return size_t(i / 16 * 16 * C::kDqPitch + d / 8 * 128 + (i % 8 * 4 + d % 8 / 2) * 4 + i % 16 / 8 * 2 + d % 2);
  }
  double error_of_dq() const {
    std::vector<float> dq(want_dq.size(), 7.f);
    for (int b = 0; b < w.batch; ++b)
      for (int h = 0; h < w.heads; ++h)
        for (int i = 0; i < w.rows; ++i)
          for (int d = 0; d < w.dim; ++d) {
            const size_t head = size_t((b * w.heads + h) * padded) * C::kDqPitch;
            dq[place(b, i, h, w.rows, w.heads) + size_t(d)] = sums[head + sum_of(i, d)] * float(scale);
          }
    return error(want_dq, dq);
  }
};

constexpr int tile_of(int dim) { return dim == 64 ? 128 : 64; }
template <class T, int Dim, bool Deterministic = false>
using Tabled = BackwardLayout<T, BackwardConfig{
    .dim = Dim, .tile_q = tile_of(Dim), .tabled = true, .deterministic = Deterministic}>;
template <class T, int Dim, bool Deterministic = false>
using WithOptions = BackwardLayout<T, BackwardConfig{
    .dim = Dim, .tile_q = tile_of(Dim), .tabled = true, .deterministic = Deterministic, .options = true}>;
template <class T, int Dim>
using Listed =
    BackwardLayout<T, BackwardConfig{.dim = Dim, .tile_q = tile_of(Dim), .tabled = true, .listed = true}>;
template <class T, int Dim>
using Plain = BackwardLayout<T, BackwardConfig{.dim = Dim, .tile_q = tile_of(Dim)}>;
template <class T, int Dim, bool Deterministic = false>
using HeadSplit = BackwardLayout<T, BackwardConfig{
    .dim = Dim, .tile_q = tile_of(Dim), .deterministic = Deterministic, .share = Share::heads}>;
template <class T, int Dim>
using Deterministic = BackwardLayout<T, BackwardConfig{.dim = Dim, .tile_q = tile_of(Dim), .deterministic = true}>;
template <class T>
using Transposed = BackwardLayout<T, BackwardConfig{.dim = 128, .tile_q = 80}>;
template <class T, int Dim, int TileQ>
using Persistent = BackwardLayout<T, BackwardConfig{.dim = Dim, .tile_q = TileQ, .persistent = true}>;
template <class T, int Dim, int TileQ>
using QuerySplit = BackwardLayout<T, BackwardConfig{
    .dim = Dim, .tile_q = TileQ, .persistent = true, .share = Share::queries}>;
template <class T>
using PersistentHeadSplit =
    BackwardLayout<T, BackwardConfig{.dim = 128, .tile_q = 80, .persistent = true, .share = Share::heads}>;
template <class T>
using PersistentListed =
    BackwardLayout<T, BackwardConfig{.dim = 128, .listed = true, .persistent = true, .share = Share::queries}>;
template <class T, int Dim>
using PersistentDeterministic = BackwardLayout<T, BackwardConfig{
    .dim = Dim, .tile_q = tile_of(Dim), .deterministic = true, .persistent = true}>;

template <class C>
void expect_right(const Asked& w, unsigned seed) {
  SCOPED_TRACE("b" + std::to_string(w.batch) + " h" + std::to_string(w.heads) + "/" + std::to_string(w.heads_kv) +
               " in " + std::to_string(w.head_splits) + " q" + std::to_string(w.rows) + " k" + std::to_string(w.keys) +
               " d" + std::to_string(w.dim) + " " + name(w.mask) + " blocks " + std::to_string(w.blocks) + " seed " +
               std::to_string(seed));
  Call<C> call(w, seed);
  ASSERT_EQ(call.run(seed), "");
  EXPECT_LT(call.error_of_keys(call.want_dk, call.dk), 0.01);
  EXPECT_LT(call.error_of_keys(call.want_dv, call.dv), 0.01);
  EXPECT_LT(call.error_of_dq(), 0.01);
}

inline constexpr Mask kFull{}, kCausal{.kind = MaskKind::causal},
    kTopLeft{.kind = MaskKind::causal, .align = Align::top_left},
    kWindow{.kind = MaskKind::window, .left = 40, .right = 3}, kNarrow{.kind = MaskKind::window, .left = 2, .right = 0};

inline Asked list(Asked w, int block_q, double density, int most_entries = INT32_MAX) {
  return w.block_q = block_q, w.density = density, w.most_entries = most_entries, w;
}

}  // namespace attune::sm90
