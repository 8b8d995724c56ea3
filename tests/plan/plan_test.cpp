// SPDX-License-Identifier: Apache-2.0
// Planning: nothing is silent, nothing touches a device, and every decision has a reason.
#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "plan/rules.h"
#include "tests/asked.h"

namespace attune {
namespace {

constexpr const char* kForward = "forward f32 b2 h4 q64 k64 d64 causal";
constexpr const char* kBackward = "backward f32 b2 h4 q64 k64 d64 causal";

// A CPU that is described rather than detected: the same on every machine.
Device plain_cpu() { return {.units = 2, .features = bit(Feature::blas), .name = "a CPU"}; }
Device h200() {
  Device d;
  EXPECT_TRUE(known_device("h200", d).ok());
  return d;
}
// Removes the refusals of GPU backends, which a build without GPU code does not have.
std::string of_cpu(const std::string& refused) {
  std::string kept;
  for (size_t at = 0; at < refused.size();) {
    const size_t end = std::min(refused.find('\n', at + 1), refused.size());
    const std::string line = refused.substr(at, end - at);
    bool is_gpu = false;
    for (const char* family : {"\n  sm", "\n  cuda_", "\n  vendor_"}) is_gpu |= line.starts_with(family);
    if (!is_gpu) kept += line;
    at = end;
  }
  return kept;
}
Rule rule(Pass pass, const char* backend) {
  return {.pass = pass, .dtype = DType::f32, .dim_qk = 64, .dim_v = 64, .mask = MaskKind::causal, .backend = backend,
          .source = "test.tsv:7"};
}

TEST(Plan, the_list_decides_where_nothing_was_measured) {
  Plan plan;
  const Status s = Planner{.device = plain_cpu()}.plan(problem(kForward), plan);
  ASSERT_TRUE(s.ok()) << s.message;
  EXPECT_EQ(plan.backend->name, "cpu_forward");
  EXPECT_EQ(plan.why, "first in the list of backends that supports it");
  EXPECT_EQ(of_cpu(plan.refused), "");
  EXPECT_EQ(plan.problem, problem(kForward));
  EXPECT_EQ(plan.device.name, "a CPU");
}

TEST(Plan, who_refused_before_is_kept) {
  Plan plan;
  ASSERT_TRUE((Planner{.device = plain_cpu()}.plan(problem("forward f32 b1 h1 q8 k8 d7 full"), plan).ok()));
  EXPECT_EQ(plan.backend->name, "cpu_standard");
  EXPECT_EQ(plan.refused, "\n  cpu_forward: dim 7 is not a multiple of 8 up to 256");
  ASSERT_TRUE((Planner{.device = plain_cpu()}.plan(problem(kBackward), plan).ok()));
  EXPECT_EQ(plan.backend->name, "cpu_backward");
  EXPECT_EQ(plan.refused, "") << "that cpu_forward computes no backward says nothing of this problem";
}

TEST(Plan, a_forced_backend_is_taken) {
  Plan plan;
  const Status s = Planner{.device = plain_cpu(), .forced = "reference"}.plan(problem(kForward), plan);
  ASSERT_TRUE(s.ok()) << s.message;
  EXPECT_EQ(plan.backend->name, "reference");
  EXPECT_EQ(plan.why, "selected by name");
}

TEST(Plan, a_forced_backend_that_refuses_is_an_error_and_never_replaced) {
  Plan plan;
  const Status s = Planner{.device = plain_cpu(), .forced = "cpu_backward"}.plan(problem(kForward), plan);
  const std::string begin = join("backend 'cpu_backward' does not support: ", kForward, "\n  cpu_backward: ");
  EXPECT_TRUE(s.message.starts_with(begin)) << s.message;
  EXPECT_EQ(s.code, Code::unsupported);
  EXPECT_EQ(plan.backend, nullptr);
}

TEST(Plan, a_forced_backend_goes_before_a_rule) {
  const Rule r = rule(Pass::forward, "cpu_standard");
  Plan plan;
  ASSERT_TRUE((Planner{plain_cpu(), std::span(&r, 1), "cpu_forward"}.plan(problem(kForward), plan).ok()));
  EXPECT_EQ(plan.backend->name, "cpu_forward");
}

TEST(Plan, an_unknown_forced_backend_fails_with_the_list) {
  Plan plan;
  const Status s = Planner{.device = plain_cpu(), .forced = "cpu_fast"}.plan(problem(kForward), plan);
  EXPECT_EQ(s.message, "backend 'cpu_fast' is not one of " + backend_names());
  EXPECT_EQ(s.code, Code::invalid);
}

TEST(Plan, a_rule_wins_and_is_named) {
  const Rule r = rule(Pass::forward, "cpu_standard");
  Plan plan;
  ASSERT_TRUE((Planner{.device = plain_cpu(), .rules = std::span(&r, 1)}.plan(problem(kForward), plan).ok()));
  EXPECT_EQ(plan.backend->name, "cpu_standard");
  EXPECT_EQ(plan.why, "test.tsv:7");
}

TEST(Plan, a_rule_for_other_problems_changes_nothing) {
  const Rule r = rule(Pass::backward, "cpu_standard");
  Plan plan;
  ASSERT_TRUE((Planner{.device = plain_cpu(), .rules = std::span(&r, 1)}.plan(problem(kForward), plan).ok()));
  EXPECT_EQ(plan.backend->name, "cpu_forward");
}

TEST(Plan, a_rule_whose_backend_refuses_falls_to_the_list_and_keeps_the_refusal) {
  const Rule r = rule(Pass::forward, "cpu_backward");
  Plan plan;
  ASSERT_TRUE((Planner{.device = plain_cpu(), .rules = std::span(&r, 1)}.plan(problem(kForward), plan).ok()));
  EXPECT_EQ(plan.backend->name, "cpu_forward");
  EXPECT_EQ(plan.why, "first in the list of backends that supports it");
  EXPECT_TRUE(plan.refused.starts_with("\n  cpu_backward: ")) << plan.refused;
}

TEST(Plan, a_rule_that_names_nobody_is_not_silent) {
  const Rule r = rule(Pass::forward, "sm91_forward");
  Plan plan;
  ASSERT_TRUE((Planner{.device = plain_cpu(), .rules = std::span(&r, 1)}.plan(problem(kForward), plan).ok()));
  EXPECT_EQ(plan.backend->name, "cpu_forward");
  EXPECT_EQ(of_cpu(plan.refused), "\n  test.tsv:7: backend 'sm91_forward' is not one of " + backend_names());
}

// Planning is pure and works anywhere: it gives a plan for that GPU, or the reason of every backend. A CPU backend must
// never accept a GPU problem.
TEST(Plan, what_an_h200_would_get_can_be_asked_anywhere) {
  for (const char* line : {"forward bf16 b4 h32/8 q4096 k4096 d128 causal", "forward f64 b1 h1 q8 k8 d8 full"}) {
    Plan plan;
    const Status s = Planner{.device = h200()}.plan(problem(line), plan);
    if (s.ok()) {
      EXPECT_FALSE(plan.backend->name.starts_with("cpu_")) << plan.backend->name;
      EXPECT_EQ(plan.device.name, "NVIDIA H200");
      continue;
    }
    EXPECT_TRUE(s.message.starts_with(join("no backend supports: ", line, "\n  "))) << s.message;
    for (const Backend* b : backends())  // "requires a CPU" says nothing about the problem
      EXPECT_FALSE(b->name.starts_with("cpu_") && s.message.find(join("\n  ", b->name, ": ")) != s.message.npos)
          << b->name << " in\n" << s.message;
  }
}

TEST(Plan, every_backend_refuses_with_its_name_first) {
  for (const Backend* b : backends()) {
    int refusals = 0;
    for (const Device& d : {plain_cpu(), h200()})
      for (const char* line : {kForward, kBackward, "forward bf16 b1 h1 q8 k8 d64 full"}) {
        const Status s = b->supports(problem(line), d);
        refusals += !s.ok();
        EXPECT_TRUE(s.ok() || s.message.starts_with(join(b->name, ": "))) << b->name << " says '" << s.message << "'";
        EXPECT_TRUE(s.ok() || s.code == Code::unsupported) << s.message;
      }
    EXPECT_GT(refusals, 0) << b->name << " runs everywhere";
  }
}

TEST(Plan, the_reference_is_never_chosen) {
  Plan plan;
  const Status s = Planner{.device = plain_cpu()}.plan(problem("forward f64 b1 h1 q8 k8 d8 full"), plan);
  EXPECT_FALSE(s.ok()) << "chosen: " << plan.backend->name;
  EXPECT_EQ(s.message.find("reference"), std::string::npos) << s.message;
}

TEST(Plan, an_invalid_problem_is_refused_before_any_backend_sees_it) {
  Problem p = problem(kForward);
  p.heads_kv = 3;
  Plan plan;
  const Status s = Planner{.device = plain_cpu()}.plan(p, plan);
  EXPECT_EQ(s.message, "problem: heads_kv = 3 does not divide heads_q = 4");
}

TEST(Plan, planning_twice_gives_the_same_plan) {
  Plan a, b;
  const Planner planner{.device = plain_cpu()};
  ASSERT_TRUE(planner.plan(problem(kForward), a).ok() && planner.plan(problem(kForward), b).ok());
  EXPECT_TRUE(a.backend == b.backend && a.tile_q == b.tile_q && a.tile_k == b.tile_k && a.splits == b.splits &&
              a.kernel == b.kernel && a.workspace_bytes == b.workspace_bytes && a.why == b.why);
}

TEST(Backends, names_are_unique_and_found) {
  std::set<std::string_view> seen;
  for (const Backend* b : backends()) {
    EXPECT_TRUE(seen.insert(b->name).second) << b->name;
    EXPECT_EQ(find_backend(b->name), b);
    EXPECT_NE(backend_names().find(b->name), std::string::npos);
    EXPECT_TRUE(b->supports && b->shape && b->run) << b->name;
  }
  EXPECT_EQ(find_backend("cpu_forwar"), nullptr);
  EXPECT_EQ(find_backend(""), nullptr);
}

TEST(PlanCache, the_same_problem_is_the_same_plan) {
  PlanCache cache({.device = plain_cpu()});
  PlanCache::Kept first, again, other;
  ASSERT_TRUE(cache.find(problem(kForward), first).ok());
  ASSERT_TRUE(cache.find(problem("forward f32 b2 h4 q64 k65 d64 causal"), other).ok());
  ASSERT_TRUE(cache.find(problem(kForward), again).ok());
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
  EXPECT_EQ(other->problem.len_k, 65);
}

TEST(PlanCache, a_refusal_is_given_each_time) {
  PlanCache cache({.device = h200()});
  for (int n = 0; n < 2; ++n) {
    PlanCache::Kept plan;
    const Problem p = problem("forward f64 b1 h1 q8 k8 d8 full");
    const Status s = cache.find(p, plan);
    EXPECT_TRUE(s.message.starts_with("no backend supports: ")) << s.message;
    EXPECT_EQ(s.code, Code::unsupported);
    EXPECT_EQ(plan, nullptr);
  }
}

// Also run under the thread sanitizer. All threads request a new problem at the same moment, repeatedly: the second
// must get the plan of the first, which others already hold. Rules that match nothing make planning slow enough for two
// threads to overlap.
TEST(PlanCache, many_threads_find_the_same_plans) {
  constexpr int kThreads = 4, kProblems = 1000;
  const std::vector<Rule> rules(100'000, rule(Pass::backward, "cpu_standard"));
  PlanCache cache({.device = plain_cpu(), .rules = rules});
  std::vector<std::vector<PlanCache::Kept>> found(kThreads, std::vector<PlanCache::Kept>(kProblems));
  std::atomic<int> arrived = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int n = 0; n < kProblems; ++n) {
        Problem p = problem(kForward);
        p.len_k = n + 1;
        for (++arrived; arrived < (n + 1) * kThreads;) std::this_thread::yield();
        if (!cache.find(p, found[t][n]).ok()) found[t][n] = nullptr;
      }
    });
  for (std::thread& t : threads) t.join();
  for (int n = 0; n < kProblems; ++n) {
    ASSERT_NE(found[0][n], nullptr);
    for (int t = 1; t < kThreads; ++t) ASSERT_EQ(found[t][n], found[0][n]) << "problem " << n;
    EXPECT_EQ(found[0][n]->problem.len_k, n + 1);
  }
}

