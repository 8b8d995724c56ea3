// SPDX-License-Identifier: Apache-2.0
// A problem for the kernels of sm90/forward/kernel.h, with its solution from attention in double.
#pragma once
#include <gtest/gtest.h>

#include "tests/emulated/gpu.h"

#include "attention/sm90/forward/kernel.h"

namespace attune::sm90 {

struct Asked {
  int heads, heads_per_key, rows, keys, left, right;
  int blocks;  // CTAs of the launch
  bool bhsd = false, sinks = false;
  int larger = 1;      // scales q, so that the row maxima move
  bool fixed = false;  // uniform tiles, without a counter
  bool f32 = false;    // out in f32, for kernels that support both
  int share = 0;       // key tiles per CTA, if stream-K divides all query tiles
  float cap = 0;
  Blocks size{};              // of the block list; 0: none
  std::vector<int> counts{};  // number of key blocks per row of blocks
  bool ahead = false;         // CTAs start before the tile table is ready
  bool accumulate = false;    // in f32, merging with the rows already there
  int behind = 0;             // with lists: NaN rows behind the keys
};
inline constexpr int kAll = 1 << 28;  // unlimited

template <class C>
struct Call {
  using T = typename C::T;
  static constexpr int kDim = C::kDim, kDimV = C::kDimV;
  const Asked w;
  std::mt19937 random;
  std::vector<T> q, k, v, out;
  std::vector<float> lse, sinks, f32, lse_before, f32_before;
  std::vector<float4> partials;
  std::vector<int32_t> begin, column;  // of lists: [head][blocks + 1]
  std::vector<QueryTile> table;
  int table_tiles = 0;
  StreamK stream_k{};
  unsigned long long counters[2] = {0x1234567890, 77};  // arbitrary contents

  static size_t size(int heads, int rows, int dim) { return size_t(heads) * size_t(rows) * size_t(dim); }
  size_t place(int head, int row, int heads, int rows, int dim) const {
    const size_t at = w.bhsd ? size_t(head) * size_t(rows) + size_t(row) : size_t(row) * size_t(heads) + size_t(head);
    return at * size_t(dim);
  }
  int heads_kv() const { return w.heads / w.heads_per_key; }
  int stored() const { return w.keys + w.behind; }
  bool is_f32() const { return C::kF32Out || w.f32; }
  int tiles_of_head() const { return int(ceil_div(w.rows, C::kTileQ)); }

