// SPDX-License-Identifier: Apache-2.0
// Mistakes planted in block lists, dilated attention and native sparse attention, each of which diagnose must name. As
// in diagnose_test.cpp, the kernels are written here over plain arrays; for native sparse attention the reference
// selects the blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/variant/nsa.h"
#include "tests/asked_case.h"
#include "verify/diagnose/diagnose.h"
#include "verify/suite.h"

namespace attune {
namespace {

struct Bug {
  bool swap = false, no_scale = false, top_left = false, head_order = false, window_off = false, tail = false,
       one_key = false, half = false, log2_lse = false;
};
Bug bug;

// Rows of a tensor in memory order; a kernel with swapped axes finds the wrong row.
struct Flat {
  const Tensor& t;
  double at(int b, int s, int h, int d) const {
    if (!bug.swap) return load(t, b, s, h, d);
    const int row = h * t.extent.seq + s;  // index for [head, seq], applied to [seq, head]
    return load(t, b, row / t.extent.head, row % t.extent.head, d);
  }
};

// How often query s of head h sees key t in dilated attention with rates 1, 2, 4 over segments of 16, 32, 64.
int dilated_count(int h, int s, int t) {
  int count = 0;
  for (const int rate : {1, 2, 4}) {
    const int segment = 16 * rate;
    if (s / segment == t / segment && s % rate == h % rate && t % rate == h % rate) ++count;
  }
  return count;
}

int listed(const Args& a, const Problem& p, int b, int h, int s, int t) {
  const Tensor &begin = a[Role::block_begin], &column = a[Role::block_column];
  const int row = s / p.mask.blocks.q;
  for (int n = int(load(begin, b, 0, h, row)); n < int(load(begin, b, 0, h, row + 1)); ++n)
    if (int(load(column, 0, 0, 0, n)) == t / p.mask.blocks.k) return 1;
  return 0;
}

// softmax(q k) v over keys with multiplicity `times`, into out and lse.
struct Sums {
  double total = 0;
  std::vector<double> out{};
  void add(double x, int times, const Flat* v, int b, int t, int g) {
    total += times * std::exp(x);
    for (size_t d = 0; v && d < out.size(); ++d) out[d] += times * std::exp(x) * v->at(b, t, g, int(d));
  }
};

Status kernel(const Plan& plan, const Args& a, Workspace, Stream) {
  const Problem& p = plan.problem;
  const Flat q{a[Role::q]}, k{a[Role::k]}, v{a[Role::v]};
  const int S = p.len_q, T = p.len_k, H = p.heads_q, G = p.heads_kv;
  for (int b = 0; b < p.batch; ++b)
    for (int s = 0; s < S; ++s)
      for (int h = 0; h < H; ++h) {
        if (bug.half && s >= S / 2) continue;
        const int g = bug.head_order ? h % G : h / (H / G), stands = s + (bug.top_left ? 0 : T - S);
        Sums sums{.out = std::vector<double>(size_t(p.dim_v))};
        for (int t = 0; t < (bug.one_key ? 1 : bug.tail ? (T + 63) / 64 * 64 : T); ++t) {
          if (t >= T) { sums.add(0, 1, nullptr, b, t, g); continue; }
          int times = p.mask.kind == MaskKind::full || t <= stands;
          if (times) times = p.mask.blocks.q ? listed(a, p, b, h, s, t) : dilated_count(h, s, t);
          if (bug.one_key) times = 1;
          double x = 0;
          for (int d = 0; d < p.dim_qk; ++d) x += q.at(b, s, h, d) * k.at(b, t, g, d);
          if (times) sums.add(bug.no_scale ? x : x / std::sqrt(double(p.dim_qk)), times, &v, b, t, g);
        }
        for (int d = 0; d < p.dim_v; ++d)
          store(a[Role::out], b, s, h, d, sums.total > 0 ? sums.out[size_t(d)] / sums.total : 0);
        if (a.given(Role::lse))
          *a.row<float>(Role::lse, b, s, h) = float(std::log(sums.total) * (bug.log2_lse ? 1.4426950408889634 : 1));
      }
  return Status::good();
}

// Native sparse attention with l=8 d=4 s=16 n=4 w=24, sigmoid gates and mean compression.
Status nsa_kernel(const Plan& plan, const Args& a, Workspace, Stream stream) {
  const Problem& p = plan.problem;
  Plan right;
  const Backend* const reference = find_backend("reference");
  if (Status s = plan_on(*reference, p, Device{}, right); !s.ok()) return s;
  if (Status s = reference->run(right, a, {}, stream); !s.ok()) return s;
  const int H = p.heads_q, G = p.heads_kv;
  const Flat q{a[Role::q]};
  for (int b = 0; b < p.batch; ++b)
    for (int s = 0, S = int(a.integer(Role::used_q, b, a[Role::q].extent.seq)); s < S; ++s)
      for (int h = 0; h < H; ++h) {
        const int g = bug.head_order ? h % G : h / (H / G);
        const int tokens = a.given(Role::used_k) ? int(load(a[Role::used_k], b, 0, 0, 0)) : S;
        const int t = bug.top_left ? s : tokens - S + s;
        std::vector<double> out(size_t(p.dim_v));
        for (int branch = 0; branch < 3; ++branch) {
          const Flat k{a[branch ? variant_tensor(2 * branch - 2) : Role::k]};
          const Flat v{a[branch ? variant_tensor(2 * branch - 1) : Role::v]};
          std::vector<std::vector<int>> keys;  // each is the mean of several keys
          for (int c = 0; branch == 0 && 4 * c + 7 <= t; ++c) {
            keys.emplace_back();
            for (int n = 0; n < 8; ++n) keys.back().push_back(4 * c + n);
          }
          for (int n = 0; branch == 1 && n < 4; ++n) {
            const int m = int(load(a[variant_tensor(kNsaBlocks)], b, s, g, n));
            const int end = std::min(16 * m + 15, bug.tail ? tokens - 1 : t);
            for (int j = 16 * m; m >= 0 && j <= end; ++j) keys.push_back({j});
          }
          for (int j = std::max(0, t - 23 + bug.window_off); branch == 2 && j <= t; ++j) keys.push_back({j});
          if (bug.one_key && !keys.empty()) keys.resize(1);
          std::vector<double> sum(size_t(p.dim_v));
          double total = 0;
          for (const std::vector<int>& some : keys) {
            double x = 0;
            for (int d = 0; d < p.dim_qk; ++d) {
              double mean = 0;
              for (const int j : some) mean += k.at(b, j, g, d) / double(some.size());
              x += q.at(b, s, h, d) * mean;
            }
            const double weight = std::exp(bug.no_scale ? x : x / std::sqrt(double(p.dim_qk)));
            total += weight;
            for (int d = 0; d < p.dim_v; ++d)
              for (const int j : some) sum[size_t(d)] += weight * v.at(b, j, g, d) / double(some.size());
          }
          const double gate = 1 / (1 + std::exp(-load(a[variant_tensor(kNsaGates)], b, s, h, branch)));
          for (size_t d = 0; total > 0 && d < out.size(); ++d) out[d] += gate * sum[d] / total;
        }
        for (int d = 0; d < p.dim_v; ++d)
          store(a[Role::out], b, s, h, d, bug.half && s >= S / 2 ? NAN : out[size_t(d)]);
      }
  return Status::good();
}

constexpr double kSqrtOfDim = 5.656854249492381;  // of head dim 32, below

// Correct gradients, except that dq lacks the scale.
Status backward_kernel(const Plan& plan, const Args& a, Workspace, Stream stream) {
  Plan right;
  const Backend* const reference = find_backend("reference");
  if (Status s = plan_on(*reference, plan.problem, Device{}, right); !s.ok()) return s;
  if (Status s = reference->run(right, a, {}, stream); !s.ok()) return s;
  const Tensor& dq = a[Role::dq];
  for (int b = 0; bug.no_scale && b < dq.extent.batch; ++b)
    for (int s = 0; s < dq.extent.seq; ++s)
      for (int h = 0; h < dq.extent.head; ++h)
        for (int d = 0; d < dq.extent.dim; ++d) store(dq, b, s, h, d, kSqrtOfDim * load(dq, b, s, h, d));
  return Status::good();
}

Outcome judged(const std::string& line, Bug planted) {
  bug = planted;
  Trial trial(case_of(line));
  EXPECT_EQ(trial.prepare().message, "") << line;
  const auto run = line.starts_with("backward") ? backward_kernel : line.find(" : nsa ") < line.size() ? nsa_kernel
                                                                                                       : kernel;
  const Backend wrong{.name = "planted",
                      .supports = [](const Problem&, const Device&) { return Status::good(); },
                      .shape = [](Plan&, const Planner&) { return Status::good(); },
                      .run = run};
  return trial.run(wrong, Device{});
}

const std::string kDilated = " : dilated rates=1,2,4 segments=16,32,64";
const std::string kNsa = " causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=16 w=24";
struct Planted {
  const char* name;
  std::string line;  // with f32 as a placeholder
  Bug bug;
};
const Planted kPlanted[] = {
    {"swapped-layout", "forward f32 b1 h4 q64 k64 d32 full blocks16x16x64", {.swap = true}},
    {"missing-scale", "forward f32 b1 h4/2 q40 k64 d32 causal blocks16x16x64", {.no_scale = true}},
    {"top-left-causal", "forward f32 b2 h2 q17 k64 d32 causal blocks16x16x64", {.top_left = true}},
    {"head-order", "forward f32 b1 h8/2 q40 k64 d32 full blocks16x16x200", {.head_order = true}},
    {"tail-unmasked", "forward f32 b1 h4 q40 k40 d32 full blocks16x16x64", {.tail = true}},
    {"one-key", "forward f32 b1 h4 q40 k40 d32 full blocks16x16x64", {.one_key = true}},
    {"log2-lse", "forward f32 b1 h4 q40 k40 d32 full blocks16x16x64", {.log2_lse = true}},
    {"unwritten-output", "forward f32 b1 h4 q64 k64 d32 full blocks16x16x64", {.half = true}},
    {"missing-scale", "backward f32 b1 h4/2 q64 k64 d32 causal blocks16x16x64", {.no_scale = true}},
    {"swapped-layout", "forward f32 b1 h4 q64 k64 d32 causal" + kDilated, {.swap = true}},
    {"missing-scale", "forward f32 b1 h4/2 q70 k70 d32 causal" + kDilated, {.no_scale = true}},
    {"head-order", "forward f32 b1 h8/2 q70 k70 d32 full" + kDilated, {.head_order = true}},
    {"tail-unmasked", "forward f32 b1 h4 q70 k70 d32 full" + kDilated, {.tail = true}},
    {"one-key", "forward f32 b1 h4 q70 k70 d32 full" + kDilated, {.one_key = true}},
    {"unwritten-output", "forward f32 b1 h4 q70 k70 d32 causal" + kDilated, {.half = true}},
    {"missing-scale", "backward f32 b1 h4/2 q70 k70 d32 causal" + kDilated, {.no_scale = true}},
    {"swapped-layout", "forward f32 b1 h4/2 q100 k100 d32" + kNsa, {.swap = true}},
    {"missing-scale", "forward f32 b1 h4/2 q100 k100 d32/16" + kNsa, {.no_scale = true}},
    {"top-left-causal", "forward f32 b1 h4/2 q9 k100 d32" + kNsa, {.top_left = true}},
    {"head-order", "forward f32 b2 h8/2 q100 k100 d32" + kNsa, {.head_order = true}},
    {"window-off-by-one", "forward f32 b1 h4/2 q100 k100 d32" + kNsa, {.window_off = true}},
    {"tail-unmasked", "forward f32 b1 h4/2 q100 k100 d32" + kNsa, {.tail = true}},
    {"one-key", "forward f32 b1 h4/2 q100 k100 d32" + kNsa, {.one_key = true}},
    {"unwritten-output", "forward f32 b1 h4/2 q100 k100 d32" + kNsa, {.half = true}},
};

TEST(DiagnoseVariants, names_every_planted_mistake) {
  for (size_t n = 0; n < std::size(kPlanted); ++n) {
    const Planted& p = kPlanted[n];
    std::string line = p.line;
    if (n % 3 == 0) line.replace(line.find("f32"), 3, "bf16");
    const Outcome o = judged(line, p.bug);
    EXPECT_EQ(o.verdict, Verdict::fail) << p.name << ", " << line;
    EXPECT_TRUE(o.mistake.starts_with(join(p.name, ": "))) << p.name << ", " << line << ": " << o.mistake;
  }
}

// Rows behind used_q belong to no sequence; their contents prove nothing about a kernel.
TEST(DiagnoseVariants, says_nothing_of_native_sparse_attention_with_fewer_queries_than_rows) {
  const Outcome o = judged("forward f32 b2 h4/2 q24 k200 d32" + kNsa + " | drawn used_q", {.no_scale = true});
  EXPECT_EQ(o.verdict, Verdict::fail);
  EXPECT_EQ(o.mistake, "");
}

TEST(DiagnoseVariants, says_nothing_of_a_right_result) {
  for (const std::string& line : {std::string("forward f32 b1 h4/2 q40 k64 d32 causal blocks16x16x64"),
                                  "forward bf16 b1 h4/2 q70 k70 d32 causal" + kDilated,
                                  "backward f32 b1 h4/2 q70 k70 d32 causal" + kDilated,
                                  "forward bf16 b1 h4/2 q100 k100 d32" + kNsa}) {
    const Outcome o = judged(line, {});
    EXPECT_NE(o.verdict, Verdict::fail) << line << ": " << o.why;
    EXPECT_EQ(o.mistake, "") << line;
  }
}

}  // namespace
}  // namespace attune