TEST(PlanCache, has_a_bound_and_keeps_what_is_used) {
  constexpr size_t kMost = 64;
  PlanCache cache({.device = plain_cpu()}, kMost);
  Problem p = problem(kForward);
  PlanCache::Kept held, often, again;
  p.len_k = 1;
  ASSERT_TRUE(cache.find(p, held).ok());
  for (int n = 2; n < 2000; ++n) {
    PlanCache::Kept plan;
    p.len_k = 100000;
    ASSERT_TRUE(cache.find(p, often).ok());
    p.len_k = n;
    ASSERT_TRUE(cache.find(p, plan).ok());
    EXPECT_EQ(plan->problem.len_k, n);
    ASSERT_LE(cache.size(), kMost);
  }
  EXPECT_EQ(held->problem.len_k, 1);  // dropped by the cache, and still whole
  p.len_k = 1;
  ASSERT_TRUE(cache.find(p, again).ok());
  EXPECT_NE(again, held);
}

// Also run under the thread sanitizer.
TEST(PlanCache, many_threads_may_use_plans_that_others_drop) {
  PlanCache cache({.device = plain_cpu()}, 8);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int n = 0; n < 2000; ++n) {
        Problem p = problem(kForward);
        p.len_k = 1 + (n * (t + 1)) % 50;
        PlanCache::Kept plan;
        if (!cache.find(p, plan).ok() || plan->problem.len_k != p.len_k) ++wrong;
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(cache.size(), 8u);
}

