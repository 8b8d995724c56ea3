// SPDX-License-Identifier: Apache-2.0
// A NaN or an infinity reaches only what depends on it. A key that a row does not see (causal, window, block list,
// lengths, pages, other sequences) changes no bit of the row's out, lse and dq, and a row no bit of dk and dv of a key
// that it does not see. The reference says which results depend on a value: those that it changes there. Covers every
// backend on the CPU, with each instruction set, but for masked_dense, which hides by a bias. Kernels on a GPU do not
// promise it (docs/kernels/cpu.md).
#include "tests/runs.h"
#include "verify/suite.h"

namespace attune {
namespace {

// Each mask, key source and option with code of its own, and dims with different padding.
constexpr const char* kLines[] = {
    "backward f32 b1 h2 q70 k70 d64 causal",
    "backward bf16 b1 h2 q70 k70 d64 causal",
    "backward f16 b1 h4/1 q60 k130 d40/24 causal",
    "backward f32 b1 h2 q50 k90 d8 causal@top_left",
    "backward f32 b1 h2/1 q150 k150 d16 window20,10",
    "backward bf16 b1 h2 q90 k70 d24/96 window5,3",
    "backward f16 b1 h1 q40 k70 d128 window*,-2",
    "backward bf16 b1 h1 q40 k40 d192/128 causal",
    "backward bf16 b1 h1 q30 k40 d256 causal",
    "backward f32 b1 h2 q300 k300 d8 causal",
    "backward bf16 b1 h1 q300 k600 d8 window40,-3",
    "backward f32 b1 h1 q60 k30 d16 causal/4+3",
    "backward f32 b1 h2 q60 k70 d16 causal softcap alibi",
    "backward f16 b1 h2/1 q60 k70 d16 window9,2 bias | bias=q",
    "backward bf16 b1 h2 q60 k70 d16 causal dropout sink | d_lse",
    "backward f32 b2 h2 q40 k70 d16 causal | drawn cache used_q shared",
    "backward f32 b3 h2/1 q40 k50 d16 causal ragged | seed=2 drawn",
    "backward f16 b2 h2 q40 k50 d16 full ragged | seed=3 drawn",
    "backward bf16 b2 h2 q40 k60 d32 causal paged16 | seed=2 drawn shared",
    "backward f32/f32/f32/f32 b1 h2 q40 k60 d16 causal accumulate",
    "backward f32 b1 h2 q90 k90 d16 full blocks32x16x20",
    "backward bf16 b1 h2 q90 k90 d16 causal blocks16x32x30 repro=run",
    "backward f32 b1 h2/1 q90 k90 d16 causal blocks16x16x60 block_bias repro=run",
    "forward f32 b2 h2 q1 k200 d64 window30,0 | drawn cache",
    "forward f32 b2 h2 q4 k200 d64 causal | drawn cache used_q",
    "forward f32 b1 h2 q4 k5 d64 causal",
    "forward f16 b1 h4/2 q2 k4 d24 window1,0",
    "forward f32 b2 h1 q3 k8 d8 window2,1 dropout",
    "forward f16 b1 h8/2 q3 k90 d64 causal sink",
    "forward bf16 b2 h2 q1 k300 d128 window100,-7 paged16 | drawn cache",
    "forward f32 b1 h2 q9 k300 d16 window37,2 repro=batch",
    "forward f32 b2 h2 q5 k90 d16 causal append | drawn cache",
    "forward bf16 b2 h4/2 q33 k90 d32 causal append rotary paged16 | drawn cache",
    "forward f32 b1 h2 q40 k60 d16 causal accumulate",
    "forward f32 b1 h1 q30 k600 d8 causal",
    "backward f32 b1 h4/2 q40 k40 d16 causal : selected n=4 s=8",
    "backward bf16 b1 h16/1 q40 k40 d64 causal : selected n=4 s=16",
    "backward f16 b1 h48/1 q60 k60 d24 causal : selected n=4 s=32",
};

// A machine, a backend that serves a case on it, and what it gives without bad values.
struct Runner {
  Plan plan;
  std::string at;
  Outputs clean;
};

Outputs run(const Plan& plan, const World& world, const std::string& at) {
  Outputs got = world.outputs(false);
  EXPECT_EQ(run_plan(plan, got.args).message, "") << at;
  return got;
}
Outputs golden(World& world) {
  if (world.problem.pass == Pass::backward) run_forward(world, world.forward_result());
  Outputs got = world.outputs(true);
  EXPECT_EQ(find_backend("reference")->run(Plan{.problem = world.problem}, got.args, {}, nullptr).message, "");
  return got;
}

std::vector<Runner> runners_of(const World& clean) {
  std::vector<Runner> all;
  for (const auto& [word, device, threads] : cpu_places())
    for (const Backend* b : backends()) {
      Plan plan;
      if (b->only_by_name || !plan_on(*b, clean.problem, device, plan).ok()) continue;
      const std::string at = join(b->name, ": ", name(clean.problem), " on ", word);
      all.push_back({plan, at, run(plan, clean, at)});
    }
  EXPECT_GT(all.size(), 0u) << name(clean.problem);
  return all;
}

// Puts bad values into rows of an input: one row, one element of one, or an element of every third row.
void spoil(const Tensor& t, int turn, Random& random) {
  constexpr double kBad[] = {NAN, INFINITY, -NAN, -INFINITY};
  const double bad = kBad[turn % 4];
  if (t.extent.batch * t.extent.seq == 0) return;
  const int batch = random.below(t.extent.batch), row = random.below(t.extent.seq), head = random.below(t.extent.head);
  if (turn % 3 == 0)
    for (int d = 0; d < t.extent.dim; ++d) store(t, batch, row, head, d, bad);
  else
    for (int s = turn % 3 == 1 ? row : row % 3; s < (turn % 3 == 1 ? row + 1 : t.extent.seq); s += 3)
      store(t, batch, s, head, random.below(t.extent.dim), bad);
}

struct Count { int kept = 0, changed = 0, leaked = 0, lost = 0; };

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// A row in which nothing changes keeps its bits if `exact`. Where an element changes, the others may be rounded
// otherwise.
Count compare(const Tensor& before, const Tensor& after, const Tensor& clean, const Tensor& got, bool exact) {
  constexpr double kRounding = 0.02;
  Count count;
  for (int b = 0; b < before.extent.batch; ++b)
    for (int s = 0; s < before.extent.seq; ++s)
      for (int h = 0; h < before.extent.head; ++h) {
        bool whole = exact;
        const auto kept = [&](int d) { return same(load(before, b, s, h, d), load(after, b, s, h, d)); };
        for (int d = 0; d < before.extent.dim; ++d) whole &= kept(d);
        for (int d = 0; d < before.extent.dim; ++d) {
          const double x = load(clean, b, s, h, d), y = load(got, b, s, h, d);
          const bool near = std::fabs(x - y) <= kRounding * (1 + std::fabs(x));
          kept(d) ? ++count.kept : ++count.changed;
          if (kept(d)) count.leaked += !same(x, y) && !(near && !whole);
          else count.lost += std::isnan(load(after, b, s, h, d)) && !std::isnan(y);
        }
      }
  return count;
}

TEST(HiddenValues, reach_nothing_that_does_not_depend_on_them) {
  int kept = 0, changed = 0;
  for (const char* line : kLines) {
    std::vector<Case> cases{case_of(line)};
    if (cases[0].problem.pass == Pass::backward) cases.push_back(cases[0]);
    if (cases.size() > 1) cases[1].problem = forward_of(cases[0].problem), cases[1].variation.d_lse = false;
    for (const Case& c : cases) {
      World clean(c.problem, c.variation);
      const Outputs before = golden(clean);
      const std::vector<Runner> runners = runners_of(clean);
      Random random{7};
      for (const Role role : {Role::k, Role::v, Role::q, Role::d_out})
        for (int turn = 0; turn < 5 && clean.args.given(role); ++turn) {
          World world(c.problem, c.variation);
          spoil(world.args[role], turn, random);
          const Outputs after = golden(world);
          for (const Runner& r : runners) {
            const Outputs got = run(r.plan, world, r.at);
            for (const Role result : got.roles) {
              // A value of v does not enter dv, but changes how the rows that see it are computed. Infinities (odd
              // turns) may leave a row without weights, with gradients of exactly 0. Selected attention sums otherwise.
              const bool nan = turn % 2 == 0, of_lists = !word(c.problem.variant).empty();
              const bool exact = !of_lists && (nan ? role != Role::v || result != Role::dv : role == Role::d_out);
              const Count n = compare(before.args[result], after.args[result], r.clean.args[result], got.args[result],
                                      exact);
              kept += n.kept, changed += n.changed;
              EXPECT_EQ(n.leaked, 0) << name(role) << " reached " << name(result) << " (" << n.kept
                                     << " should be as before), turn " << turn << ", " << r.at;
              EXPECT_EQ(n.lost, 0) << "a NaN of " << name(role) << " is not in " << name(result) << ", turn " << turn
                                   << ", " << r.at;
            }
          }
        }
    }
  }
  EXPECT_GT(kept, 100000);
  EXPECT_GT(changed, 100000);
}

}  // namespace
}  // namespace attune