  Call(const Asked& asked, unsigned seed)
      : w(asked), random(seed), q(size(w.heads, w.rows, kDim)), k(size(heads_kv(), stored(), kDim)),
        v(size(heads_kv(), stored(), kDimV)), out(size(w.heads, w.rows, kDimV), T(NAN)), lse(out.size() / kDimV, NAN),
        sinks(size_t(w.heads)), f32(out.size(), NAN) {
    std::normal_distribution<float> normal;
    for (T& x : q) x = T(normal(random) * float(w.larger));
    for (T& x : k) x = T(normal(random));
    for (T& x : v) x = T(normal(random));
    for (float& x : sinks) x = normal(random);
    for (int head = 0; head < heads_kv(); ++head)
      for (int row = w.keys; row < stored(); ++row) {
        std::fill_n(k.begin() + long(place(head, row, heads_kv(), stored(), kDim)), kDim, T(NAN));
        std::fill_n(v.begin() + long(place(head, row, heads_kv(), stored(), kDimV)), kDimV, T(NAN));
      }
    if (w.accumulate) {
      for (float& x : lse) x = normal(random);
      for (float& x : f32) x = normal(random);
      lse_before = lse, f32_before = f32;
    }
    if (w.size.q) make_lists();
    if (w.share) {
      stream_k = {tiles_of_head() * w.heads, w.share, int(ceil_div(w.keys, C::kTileK))};
      partials.resize(size_t(stream_k.tiles + w.blocks) * size_t(C::kTileQ / 16 * partial_size(kDimV)),
                      {NAN, NAN, NAN, NAN});
    }
  }
  // Random key blocks per row of blocks, as many as `counts` states.
  void make_lists() {
    const int row_blocks = int(ceil_div(w.rows, w.size.q)), key_blocks = int(ceil_div(w.keys, w.size.k));
    size_t next = 0;
    for (int head = 0; head < w.heads; ++head) {
      for (int row = 0; row < row_blocks; ++row) {
        begin.push_back(int32_t(column.size()));
        std::vector<int> blocks(static_cast<size_t>(key_blocks));
        for (int n = 0; n < key_blocks; ++n) blocks[size_t(n)] = n;
        std::shuffle(blocks.begin(), blocks.end(), random);
        blocks.resize(size_t(std::min(key_blocks, w.counts[next++ % w.counts.size()])));
        std::sort(blocks.begin(), blocks.end());
        column.insert(column.end(), blocks.begin(), blocks.end());
      }
      begin.push_back(int32_t(column.size()));
    }
    Problem p{};
    p.batch = 1, p.heads_q = w.heads, p.heads_kv = heads_kv(), p.mask.blocks = listed_blocks();
    Args a;
    a[Role::block_begin] = {.data = begin.data(), .stride = {.batch = 0, .head = row_blocks + 1}};
    const Sequence all{.len_q = w.rows, .len_k = w.keys, .band = band()};
    for (int head = 0; head < w.heads; ++head)
      for (int n = 0; n < tiles_of_head(); ++n)
        table.push_back(query_tile(p, a, 0, all, head, n, C::kTileQ, C::kTileK));
    table_tiles = int(table.size());
  }
  Blocks listed_blocks() const { return {w.size.q, w.size.k, int(column.size())}; }
  Band band() const { return {.left = w.left, .right = w.right, .q_first = w.keys - w.rows, .k_first = 0}; }
  bool listed(int head, int i, int j) const {
    if (!w.size.q) return true;
    const int32_t* const of = begin.data() + head * (int(ceil_div(w.rows, w.size.q)) + 1) + i / w.size.q;
    return std::binary_search(column.data() + of[0], column.data() + of[1], j / w.size.k);
  }
  CUtensorMap map(std::vector<T>& t, int heads, int rows, int dim, int box) const {
    return {.data = reinterpret_cast<char*>(t.data()), .row = int64_t(place(0, 1, heads, rows, dim)),
            .head = int64_t(place(1, 0, heads, rows, dim)), .batch = 0, .columns = dim, .rows = rows, .heads = heads,
            .batches = 1, .box = box};
  }
  std::string run(const emulated::Schedule& schedule) {
    ForwardParams x{};
    x.q = map(q, w.heads, w.rows, kDim, C::kTileQ), x.out = map(out, w.heads, w.rows, kDimV, 16);
    x.out_row = map(out, w.heads, w.rows, kDimV, 1);
    x.k = map(k, heads_kv(), stored(), kDim, C::kTileK), x.v = map(v, heads_kv(), stored(), kDimV, C::kTileK);
    for (int n = 0; n < kEndBoxes; ++n) x.v_end[n] = map(v, heads_kv(), stored(), kDimV, end_box_rows(n));
    x.scale = kLog2e / std::sqrt(float(kDim));
    x.rows = w.rows, x.keys = w.keys, x.heads = x.heads_total = x.section_heads = w.heads;
    x.heads_per_key = w.heads_per_key;
    x.packed = 1, x.row_mask = (1 << 28) - 1, x.row_shift = 31;
    x.left = w.left, x.right = w.right, x.offset = w.keys - w.rows;
    x.tiles_of_head = tiles_of_head(), x.longest_first = !w.fixed && !w.share, x.fixed = w.fixed;
    x.epoch = 5, x.counters = counters;
    x.k_rows = stored(), x.k_heads = heads_kv(), x.k_batches = 1;
    x.lse = lse.data(), x.lse_stride.seq = 1, x.lse_stride.head = w.rows;
    x.dim_v = kDimV;
    x.stream_k = stream_k, x.partials = partials.data(), x.score.kept = 1;
    x.accumulate = w.accumulate;
    if (is_f32()) {
      x.f32_out = f32.data();
      x.f32_stride.seq = int64_t(place(0, 1, w.heads, w.rows, kDimV));
      x.f32_stride.head = int64_t(place(1, 0, w.heads, w.rows, kDimV));
    }
    if (w.sinks) x.sinks = sinks.data(), x.sink_stride = 1;
    if (w.cap != 0) x.score.cap = w.cap * kLog2e, x.score.cap_factor = 2 * kLog2e / std::sqrt(float(kDim)) / w.cap;
    if (w.size.q) {
      x.table = table.data(), x.table_tiles = &table_tiles, x.column = column.data();
      x.heads_total = x.section_heads = 1;
      x.key_tiles_per_block_shift = w.size.k > C::kTileK, x.one_list = w.size.q == C::kTileQ;
      if (w.ahead) begin_ahead(x);
    }
    emulated::gpu.phases_once = true;
    emulated::gpu.barrier_name = barrier_name;
    const std::string wrong =
        emulated::launch({w.blocks, C::kThreads}, schedule, [&] { forward_kernel<C>(x); });
    emulated::gpu.phases_once = false;
    emulated::gpu.barrier_name = nullptr;
    if (w.share && wrong.empty()) join();
    return wrong;
  }
  void begin_ahead(ForwardParams& x) {
    const Sequence all{.len_q = w.rows, .len_k = w.keys, .band = band()};
    Problem p{};
    p.batch = 1, p.heads_q = w.heads, p.heads_kv = heads_kv();
    x.lists = {.first = query_tile(p, Args{}, 0, all, 0, 0, C::kTileQ, C::kTileK), .blocks = listed_blocks(),
               .begin = begin.data(), .begin_batch = 0, .begin_head = int64_t(ceil_div(w.rows, w.size.q)) + 1,
               .tiles_of_head = Divisor(uint32_t(tiles_of_head())), .heads = Divisor(uint32_t(w.heads)),
               .heads_per_key = Divisor(uint32_t(w.heads_per_key)), .count = table_tiles, .tile_q = C::kTileQ,
               .tile_k = C::kTileK};
  }
  static std::string barrier_name(uint32_t at) {
    const struct { const char* name; int begin, count; } all[] = {
        {"q full", C::kQFull, C::kQStages}, {"q empty", C::kQEmpty, C::kQStages}, {"k full", C::kKFull, C::kStages},
        {"k empty", C::kKEmpty, C::kStages}, {"v full", C::kVFull, C::kStages}, {"v empty", C::kVEmpty, C::kStages},
        {"tile known", C::kTileReady, 4}, {"tile near its end", C::kPrefetchNext, 4}};
    for (const auto& one : all)
      if (int(at) >= one.begin && int(at) < one.begin + 8 * one.count)
        return std::string("barrier \"") + one.name + "\" " + std::to_string((int(at) - one.begin) / 8);
    return "barrier " + std::to_string(at);
  }
  // The job of the combine kernel: merges the partials of a query tile into out and lse.
  void join() {
    for (int tile = 0; tile < stream_k.tiles; ++tile)
      for (int r = 0; r < C::kTileQ; ++r) {
        const int head = tile / tiles_of_head(), i = tile % tiles_of_head() * C::kTileQ + r;
        if (i >= w.rows) continue;
        const int lane = r % 8 * 4, lower = r / 8 % 2;
        double sum = 0, all[kDimV] = {};
        float top = -INFINITY;
        const auto of = [&](int b, int n, int of_lane) {
          const int64_t warp = int64_t(StreamK::place(b, tile)) * (C::kTileQ / 16) + r / 16;
          return partials[size_t(warp * partial_size(kDimV) + 32 * n + of_lane)];
        };
        const auto top_of = [&](int b) { return lower ? of(b, kDimV / 8, lane).y : of(b, kDimV / 8, lane).x; };
        for (int b = stream_k.first_block(tile); b <= stream_k.last_block(tile); ++b) top = std::max(top, top_of(b));
        for (int b = stream_k.first_block(tile); b <= stream_k.last_block(tile); ++b) {
          const double weight = std::exp2(double(top_of(b)) - top);
          sum += weight * double(lower ? of(b, kDimV / 8, lane).w : of(b, kDimV / 8, lane).z);
          for (int d = 0; d < kDimV; ++d) {
            const float4 four = of(b, d / 8, lane + d % 8 / 2);
            const float two[] = {lower ? four.z : four.x, lower ? four.w : four.y};
            all[d] += weight * double(two[d % 2]);
          }
        }
        for (int d = 0; d < kDimV; ++d)
          out[place(head, i, w.heads, w.rows, kDimV) + size_t(d)] = T(float(sum == 0 ? 0 : all[d] / sum));
        lse[size_t(head) * size_t(w.rows) + size_t(i)] = float((double(top) + std::log2(sum)) * double(kLn2));
      }
  }
  // The largest error of out and lse, sampled over rows and heads.
  double error(int every = 1, int every_head = 1) {
    double worst = 0;
    std::vector<double> weight(size_t(w.keys));
    for (int head = 0; head < w.heads; head += every_head)
      for (int i = head % every; i < w.rows; i += every) {
        const int stand = i + w.keys - w.rows, k_head = head / w.heads_per_key;
        const int begin = std::max(0, stand - w.left), end = std::min(w.keys, stand + w.right + 1);
        const T* const row = q.data() + place(head, i, w.heads, w.rows, kDim);
        double top = w.sinks ? double(sinks[size_t(head)]) : -INFINITY, sum = 0, want[kDimV] = {};
        for (int j = begin; j < end; ++j) {
          if (!listed(head, i, j)) continue;
          const T* const key = k.data() + place(k_head, j, heads_kv(), stored(), kDim);
          double s = 0;
          for (int d = 0; d < kDim; ++d) s += double(float(row[d]) * float(key[d]));
          s /= std::sqrt(double(kDim));
          if (w.cap != 0) s = double(w.cap) * std::tanh(s / double(w.cap));
          top = std::max(top, weight[size_t(j)] = s);
        }
        for (int j = begin; j < end; ++j) {
          if (!listed(head, i, j)) continue;
          const T* const value = v.data() + place(k_head, j, heads_kv(), stored(), kDimV);
          const double p = std::exp(weight[size_t(j)] - top);
          sum += p;
          for (int d = 0; d < kDimV; ++d) want[d] += p * double(float(value[d]));
        }
        if (w.sinks) sum += std::exp(double(sinks[size_t(head)]) - top);
        const size_t at_lse = size_t(head) * size_t(w.rows) + size_t(i);
        if (w.accumulate) {
          if (top == -INFINITY) top = 0;
          const double before = std::exp(double(lse_before[at_lse]) - top);
          sum += before;
          for (int d = 0; d < kDimV; ++d)
            want[d] += before * double(f32_before[place(head, i, w.heads, w.rows, kDimV) + size_t(d)]);
        }
        const auto differ = [&](double got, double wanted) {
          const double off = std::abs(got - wanted) / std::max(1., std::abs(wanted));
          if (got != wanted) worst = off <= 1e30 ? std::max(worst, off) : INFINITY;
        };
        for (int d = 0; d < kDimV; ++d) {
          const size_t at = place(head, i, w.heads, w.rows, kDimV) + size_t(d);
          differ(is_f32() ? double(f32[at]) : double(float(out[at])), sum > 0 ? want[d] / sum : 0);
        }
        differ(lse[at_lse], sum > 0 ? top + std::log(sum) : -INFINITY);
      }
    return worst;
  }
};

template <class C>
void expect_right(const Asked& w, const emulated::Schedule& schedule, int every = 1) {
  SCOPED_TRACE("h" + std::to_string(w.heads) + " q" + std::to_string(w.rows) + " k" + std::to_string(w.keys) +
               " window" + std::to_string(w.left) + "," + std::to_string(w.right) + " d" + std::to_string(C::kDim) +
               "/" + std::to_string(C::kDimV) + " in " + std::to_string(w.blocks) + " blocks, " + schedule.name());
  Call<C> call(w, schedule.seed);
  ASSERT_EQ(call.run(schedule), "");
  EXPECT_LT(call.error(every), 0.02);
  const bool counted = !w.fixed && !w.share && call.tiles_of_head() * w.heads > 2 * w.blocks;
  EXPECT_EQ(call.counters[0], counted ? 0u : 0x1234567890);  // reset for a graph replay, or unchanged
}
template <class C>
void expect_right(const Asked& w, unsigned seed) {
  expect_right<C>(w, emulated::Schedule{.seed = seed});
}

}  // namespace attune::sm90