// A backend that accepts only a scale of 1, which depends on the arguments of a call and not on the problem.
Status only_scale_one(const Plan&, const Args& a) {
  return a.scale == 1.f ? Status::good() : Status::no("picky: the scale is ", a.scale, ", not 1");
}
const Backend picky{.name = "picky", .supports = nullptr, .shape = nullptr, .run = nullptr, .fits = only_scale_one};

TEST(Plan, arguments_that_do_not_fit_go_to_the_next_link_and_the_plan_says_so) {
  PlanCache cache(Planner{.device = plain_cpu()});
  const auto first = std::make_shared<const CachedPlan>(
      Plan{.backend = &picky, .problem = problem(kForward), .device = plain_cpu()});
  Args args{};
  args.scale = 1.f;
  PlanCache::Kept plan = first;
  ASSERT_TRUE(cache.fit(args, plan).ok());
  EXPECT_EQ(plan, first);
  args.scale = 0.5f;
  ASSERT_TRUE(cache.fit(args, plan).ok());
  EXPECT_EQ(plan->backend->name, "cpu_forward");
  EXPECT_EQ(plan->instead_of, &picky);
  EXPECT_EQ(plan->why, "next in the list that supports it, because the arguments do not fit picky");
  EXPECT_EQ(of_cpu(plan->refused), "\n  picky: the scale is 0.5, not 1");
  PlanCache::Kept again = first;
  args.scale = 0.25f;
  ASSERT_TRUE(cache.fit(args, again).ok());
  EXPECT_EQ(again, plan) << "planned once";
}

