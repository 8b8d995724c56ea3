// SPDX-License-Identifier: Apache-2.0
// Parity must be able to fail. Backends with one bug each, most of them shipped somewhere once, are judged by the same
// code as the real ones. So are backends that touch memory outside their outputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "machine/host.h"
#include "tests/asked_case.h"
#include "verify/cases/coverage.h"
#include "verify/suite.h"

namespace attune {
namespace {

Status golden(const Problem& p, const Args& a) {
  Plan plan{.problem = p};
  return find_backend("reference")->run(plan, a, {}, nullptr);
}

using Wrong = Status (*)(const Plan&, const Args&, Workspace, Stream);

Outcome outcome_of(std::string_view text, Wrong run) {
  Trial trial(case_of(text));
  const Status s = trial.prepare();
  EXPECT_TRUE(s.ok()) << s.message;
  const Backend wrong{.name = "wrong",
                      .supports = [](const Problem&, const Device&) { return Status::good(); },
                      .shape = [](Plan& plan, const Planner&) { return plan.workspace_bytes = 1000, Status::good(); },
                      .run = run};
  return trial.run(wrong, Device{});
}

Tensor swapped(Tensor t) {  // [batch, seq, head, dim] in memory, read as [batch, head, seq, dim]
  t.stride.seq = t.stride.head;
  t.stride.head = t.extent.seq * t.stride.seq;
  return t;
}

Status swapped_layout(const Plan& plan, const Args& a, Workspace, Stream) {
  Args wrong = a;
  for (const Role r : {Role::q, Role::k, Role::v}) wrong[r] = swapped(a[r]);
  return golden(plan.problem, wrong);
}
Status swapped_everywhere(const Plan& plan, const Args& a, Workspace, Stream) {
  Args wrong = a;
  for (const Role r : {Role::q, Role::k, Role::v, Role::out}) wrong[r] = swapped(a[r]);
  return golden(plan.problem, wrong);
}
Status transposed_v(const Plan& plan, const Args& a, Workspace, Stream) {
  const Owned v(a[Role::v].dtype, a[Role::v].extent);
  v.each([&](int b, int s, int h, int d) { store(v.t, b, s, h, d, load(a[Role::v], b, d, h, s)); });
  Args wrong = a;
  wrong[Role::v] = v.t;
  return golden(plan.problem, wrong);
}
Status missing_scale(const Plan& plan, const Args& a, Workspace, Stream) {
  Args wrong = a;
  wrong.scale = 1.f;
  return golden(plan.problem, wrong);
}
Status sees_one_more(const Plan& plan, const Args& a, Workspace, Stream) {
  Problem p = plan.problem;
  p.mask.kind = MaskKind::window, p.mask.left = kNoLimit, p.mask.right = 1;
  return golden(p, a);
}
Status aligned_top_left(const Plan& plan, const Args& a, Workspace, Stream) {
  Problem p = plan.problem;
  p.mask.align = Align::top_left;
  return golden(p, a);
}
Status loses_the_last_key(const Plan& plan, const Args& a, Workspace, Stream) {
  Problem p = plan.problem;
  Args wrong = a;
  p.len_k -= 1, wrong[Role::k].extent.seq -= 1, wrong[Role::v].extent.seq -= 1;
  return golden(p, wrong);
}
Status other_dropout(const Plan& plan, const Args& a, Workspace, Stream) {
  int64_t seed[2] = {a.row<const int64_t>(Role::seed)[0] + 1, a.row<const int64_t>(Role::seed)[1]};
  Args wrong = a;
  wrong[Role::seed].data = seed;
  return golden(plan.problem, wrong);
}
Status forgets_the_sink(const Plan& plan, const Args& a, Workspace, Stream) {
  Problem p = plan.problem;
  p.clear(Option::sink);
  return golden(p, a);
}
Status lse_in_base_two(const Plan& plan, const Args& a, Workspace, Stream) {
  const Status s = golden(plan.problem, a);
  for (int h = 0; h < plan.problem.heads_q; ++h) *a.row<float>(Role::lse, 0, 0, h) *= 1.442695f;
  return s;
}
Status forgets_d_lse(const Plan& plan, const Args& a, Workspace, Stream) {
  Args wrong = a;
  wrong[Role::d_lse] = {};
  return golden(plan.problem, wrong);
}

Status turns_the_other_pairs(const Plan& plan, const Args& a, Workspace, Stream) {
  Problem p = plan.problem;
  p.clear(Option::rotary), p.set(Option::rotary_half);
  return golden(p, a);
}
Status counts_positions_from_one(const Plan& plan, const Args& a, Workspace, Stream) {
  Args wrong = a;
  for (const Role r : {Role::rotary_cos, Role::rotary_sin}) wrong[r] = pick_rows(a[r], 1, a[r].extent.seq - 1);
  return golden(plan.problem, wrong);
}
// Correct results but a wrong cache: only the cache check can detect this.
Status leaves_the_cache_alone(const Plan& plan, const Args& a, Workspace, Stream) {
  Args wrong = a;
  const Owned k(a[Role::k].dtype, a[Role::k].extent), v(a[Role::v].dtype, a[Role::v].extent);
  k.each([&](int b, int s, int h, int d) { store(k.t, b, s, h, d, load(a[Role::k], b, s, h, d)); });
  v.each([&](int b, int s, int h, int d) { store(v.t, b, s, h, d, load(a[Role::v], b, s, h, d)); });
  wrong[Role::k] = k.t, wrong[Role::v] = v.t;
  return golden(plan.problem, wrong);
}
Status writes_a_row_too_many(const Plan& plan, const Args& a, Workspace, Stream) {
  const Status s = golden(plan.problem, a);
  for (int h = 0; h < plan.problem.heads_kv; ++h) store(a[Role::v], 0, 0, h, 0, 1.5);
  return s;
}
Status rounds_what_it_copies(const Plan& plan, const Args& a, Workspace, Stream) {
  const Status s = golden(plan.problem, a);
  const Tensor& k = a[Role::k];
  const double x = load(k, 0, k.extent.seq - 1, 0, 0);
  store(k, 0, k.extent.seq - 1, 0, 0, x * (1 + 0x1p-22));
  return s;
}

TEST(parity, a_wrong_backend_fails) {
  const struct { std::string_view what, text; Wrong run; } all[] = {
      {"swapped layout", "forward f32 b2 h4 q64 k64 d64 full | pad=0", swapped_layout},
      {"swapped layout, bf16", "forward bf16 b2 h4 q64 k64 d64 full | pad=0", swapped_layout},
      {"swapped layout of out too", "forward f32 b2 h4 q64 k64 d64 full | pad=0", swapped_everywhere},
      {"transposed v", "forward f32 b1 h2 q64 k64 d64 full", transposed_v},
      {"transposed v, bf16", "forward bf16 b1 h2 q64 k64 d64 full", transposed_v},
      {"missing scale", "forward f32 b1 h2 q64 k64 d64 full", missing_scale},
      {"missing scale, f16", "forward f16 b1 h2 q64 k64 d64 full", missing_scale},
      {"missing scale, tiny values", "backward f32 b1 h2 q64 k64 d64 full | x1e-4", missing_scale},
      {"missing scale, backward", "backward f32 b1 h2 q64 k64 d64 full", missing_scale},
      {"one key too many", "forward bf16 b1 h2 q64 k64 d64 causal", sees_one_more},
      {"one key too many, backward", "backward bf16 b1 h2 q64 k64 d64 causal", sees_one_more},
      {"top-left causal with one query", "forward f32 b1 h2 q1 k64 d64 causal", aligned_top_left},
      {"tail key lost", "forward bf16 b1 h2 q33 k128 d64 full", loses_the_last_key},
      {"another dropout mask", "forward bf16 b1 h2 q64 k64 d64 full dropout", other_dropout},
      {"no sink", "forward bf16 b1 h2 q64 k64 d64 full sink", forgets_the_sink},
      {"lse in base 2", "forward bf16 b1 h2 q64 k64 d64 full", lse_in_base_two},
      {"no gradient of lse", "backward bf16 b1 h2 q64 k64 d64 full | d_lse", forgets_d_lse},
      {"other pairs of rotary", "forward bf16 b1 h2 q4 k64 d64 causal append rotary", turns_the_other_pairs},
      {"rotary from 1", "forward bf16 b1 h2 q4 k64 d64 causal append rotary", counts_positions_from_one},
      {"cache not written", "forward f32 b1 h2 q4 k64 d64 causal append", leaves_the_cache_alone},
      {"an old row is written", "forward f32 b1 h2 q4 k64 d64 causal append", writes_a_row_too_many},
      {"new rows are no copies", "forward f32 b1 h2 q4 k64 d64 causal append", rounds_what_it_copies},
  };
  for (const auto& [what, text, run] : all) {
    const Outcome o = outcome_of(text, run);
    EXPECT_EQ(o.verdict, Verdict::fail) << what << ": MAE " << o.mae() << ", " << o.used() << " of the tolerance";
    EXPECT_FALSE(o.why.empty()) << what;
  }
}

// A coverage cell that never ran is a hole, unless the backend refuses. A refusal by the plan counts too, for example
// on a machine without a library that the backend opens.
TEST(coverage, a_hole_is_what_is_planned_and_never_run) {
  Backend taker{.name = "taker",
                .supports = [](const Problem&, const Device&) { return Status::good(); },
                .shape = [](Plan&, const Planner&) { return Status::good(); },
                .run = [](const Plan&, const Args&, Workspace, Stream) { return Status::no("never run"); }};
  const Suite suite{.backends = {&taker}, .places = {Place{"cpu", Device{}, 0}}};
  const auto holes = [&] {
    const std::vector<Cell> cells = coverage(suite, {}, taker, 0);
    return std::count_if(cells.begin(), cells.end(), [](const Cell& c) { return c.empty(); });
  };
  EXPECT_GT(holes(), 50);
  taker.shape = [](Plan&, const Planner&) { return Status::no("taker: libtaker.so cannot be opened"); };
  EXPECT_EQ(holes(), 0);
  const std::vector<Cell> cells = coverage(suite, {}, taker, 0);
  EXPECT_EQ(cells[0].refusal, "taker: libtaker.so cannot be opened");
}

TEST(parity, the_reference_itself_passes) {
  for (const std::string_view text :
       {"forward f32 b2 h4 q64 k64 d64 full | pad=0", "backward bf16 b1 h2 q64 k64 d64 causal | d_lse"}) {
    const Outcome o =
        outcome_of(text, [](const Plan& plan, const Args& a, Workspace, Stream) { return golden(plan.problem, a); });
    EXPECT_NE(o.verdict, Verdict::fail) << o.why;
  }
}

// Each writes one byte or element out of place, or omits one.
TEST(parity, memory_that_is_not_theirs_shows) {
  const struct { std::string_view why, text; Wrong run;
  } all[] = {
      {"writes outside out", "forward f32 b1 h2 q8 k8 d8 full",
       [](const Plan& p, const Args& a, Workspace, Stream) {
         a.row<float>(Role::out)[8] = 0;
         return golden(p.problem, a);
       }},
      {"writes outside out", "forward f32 b1 h2 q8 k8 d8 full | bhsd",
       [](const Plan& p, const Args& a, Workspace, Stream) {
         a.row<float>(Role::out)[-1] = 0;
         return golden(p.problem, a);
       }},
      {"is not written", "forward bf16 b1 h2 q8 k8 d8 full",
       [](const Plan& p, const Args& a, Workspace, Stream) {
         const Status s = golden(p.problem, a);
         a.row<uint16_t>(Role::out, 0, 7, 1)[7] = 0x7E7E;
         return s;
       }},
      {"is not written", "backward f32 b1 h2 q8 k8 d8 full",
       [](const Plan& p, const Args& a, Workspace, Stream) {
         Args wrong = a;
         wrong[Role::dk] = {};
         return golden(p.problem, wrong);
       }},
      {"does not belong to a query", "forward f32 b3 h2 q8 k8 d8 full | seed=3 used_q",
       [](const Plan& p, const Args& a, Workspace, Stream) {
         Args wrong = a;
         wrong[Role::used_q] = {};
         return golden(p.problem, wrong);
       }},
      {"writes outside its workspace", "forward f32 b1 h2 q8 k8 d8 full",
       [](const Plan& p, const Args& a, Workspace ws, Stream) {
         ws.data[1000] = {};
         return golden(p.problem, a);
       }},
      {"writes outside its workspace", "forward f32 b1 h2 q8 k8 d8 full",
       [](const Plan& p, const Args& a, Workspace ws, Stream) {
         ws.data[-1] = {};
         return golden(p.problem, a);
       }},
      {"writes into its inputs", "forward f32 b1 h2 q8 k8 d8 full",
       [](const Plan& p, const Args& a, Workspace, Stream) {
         const Status s = golden(p.problem, a);
         a.row<float>(Role::k)[0] += 1;
         return s;
       }},
      {"no memory", "forward f32 b1 h2 q8 k8 d8 full",
       [](const Plan&, const Args&, Workspace, Stream) { return Status::no("no memory"); }},
  };
  for (const auto& [why, text, run] : all) {
    const Outcome o = outcome_of(text, run);
    EXPECT_EQ(o.verdict, Verdict::fail) << why;
    EXPECT_NE(o.why.find(why), std::string::npos) << "'" << o.why << "' is not '" << why << "'";
  }
}

TEST(parity, verdicts) {
  const Golden exact{.values = {1, -2, 0.5, 0}};
  const auto of = [&](double error, DType t) { return judge(exact, {1 + error, -2, 0.5, 0}, {.dtype = t}).verdict; };
  EXPECT_EQ(of(0, DType::f32), Verdict::pass);
  EXPECT_EQ(of(1e-7, DType::f32), Verdict::pass);
  EXPECT_EQ(of(1e-4, DType::f32), Verdict::fail);
  EXPECT_EQ(of(1e-4, DType::bf16), Verdict::pass);           // mean 2.5e-5
  EXPECT_EQ(of(2e-3, DType::bf16), Verdict::pass_at_floor);  // mean 5e-4, less than half a bf16 ulp
  EXPECT_EQ(of(5e-2, DType::bf16), Verdict::fail);
  EXPECT_EQ(of(NAN, DType::bf16), Verdict::fail);
  EXPECT_EQ(of(INFINITY, DType::bf16), Verdict::fail);
  // Infinities must match exactly.
  const Golden nothing{.values = {-INFINITY, 1}};
  EXPECT_EQ(judge(nothing, {-INFINITY, 1}, {}).verdict, Verdict::pass);
  EXPECT_EQ(judge(nothing, {-1e30, 1}, {}).verdict, Verdict::fail);
  EXPECT_EQ(judge(nothing, {INFINITY, 1}, {}).verdict, Verdict::fail);
  // Scaled values are judged by relative error.
  const Golden large{.values = {1e4, -1e4}}, small{.values = {1e-4, -1e-4}};
  EXPECT_EQ(judge(large, {1e4 + 1e-3, -1e4}, {.dtype = DType::f32, .scaled = true}).verdict, Verdict::pass);
  EXPECT_EQ(judge(small, {1.01e-4, -1e-4}, {.dtype = DType::f32, .scaled = true}).verdict, Verdict::fail);
  // Three times the error of a naive computation is allowed.
  Golden shaken = exact;
  shaken.shake({1.001, -2.001, 0.501, 0.001});
  EXPECT_EQ(judge(shaken, {1.0025, -2, 0.5, 0}, {}).verdict, Verdict::pass_at_floor);
  EXPECT_EQ(judge(shaken, {1.0035, -2, 0.5, 0}, {}).verdict, Verdict::fail);
}

// Hunts drew these. All but the last have gradients that are all cancellation, since their rows see one key; the last
// has weights below the normal numbers of f16.
TEST(parity, what_a_naive_computation_rounds_is_no_failure_and_a_wrong_D_is_one) {
  const struct { const char *backend, *line; } all[] = {
      {"dilated", "backward f16 b3 h6/3 q50 k50 d128/16 causal : dilated mode=headgroup norm=divide rates=2,4,4 "
                  "segments=16,92,16 | seed=68354 drawn cache d_lse"},
      {"cpu_backward", "backward bf16 b1 h1 q513 k191 d256 window3,0@top_left blocks48x32x66 block_bias | seed=1024968 "
                       "odd bhsd cache d_lse"},
      {"cpu_backward", "backward f32 b1 h1 q24 k129 d248/8 causal blocks128x128x1 | seed=148767 odd pad=16 shared "
                       "used_q"},
      {"adaptive", "backward f16/f16/f16/f32 b3 h4/1 q67 k67 d16 causal sink : adaptive block=16 density=0.3 hidden=8 "
                   "noise=gumbel | seed=713168 pad=0 d_lse"},
  };
  for (const auto& [backend, line] : all) {
    Trial trial(case_of(line));
    ASSERT_TRUE(trial.prepare().ok()) << line;
    const Outcome o = trial.run(*find_backend(backend), this_cpu());
    EXPECT_NE(o.verdict, Verdict::fail) << line << ": " << o.why;
    if (!trial.world.args.given(Role::d_lse)) continue;
    const Outcome wrong = outcome_of(line, [](const Plan& p, const Args& a, Workspace, Stream) {
      Args less = a;
      less[Role::d_lse] = {};
      return golden(p.problem, less);
    });
    EXPECT_EQ(wrong.verdict, Verdict::fail) << line;
  }
}

TEST(parity, figures_are_what_they_say) {
  const Judged j = judge(Golden{.values = {3, 4, 0, 0}}, {3, 4, 0.1, -0.3}, {.dtype = DType::f32});
  EXPECT_NEAR(j.mae, 0.1, 1e-12);
  EXPECT_NEAR(j.max, 0.3, 1e-12);
  EXPECT_NEAR(j.relative_l2, std::sqrt(0.1) / 5, 1e-12);
  EXPECT_EQ(j.worst, 3);
}

TEST(cases, every_name_reads_back_and_no_two_are_the_same) {
  std::vector<std::string> names;
  for (const Case& c : cases()) {
    Case again;
    const Status s = parse(name(c), again);
    ASSERT_TRUE(s.ok()) << name(c) << ": " << s.message;
    EXPECT_TRUE(again.problem == c.problem && again.variation == c.variation) << name(c);
    names.push_back(name(c));
  }
  for (const std::span lines : {nasty_lines(), nsa_lines(), tile_lines(), large_lines(), large_logit_lines()})
    for (const std::string_view line : lines) case_of(line);
  for (const std::string& line : with_passes("dilated", dilated_lines())) case_of(line);
  for (const std::string& line : with_passes("adaptive", adaptive_lines())) case_of(line);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  EXPECT_TRUE(twice == names.end()) << *twice;
}

TEST(cases, that_are_large_are_for_no_cpu) {
  Suite suite{.cases = cases(), .backends = {backends().begin(), backends().end()}, .places = {busy_cpu()}};
  std::erase_if(suite.cases, [](const Case& c) { return !c.large; });
  EXPECT_EQ(suite.cases.size(), large_lines().size());
  EXPECT_TRUE(suite.run().empty());
}

TEST(cases, have_every_head_dim_of_fused_kernels_in_both_passes_and_with_one_query) {
  std::set<int> seen[3];
  for (const Case& c : cases()) {
    const Problem& p = c.problem;
    if (p.variant.text[0] || p.dtype.kv == DType::f32 || p.dim_qk != p.dim_v) continue;
    seen[p.pass == Pass::backward ? 1 : p.len_q == 1 ? 2 : 0].insert(p.dim_qk);
  }
  for (int dim = 8; dim <= 256; dim += 8)
    for (const std::set<int>& of : seen) EXPECT_TRUE(of.contains(dim)) << dim << " of " << &of - seen;
}

TEST(cases, mistakes_are_named) {
  Case c;
  EXPECT_NE(parse("forward f32 b1 h1 q1 k1 d8 full | seed=x", c).message.find("'seed=x' is not one of"),
            std::string::npos);
  EXPECT_NE(parse("forward f32 b1 h1 q1 k1 d8 full | bias=z", c).message.find("'bias=z'"), std::string::npos);
  EXPECT_FALSE(parse("forward f32 b1 h1 q1 k1 d8 | lean", c).ok());
}

TEST(world, the_same_seed_gives_the_same_bytes_and_another_does_not) {
  Case c;
  ASSERT_TRUE(parse("forward bf16 b3 h4/2 q33 k65 d64 causal bias paged16 | seed=5 drawn cache", c).ok());
  const World one(c.problem, c.variation), two(c.problem, c.variation);
  c.variation.seed = 6;
  EXPECT_EQ(one.fingerprint(), two.fingerprint());
  EXPECT_NE(one.fingerprint(), World(c.problem, c.variation).fingerprint());
}

TEST(world, draws_are_normal) {
  Random random{3};
  double sum = 0, square = 0, fourth = 0;
  const int n = 200000;
  for (int k = 0; k < n; ++k) {
    const double x = random.normal();
    sum += x, square += x * x, fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(square / n, 1, 0.02);
  EXPECT_NEAR(fourth / n, 3, 0.1);
}

}  // namespace
}  // namespace attune
