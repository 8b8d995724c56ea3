// SPDX-License-Identifier: Apache-2.0
// The kernels of sm90/forward/split_kv.h as compiled: from no key tiles to one more than each warpgroup has stages;
// fewer query tiles than CTAs, as many, and more; at all kinds of schedules.
#include <gtest/gtest.h>

#include "tests/emulated/gpu.h"

#include "attention/sm90/forward/split_kv.h"
#include "core/mask.h"

namespace attune::sm90 {

// The kernel's shared memory under its symbol; CTAs run one after another.
alignas(1024) char memory[emulated::kSharedBytes];

namespace {

struct Asked { int heads, heads_per_key, rows, keys, left, right, blocks; bool f32 = false; };
constexpr int kAll = 1 << 28;

template <class C>
struct Call {
  using T = typename C::T;
  static constexpr int kDim = C::kDim;
  const Asked w;
  std::vector<T> q, k, v, out;
  std::vector<float> f32, lse;

  Call(const Asked& asked, unsigned seed) : w(asked) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(size_t(w.heads * w.rows * kDim)), k.resize(size_t(w.heads / w.heads_per_key * w.keys * kDim));
    v.resize(k.size()), out.assign(q.size(), T(NAN)), f32.assign(q.size(), NAN), lse.assign(q.size() / kDim, NAN);
    for (auto* const all : {&q, &k, &v})
      for (T& x : *all) x = T(normal(random));
  }
  static CUtensorMap map(std::vector<T>& t, int heads, int rows, int box) {
    return {.data = reinterpret_cast<char*>(t.data()), .row = kDim, .head = int64_t(rows) * kDim, .batch = 0,
            .columns = kDim, .rows = rows, .heads = heads, .batches = 1, .box = box};
  }
  std::string run(const emulated::Schedule& schedule) {
    const int tiles = int(ceil_div(w.rows, C::kTileQ));
    SplitKvParams x{};
    x.q = map(q, w.heads, w.rows, C::kTileQ), x.k = map(k, w.heads / w.heads_per_key, w.keys, C::kTileK);
    x.v = map(v, w.heads / w.heads_per_key, w.keys, C::kTileK);
    x.scale = kLog2e / std::sqrt(float(kDim)), x.rows = w.rows, x.keys = w.keys;
    x.left = w.left, x.right = w.right, x.offset = w.keys - w.rows;
    x.tiles_of_head = tiles, x.tiles = tiles * w.heads, x.heads_total = x.heads = Divisor(uint32_t(w.heads));
    x.heads_per_key = Divisor(uint32_t(w.heads_per_key)), x.longest_first = w.right < kAll, x.f32_out = w.f32;
    x.out = w.f32 ? reinterpret_cast<char*>(f32.data()) : reinterpret_cast<char*>(out.data());
    x.out_stride.seq = kDim, x.out_stride.head = int64_t(w.rows) * kDim, x.dim_v = kDim;
    x.lse = lse.data(), x.lse_stride.seq = 1, x.lse_stride.head = w.rows;
    emulated::gpu.phases_once = true;
    const std::string wrong =
        emulated::launch({w.blocks, C::kThreads, memory}, schedule, [&] { split_kv_kernel<C, 1>(x); });
    emulated::gpu.phases_once = false;
    return wrong;
  }
  double error() const {
    double worst = 0;
    for (int head = 0; head < w.heads; ++head)
      for (int i = head % 3; i < w.rows; i += 3) {
        const int stand = i + w.keys - w.rows, begin = std::max(0, stand - w.left);
        const int end = std::min(w.keys, stand + w.right + 1);
        const size_t row = size_t(head * w.rows + i), of_head = size_t(head / w.heads_per_key * w.keys);
        double sum = 0, want[kDim] = {};
        for (int j = begin; j < end; ++j) {
          float s = 0;
          for (size_t d = 0; d < kDim; ++d) s += float(q[row * kDim + d]) * float(k[(of_head + size_t(j)) * kDim + d]);
          const double p = std::exp(double(s) / std::sqrt(double(kDim)));
          sum += p;
          for (size_t d = 0; d < kDim; ++d) want[d] += p * double(float(v[(of_head + size_t(j)) * kDim + d]));
        }
        const auto differ = [&](double got, double wanted) {
          const double off = std::abs(got - wanted) / std::max(1., std::abs(wanted));
          if (got != wanted) worst = off <= 1e30 ? std::max(worst, off) : INFINITY;
        };
        for (size_t d = 0; d < kDim; ++d) {
          const double got = w.f32 ? double(f32[row * kDim + d]) : double(float(out[row * kDim + d]));
          differ(got, sum > 0 ? want[d] / sum : 0);
        }
        differ(lse[row], sum > 0 ? std::log(sum) : -INFINITY);
      }
    return worst;
  }
};

template <class C>
void expect_right(unsigned number) {
  const int sides[][2] = {{kAll, kAll}, {kAll, 0}, {5, 0}, {40, -50}};
  for (int keys = 1; keys <= (C::kStages + 1) * C::kGroups + 1; keys += keys < 4 ? 1 : 2)
    for (const auto& [tiles, blocks] : {std::pair{1, 2}, {2, 2}, {3, 2}, {4, 1}}) {
      const unsigned n = number++;
      const bool by_heads = n / 3 % 2;
      const Asked w{by_heads ? tiles : 1, by_heads ? tiles : 1, by_heads ? 50 : tiles * 64 - int(n % 3) * 9,
                    keys * C::kTileK - int(n % 2) * 7, sides[n / 2 % 4][0], sides[n / 2 % 4][1], blocks, n % 5 == 0};
      const emulated::Schedule schedule = emulated::Schedule::number(n);
      SCOPED_TRACE("h" + std::to_string(w.heads) + " q" + std::to_string(w.rows) + " k" + std::to_string(w.keys) +
                   " window" + std::to_string(w.left) + "," + std::to_string(w.right) + " " + schedule.name());
      Call<C> call(w, n);
      ASSERT_EQ(call.run(schedule), "");
      ASSERT_LT(call.error(), 0.02);
    }
}

TEST(Sm90SplitKv, d64_by_four_warpgroups) { expect_right<SplitKvLayout<Bf16, 64, 64, 4>>(0); }
TEST(Sm90SplitKv, d64_by_two_warpgroups) { expect_right<SplitKvLayout<F16, 64, 64, 2>>(100); }
TEST(Sm90SplitKv, d128) { expect_right<SplitKvLayout<Bf16, 128, 64, 2>>(200); }

}  // namespace
}  // namespace attune::sm90