TEST(Plan, a_backend_that_is_ruled_out_is_not_planned_even_by_a_rule) {
  const Rule r = rule(Pass::forward, "cpu_standard");
  const Backend* const out[] = {find_backend("cpu_standard"), find_backend("cpu_forward")};
  Plan plan;
  const Planner planner{.device = plain_cpu(), .rules = std::span(&r, 1), .unfit = out};
  EXPECT_FALSE(planner.plan(problem(kForward), plan).ok());
  ASSERT_TRUE((Planner{.device = plain_cpu(), .rules = std::span(&r, 1), .unfit = std::span(out, 1)}
                   .plan(problem(kForward), plan).ok()));
  EXPECT_EQ(plan.backend->name, "cpu_forward");
}

TEST(Plan, arguments_that_a_forced_backend_does_not_fit_are_an_error) {
  PlanCache cache(Planner{.device = plain_cpu(), .forced = "picky"});
  const auto first = std::make_shared<const CachedPlan>(
      Plan{.backend = &picky, .problem = problem(kForward), .device = plain_cpu()});
  PlanCache::Kept plan = first;
  EXPECT_EQ(cache.fit(Args{}, plan).message, join("picky: the scale is 0, not 1, in: ", kForward));
}

TEST(Plan, arguments_that_no_link_fits_are_refused_with_every_reason) {
  PlanCache cache(Planner{.device = h200()});
  const auto first = std::make_shared<const CachedPlan>(
      Plan{.backend = &picky, .problem = problem("forward f64 b1 h1 q8 k8 d8 full"), .device = h200()});
  PlanCache::Kept plan = first;
  const std::string said = cache.fit(Args{}, plan).message;
  EXPECT_TRUE(said.starts_with("no backend supports: forward f64 ")) << said;
  EXPECT_TRUE(said.ends_with("\n  picky: the scale is 0, not 1")) << said;
}

