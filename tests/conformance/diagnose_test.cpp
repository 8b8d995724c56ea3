// SPDX-License-Identifier: Apache-2.0
// Planted mistakes, each of which diagnose must name. The faulty kernel is written here over plain arrays, as its
// author might have written it, and shares no code with the diagnosis.
#include "verify/diagnose/diagnose.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/asked_case.h"
#include "verify/suite.h"

namespace attune {
namespace {

struct Bug {
  bool swap_layout = false, no_scale = false, top_left = false, head_order = false, transpose_v = false;
  bool window_off = false, log2_lse = false, tail = false, one_key = false, half = false;
  // Backward only. `own`: the gradients are those of a forward with the same bug, as autograd has them.
  bool no_gradient_scale = false, own = false, swap_dk_dv = false, last_of_group = false, no_scale_dk = false;
};
Bug bug;

std::vector<double> values(const Tensor& t) {  // contiguous [batch, seq, head, dim]
  std::vector<double> all;
  for (int b = 0; b < t.extent.batch; ++b)
    for (int s = 0; s < t.extent.seq; ++s)
      for (int h = 0; h < t.extent.head; ++h)
        for (int d = 0; d < t.extent.dim; ++d) all.push_back(load(t, b, s, h, d));
  return all;
}

Status kernel(const Plan& plan, const Args& a, Workspace, Stream) {
  const Problem& p = plan.problem;
  int S = p.len_q, T = p.len_k, H = p.heads_q, G = p.heads_kv, D = p.dim_qk, V = p.dim_v;
  const std::vector<double> q = values(a[Role::q]), k = values(a[Role::k]), v = values(a[Role::v]);
  // A kernel for [batch, head, seq, dim] that receives [batch, seq, head, dim] and takes the axes by position.
  if (bug.swap_layout) std::swap(S, H), T = S, G = H;
  const auto row_of = [&](int b, int s, int h, int seqs, int heads) {
    return bug.swap_layout ? (b * heads + h) * seqs + s : (b * seqs + s) * heads + h;
  };
  std::vector<double> out(q.size() / size_t(D) * size_t(V)), lse(q.size() / size_t(D));
  const double scale = bug.no_scale ? 1 : 1 / std::sqrt(double(D));
  const int left = p.mask.kind == MaskKind::window ? p.mask.left - bug.window_off : 1 << 20;
  for (int b = 0; b < p.batch; ++b)
    for (int s = 0; s < S; ++s)
      for (int h = 0; h < H; ++h) {
        const int g = bug.head_order ? h % G : h / (H / G);
        const int stands = s + (bug.top_left ? 0 : T - S);
        double total = 0;
        std::vector<double> sum(static_cast<size_t>(V));
        const int end = bug.one_key ? 1 : bug.tail ? (T + 63) / 64 * 64 : T;
        for (int t = 0; t < end; ++t) {
          if (p.mask.kind != MaskKind::full && t < T && (t > stands || t < stands - left)) continue;
          double x = 0;
          for (int d = 0; d < D && t < T; ++d)
            x += q[size_t(row_of(b, s, h, S, H) * D + d)] * k[size_t(row_of(b, t, g, T, G) * D + d)];
          const double weight = std::exp(x * scale);
          total += weight;
          for (int d = 0; d < V && t < T; ++d) {
            const int row = bug.transpose_v ? d : t, column = bug.transpose_v ? t : d;
            sum[size_t(d)] += weight * v[size_t(row_of(b, row, g, T, G) * V + column)];
          }
        }
        const size_t at = size_t(row_of(b, s, h, S, H));
        for (int d = 0; d < V; ++d) out[at * size_t(V) + size_t(d)] = total > 0 ? sum[size_t(d)] / total : 0;
        lse[at] = std::log(total) * (bug.log2_lse ? 1.4426950408889634 : 1);
      }
  size_t n = 0;
  const Tensor &to = a[Role::out], &to_lse = a[Role::lse];
  for (int b = 0; b < p.batch; ++b)
    for (int s = 0; s < p.len_q; ++s)
      for (int h = 0; h < p.heads_q; ++h, ++n) {
        if (bug.half && s >= p.len_q / 2) continue;
        for (int d = 0; d < p.dim_v; ++d) store(to, b, s, h, d, out[n * size_t(p.dim_v) + size_t(d)]);
        if (to_lse.data) *a.row<float>(Role::lse, b, s, h) = float(lse[n]);
      }
  return Status::good();
}

// The gradients, from out and lse as given.
Status backward_kernel(const Plan& plan, const Args& a, Workspace, Stream) {
  const Problem& p = plan.problem;
  const int S = p.len_q, T = p.len_k, H = p.heads_q, G = p.heads_kv, D = p.dim_qk, V = p.dim_v;
  const std::vector<double> q = values(a[Role::q]), k = values(a[Role::k]), v = values(a[Role::v]),
                            out = values(a[Role::out]), d_out = values(a[Role::d_out]);
  std::vector<double> dq(q.size()), dk(k.size()), dv(v.size());
  const double scale = bug.no_scale ? 1 : 1 / std::sqrt(double(D)), back = bug.no_gradient_scale ? 1 : scale;
  const int left = p.mask.kind == MaskKind::window ? p.mask.left - bug.window_off : 1 << 20;
  for (int b = 0; b < p.batch; ++b)
    for (int s = 0; s < S; ++s)
      for (int h = 0; h < H; ++h) {
        const int g = bug.head_order ? h % G : h / (H / G), stands = s + (bug.top_left ? 0 : T - S);
        const size_t i = size_t((b * S + s) * H + h);
        double lse = double(*a.row<const float>(Role::lse, b, s, h)), delta = 0;
        if (bug.log2_lse) lse *= 0.6931471805599453;
        for (size_t d = 0; d < size_t(V); ++d) delta += out[i * size_t(V) + d] * d_out[i * size_t(V) + d];
        const auto hidden = [&](int t) { return p.mask.kind != MaskKind::full && (t > stands || t < stands - left); };
        const auto product = [&](const std::vector<double>& x, size_t row, const std::vector<double>& y, size_t other,
                                 size_t dim) {
          double sum = 0;
          for (size_t d = 0; d < dim; ++d) sum += x[row * dim + d] * y[other * dim + d];
          return sum;
        };
        const auto key = [&](int t) { return size_t((b * T + t) * G + g); };
        const int keys = bug.one_key ? 1 : T;
        if (bug.own) {
          double total = 0, of_out = 0;
          for (int t = 0; t < keys; ++t) {
            if (hidden(t)) continue;
            const double weight = std::exp(scale * product(q, i, k, key(t), size_t(D)));
            total += weight, of_out += weight * product(d_out, i, v, key(t), size_t(V));
          }
          lse = std::log(total), delta = of_out / total;  // NaN where nothing is seen, as of a softmax
          for (size_t d = 0; d < size_t(D) && std::isnan(delta); ++d) dq[i * size_t(D) + d] = delta;
        }
        for (int t = 0; t < keys; ++t) {
          if (hidden(t)) continue;
          const size_t j = key(t);
          const double x = product(q, i, k, j, size_t(D)), dp = product(d_out, i, v, j, size_t(V));
          const double weight = std::exp(x * scale - lse), dx = weight * (dp - delta) * back;
          for (size_t d = 0; d < size_t(D); ++d) dq[i * size_t(D) + d] += dx * k[j * size_t(D) + d];
          if (bug.last_of_group && h % (H / G) != H / G - 1) continue;
          for (size_t d = 0; d < size_t(D); ++d)
            dk[j * size_t(D) + d] += dx * q[i * size_t(D) + d] / (bug.no_scale_dk ? scale : 1);
          for (size_t d = 0; d < size_t(V); ++d) dv[j * size_t(V) + d] += weight * d_out[i * size_t(V) + d];
        }
      }
  const auto write = [&](const Tensor& t, const std::vector<double>& x) {
    size_t n = 0;
    for (int b = 0; b < t.extent.batch; ++b)
      for (int s = 0; s < t.extent.seq; ++s)
        for (int h = 0; h < t.extent.head; ++h)
          for (int d = 0; d < t.extent.dim; ++d, ++n)
            if (!bug.half || s < t.extent.seq / 2) store(t, b, s, h, d, x[n]);
  };
  if (bug.swap_dk_dv) std::swap(dk, dv);
  write(a[Role::dq], dq), write(a[Role::dk], dk), write(a[Role::dv], dv);
  return Status::good();
}

Outcome judged(const std::string& text, Bug planted) {
  bug = planted;
  Trial trial(case_of(text));
  EXPECT_EQ(trial.prepare().message, "");
  const Backend wrong{.name = "planted",
                      .supports = [](const Problem&, const Device&) { return Status::good(); },
                      .shape = [](Plan&, const Planner&) { return Status::good(); },
                      .run = text.starts_with("backward") ? backward_kernel : kernel};
  return trial.run(wrong, Device{});
}

struct Planted {
  const char* name;
  const char* line;  // without the dtype
  Bug bug;
};
const Planted kPlanted[] = {
    {"swapped-layout", "b2 h4 q48 k48 d32 full", {.swap_layout = true}},
    {"swapped-layout", "b1 h8 q64 k64 d32 causal", {.swap_layout = true}},
    {"missing-scale", "b2 h4/2 q33 k65 d64 causal", {.no_scale = true}},
    {"top-left-causal", "b2 h4 q7 k65 d32 causal", {.top_left = true}},
    {"top-left-causal", "b1 h2 q1 k40 d32 causal", {.top_left = true}},
    {"head-order", "b1 h8/2 q33 k40 d32 full", {.head_order = true}},
    {"transposed-v", "b2 h2 q32 k32 d32 full", {.transpose_v = true}},
    {"window-off-by-one", "b1 h2 q64 k64 d32 window7,0", {.window_off = true}},
    {"log2-lse", "b2 h2 q33 k65 d32 causal", {.log2_lse = true}},
    {"tail-unmasked", "b1 h4 q33 k33 d32 full", {.tail = true}},
    {"one-key", "b2 h4 q17 k65 d32 full", {.one_key = true}},
    {"unwritten-output", "b2 h4 q64 k64 d32 full", {.half = true}},
};

TEST(Diagnose, names_every_planted_mistake) {
  for (const Planted& p : kPlanted)
    for (const char* dtype : {"f32", "f16", "bf16"}) {
      const Outcome o = judged(join("forward ", dtype, " ", p.line), p.bug);
      EXPECT_EQ(o.verdict, Verdict::fail) << p.name << ", " << dtype << " " << p.line;
      // A top-left mask may show a query a single key; then both diagnoses are true.
      const bool both = p.bug.top_left && o.mistake.starts_with("one-key: ");
      EXPECT_TRUE(both || o.mistake.starts_with(join(p.name, ": "))) << p.name << ", " << dtype << ": " << o.mistake;
    }
}

const Planted kPlantedBackward[] = {
    {"missing-scale", "b2 h4/2 q33 k65 d8 causal", {.no_scale = true}},  // with larger head dims, f16 overflows
    {"missing-scale", "b2 h4/2 q33 k65 d64 causal", {.no_gradient_scale = true}},
    {"top-left-causal", "b2 h4 q17 k65 d32 causal", {.top_left = true}},
    {"head-order", "b1 h8/2 q33 k40 d32 full", {.head_order = true}},
    {"window-off-by-one", "b1 h2 q64 k64 d32 window7,0", {.window_off = true}},
    {"log2-lse", "b2 h2 q33 k65 d32 full", {.log2_lse = true}},
    {"one-key", "b2 h4 q17 k65 d32 full", {.one_key = true}},
    {"unwritten-output", "b2 h4 q64 k64 d32 full", {.half = true}},
    {"missing-scale", "b2 h4/2 q33 k65 d8 causal", {.no_scale = true, .own = true}},
    {"top-left-causal", "b2 h4 q17 k65 d32 causal", {.top_left = true, .own = true}},
    {"head-order", "b1 h8/2 q33 k40 d32 full", {.head_order = true, .own = true}},
    {"window-off-by-one", "b1 h2 q64 k64 d32 window7,0", {.window_off = true, .own = true}},
    {"swapped-gradients", "b2 h4/2 q33 k65 d32 causal", {.swap_dk_dv = true}},
    {"missing-group-sum", "b2 h8/2 q33 k65 d32 causal", {.last_of_group = true}},
    {"missing-scale", "b2 h4/2 q33 k65 d64 window20,0", {.no_scale_dk = true}},
};

TEST(Diagnose, names_mistakes_of_a_backward_too) {
  for (const Planted& p : kPlantedBackward)
    for (const char* dtype : {"f32", "f16", "bf16"}) {
      const Outcome o = judged(join("backward ", dtype, " ", p.line), p.bug);
      EXPECT_EQ(o.verdict, Verdict::fail) << p.name << ", " << dtype << " " << p.line;
      EXPECT_TRUE(o.mistake.starts_with(join(p.name, ": "))) << p.name << ", " << dtype << ": " << o.mistake;
    }
}

TEST(Diagnose, says_nothing_of_a_right_result) {
  for (const char* line : {"forward f32 b2 h4/2 q33 k65 d64 causal", "forward bf16 b1 h2 q64 k64 d32 window7,0",
                           "backward f32 b2 h4/2 q33 k65 d64 causal", "backward bf16 b1 h2 q64 k64 d32 window7,0"}) {
    const Outcome o = judged(line, {});
    EXPECT_NE(o.verdict, Verdict::fail) << o.why;
    EXPECT_EQ(o.mistake, "");
  }
}

TEST(Diagnose, says_nothing_where_no_usual_mistake_explains_it) {
  Trial trial(case_of("forward f32 b1 h2 q33 k33 d32 causal"));
  ASSERT_EQ(trial.prepare().message, "");
  const Backend odd{.name = "odd",
                    .supports = [](const Problem&, const Device&) { return Status::good(); },
                    .shape = [](Plan&, const Planner&) { return Status::good(); },
                    .run = [](const Plan& plan, const Args& a, Workspace w, Stream s) {
                      bug = {};
                      (void)kernel(plan, a, w, s);
                      store(a[Role::out], 0, 0, 0, 0, load(a[Role::out], 0, 0, 0, 0) + 1);
                      return Status::good();
                    }};
  const Outcome o = trial.run(odd, Device{});
  EXPECT_EQ(o.verdict, Verdict::fail);
  EXPECT_EQ(o.mistake, "");
}

TEST(Diagnose, has_a_name_for_each_of_the_nine) {
  for (const Planted& p : kPlanted) EXPECT_NE(mistake_names().find(p.name), std::string::npos) << p.name;
}

}  // namespace
}  // namespace attune
