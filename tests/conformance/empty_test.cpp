// A check that compares nothing is EMPTY and never a pass. A case that is meant to show no key says so, and is held to
// the defined result of such rows. Drawn cases draw again until they show a key.
#include <gtest/gtest.h>

#include "machine/host.h"
#include "tests/asked_case.h"
#include "verify/cases/coverage.h"
#include "verify/suite.h"

namespace attune {
namespace {

using Run = Status (*)(const Plan&, const Args&, Workspace, Stream);

Status right(const Plan& plan, const Args& a, Workspace, Stream) {
  return find_backend("reference")->run(Plan{.problem = plan.problem}, a, {}, nullptr);
}
Status nothing(const Plan&, const Args&, Workspace, Stream) { return Status::good(); }
Status off_by_one(const Plan& plan, const Args& a, Workspace w, Stream s) {
  const Status done = right(plan, a, w, s);
  const Role r = plan.problem.pass == Pass::forward ? Role::out : Role::dq;
  store(a[r], 0, 0, 0, 0, load(a[r], 0, 0, 0, 0) + 1);
  return done;
}

Outcome outcome_of(std::string_view line, Run run) {
  Trial trial(case_of(line));
  const Status s = trial.prepare();
  EXPECT_TRUE(s.ok()) << s.message;
  const Backend b{.name = "backend",
                  .supports = [](const Problem&, const Device&) { return Status::good(); },
                  .shape = [](Plan&, const Planner&) { return Status::good(); },
                  .run = run};
  return trial.run(b, Device{});
}

constexpr std::string_view kShowNothing[] = {
    "forward f32 b2 h2 q70 k70 d64 window2,-3",
    "forward bf16 b1 h2 q1 k1 d8 window*,-2",
    "forward f32 b1 h2 q5 k9 d8 window*,-20 sink",
    "forward f32 b1 h2 q5 k9 d8 window*,-20 accumulate",
    "forward f32 b2 h2 q5 k9 d8 window*,-20 append",
    "forward f32 b2 h2 q5 k9 d8 window*,-20 paged4",
    "backward f32 b2 h2 q70 k70 d64 window2,-3",
    "backward f32 b1 h2 q5 k9 d8 window*,-20 sink accumulate | d_lse",
    "forward f32 b1 h2 q7 k1 d8 full : compress d=4 l=8 phi=mean",
};

// `compress` of too few tokens has no row to hold to anything.
bool writes_rows(std::string_view line) { return line.find("compress") == line.npos; }

TEST(Empty, a_case_that_shows_no_key_is_never_a_pass) {
  for (const std::string_view line : kShowNothing) {
    EXPECT_EQ(outcome_of(line, right).verdict, Verdict::empty) << line;
    const Verdict of_nothing = writes_rows(line) ? Verdict::fail : Verdict::empty;  // what is wrong stays wrong
    EXPECT_EQ(outcome_of(line, nothing).verdict, of_nothing) << line;
  }
  for (const std::string_view line : {"forward f32 b1 h2 q70 k70 d64 window2,-2", "backward f32 b1 h1 q1 k1 d8 full",
                                      "forward f32 b1 h2 q5 k9 d8 window*,-4 accumulate"})
    EXPECT_EQ(outcome_of(line, right).verdict, Verdict::pass) << line;
}

TEST(Empty, a_case_that_is_meant_to_be_empty_is_held_to_the_result_of_rows_that_see_nothing) {
  for (const std::string_view line : kShowNothing) {
    const bool has_words = line.find(" | ") != line.npos;
    const std::string meant = join(line, has_words ? " empty" : " | empty");
    EXPECT_EQ(name(case_of(meant)), meant);
    EXPECT_EQ(outcome_of(meant, right).verdict, writes_rows(line) ? Verdict::pass : Verdict::empty) << line;
    if (!writes_rows(line)) continue;
    EXPECT_EQ(outcome_of(meant, nothing).verdict, Verdict::fail) << line;
    EXPECT_EQ(outcome_of(meant, off_by_one).verdict, Verdict::fail) << line;
  }
}

TEST(Empty, a_case_that_says_empty_and_shows_a_key_is_refused) {
  Trial trial(case_of("forward f32 b1 h2 q70 k70 d64 window2,-2 | empty"));
  EXPECT_EQ(trial.prepare().message, "case: 'empty' is given, but some query sees a key");
}

TEST(Empty, drawn_lengths_and_lists_are_drawn_again_until_they_show_a_key) {
  for (int seed = 1; seed <= 60; ++seed)
    for (const std::string_view line :
         {"forward bf16 b2 h4/2 q31 k129 d64 causal | seed=# drawn bhsd cache", "backward f32 b1 h1 q3 k3 d8 full | "
          "seed=# drawn used_q", "forward f32 b1 h1 q1 k1 d8 full blocks64x64x6 paged16 | seed=# used_q"}) {
      std::string text(line);
      text.replace(text.find('#'), 1, std::to_string(seed));
      Trial one(case_of(text)), two(case_of(text));
      ASSERT_TRUE(one.prepare().ok() && two.prepare().ok()) << text;
      EXPECT_TRUE(one.compares()) << text;
      EXPECT_EQ(one.world.fingerprint(), two.world.fingerprint()) << text;
    }
}

TEST(Empty, a_seed_that_shows_a_key_keeps_its_inputs) {
  const Case c = case_of("forward bf16 b2 h4/2 q31 k129 d64 causal | seed=5 drawn bhsd cache");
  Trial trial(c);
  ASSERT_TRUE(trial.prepare().ok());
  EXPECT_EQ(trial.world.fingerprint(), World(c.problem, c.variation).fingerprint());
}

TEST(Empty, a_cell_of_the_coverage_whose_runs_compare_nothing_is_a_hole) {
  const Backend* forward = find_backend("cpu_forward");
  ASSERT_TRUE(forward);
  const auto holes = [&](std::string_view line) {
    const Suite suite{.cases = {case_of(line)}, .backends = {forward}, .places = {Place{"cpu", this_cpu(), 0}}};
    int runs = 0;
    for (const Cell& c : coverage(suite, suite.run(), *forward, 0)) runs += c.runs;
    return runs;
  };
  EXPECT_GT(holes("forward f32 b1 h2 q5 k9 d8 window*,-4"), 0);
  EXPECT_EQ(holes("forward f32 b1 h2 q5 k9 d8 window*,-20"), 0);
}

}  // namespace
}  // namespace attune