TEST(Plan, the_links_that_would_follow_are_named) {
  const Plan first{.backend = &picky, .problem = problem(kForward), .device = plain_cpu()};
  EXPECT_EQ(links_after(first, Planner{.device = plain_cpu()}), "cpu_forward");
  EXPECT_EQ(links_after(first, Planner{.device = plain_cpu(), .forced = "picky"}), "");
  Plan plan;
  ASSERT_TRUE((Planner{.device = plain_cpu()}.plan(problem(kForward), plan).ok()));
  EXPECT_EQ(links_after(plan, Planner{.device = plain_cpu()}), "") << "cpu_forward takes every call";
}

TEST(Plan, a_link_that_supports_a_problem_and_finds_no_shape_is_not_named) {
  const Problem p = problem("forward f64 b1 h2 q64 k64 d16 causal : nsa d=4 gate=softmax l=8 n=4 phi=mean s=8 w=9");
  ASSERT_TRUE(find_backend("nsa")->supports(p, plain_cpu()).ok());
  Plan plan;
  EXPECT_EQ((Planner{.device = plain_cpu()}.plan(p, plan).code), Code::unsupported) << "its attentions in f64";
  EXPECT_EQ(links_after({.backend = &picky, .problem = p, .device = plain_cpu()}, {.device = plain_cpu()}), "");
}

TEST(Plan, a_refusal_keeps_its_code_through_the_chain) {
  PlanCache forced(Planner{.device = plain_cpu(), .forced = "picky"}), none(Planner{.device = h200()});
  const auto first = std::make_shared<const CachedPlan>(
      Plan{.backend = &picky, .problem = problem(kForward), .device = plain_cpu()});
  const auto f64 = std::make_shared<const CachedPlan>(
      Plan{.backend = &picky, .problem = problem("forward f64 b1 h1 q8 k8 d8 full"), .device = h200()});
  PlanCache::Kept plan = first;
  EXPECT_EQ(forced.fit(Args{}, plan).code, Code::invalid);
  plan = f64;
  EXPECT_EQ(none.fit(Args{}, plan).code, Code::unsupported);
}

}  // namespace
}  // namespace attune
