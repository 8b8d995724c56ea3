// SPDX-License-Identifier: Apache-2.0
// How NaNs propagate to results, and how logits at the bound of core/large_logit.h affect gradients. Covers every
// backend, on the CPU with each instruction set and on a GPU if there is one. cuDNN's kernels are exempt
// (docs/kernels/sm80.md).
#include <cfloat>

#include "core/large_logit.h"
#include "tests/runs.h"
#include "verify/suite.h"

namespace attune {
namespace {

// Calls f(label, outputs) for each backend and device that accepts the world in its current state.
template <class F>
void each_run(const World& world, F f) {
  std::vector<Place> places = cpu_places();
  if (Device gpu; cuda::device(0, gpu).ok()) places.push_back({.word = "cuda:0", .device = gpu});
  int ran = 0;
  for (const auto& [word, device, threads] : places)
    for (const Backend* b : backends()) {
      Plan plan;
      if (b->only_by_name || b->name == std::string_view("vendor_cudnn")) continue;
      if (!plan_on(*b, world.problem, device, plan).ok()) continue;
      const std::string at = join(b->name, ": ", name(world.problem), " on ", word);
      Outputs got = world.outputs(false);
      std::string unfit;
      const bool gpu = device.kind == DeviceKind::cuda;
      ASSERT_EQ((gpu ? run_on_gpu(plan, world, got, unfit) : run_plan(plan, got.args)).message, "") << at;
      if (unfit.empty()) ++ran, f(at, got);
    }
  EXPECT_GT(ran, 0) << name(world.problem);
}

bool finite(const Tensor& t) {
  bool all = true;
  each(t, [&](int b, int s, int h, int d) { all &= std::isfinite(load(t, b, s, h, d)); });
  return all;
}
int nans(const Tensor& t, int first_batch) {
  int count = 0;
  each(t, [&](int b, int s, int h, int d) { count += b >= first_batch && std::isnan(load(t, b, s, h, d)); });
  return count;
}

// Problems with separate code paths: head dims, options, lengths in tensors, deterministic order, lists, f32 gradients.
constexpr const char* kLines[] = {
    "backward bf16 b2 h4/2 q150 k150 d64 causal",
    "backward f16 b2 h2 q80 k200 d64 causal",
    "backward bf16 b2 h2 q80 k200 d64 window40,20 repro=run",
    "backward f16/f16/f16/f32 b2 h2 q80 k200 d64 causal sink",
    "backward f16 b2 h2 q80 k200 d64 causal alibi",
    "backward bf16 b2 h2 q80 k200 d96 causal",
    "backward bf16 b2 h4/2 q150 k150 d128 causal",
    "backward bf16 b2 h2 q80 k1030 d128 full",
    "backward bf16 b1 h8/1 q130 k200 d128 causal",
    "backward f16 b2 h2 q80 k200 d128 window40,20 softcap bias",
    "backward bf16 b2 h2 q80 k200 d128 causal dropout repro=run",
    "backward bf16 b2 h2 q80 k200 d192/128 causal",
    "backward f16 b2 h4/2 q80 k200 d256 causal",
    "backward bf16 b2 h2 q80 k200 d256 causal alibi",
    "backward bf16 b2 h2 q80 k200 d256 window40,20 softcap bias",
    "backward f32 b2 h4/2 q40 k70 d64 causal",
    "backward f32 b2 h2 q40 k70 d130/100 causal alibi",
    "backward f32 b2 h4/2 q40 k70 d64 causal precision=tf32",
    "backward f32 b2 h2 q40 k70 d130/100 causal precision=tf32x3",
    "backward f32 b2 h2 q40 k70 d64 window40,20 softcap bias precision=tf32x3",
    "backward bf16 b2 h2 q40 k64 d64 causal paged16",
    "backward bf16 b2 h2 q150 k150 d64 full blocks64x64x60",
    "backward f16 b2 h2 q150 k150 d128 full blocks128x128x20",
    "backward f32 b2 h2 q150 k150 d64 full blocks64x64x60 block_bias",
    "backward bf16 b2 h16/1 q60 k60 d64 causal : selected n=4 s=16",
    "backward f16 b2 h8/2 q60 k60 d128 causal : selected n=4 s=32",
    "backward f32 b2 h4/2 q40 k40 d16 causal : selected n=4 s=8",
};

// Expects a NaN wherever the reference has one, and none in the other sequence.
void expect_nan_of(Role input, const Problem& p) {
  World world(p, {});
  const Tensor& t = world.args[input];
  // In a paged cache the batch index is a page: use the second page of the first sequence, and ignore the other
  // sequences.
  const bool pages = p.keys == KeySource::paged;
  const int batch = pages && input == Role::k ? world.args.row<const int32_t>(Role::page_table)[1] : 0;
  store(t, batch, t.extent.seq * 2 / 3, 0, 1, input == Role::k ? -NAN : NAN);  // either sign
  if (p.pass == Pass::backward) run_forward(world, world.forward_result());
  Outputs golden = world.outputs(true);
  ASSERT_EQ(find_backend("reference")->run(Plan{.problem = p}, golden.args, {}, nullptr).message, "") << name(p);
  std::vector<Role> wanted{Role::dq, Role::dk, Role::dv};
  if (p.pass == Pass::forward) wanted = {Role::out, Role::lse};
  for (const Role r : wanted) EXPECT_GT(nans(golden.args[r], 0), 0) << name(r) << ", " << name(p);
  each_run(world, [&](const std::string& at, const Outputs& got) {
    for (const Role r : wanted) {
      int lost = 0;
      each(got.args[r], [&](int b, int i, int h, int d) {
        lost += std::isnan(load(golden.args[r], b, i, h, d)) && !std::isnan(load(got.args[r], b, i, h, d));
      });
      EXPECT_EQ(lost, 0) << "a NaN of " << name(input) << " is not in " << name(r) << ", " << at;
      const bool of_pages = pages && (r == Role::dk || r == Role::dv);
      EXPECT_TRUE(of_pages || nans(got.args[r], 1) == 0) << name(r) << ", " << at;
    }
  });
}
TEST(Extremes, a_nan_in_q_is_in_every_result_of_what_sees_it) {
  for (const char* line : kLines)
    for (const Problem& p : {forward_of(problem(line)), problem(line)}) expect_nan_of(Role::q, p);
}
TEST(Extremes, a_nan_in_k_is_in_every_result_of_what_sees_it) {
  for (const char* line : kLines)
    for (const Problem& p : {forward_of(problem(line)), problem(line)}) expect_nan_of(Role::k, p);
}

// Every query sees exactly its own key, so weights are 1 and dv equals d_out. Dot products are exact in every dtype.
// Below the bound, two roundings by 1 may change the weight, so it may be off by up to the next logit above it.
TEST(Extremes, a_row_just_behind_2_to_the_24_is_like_any_other) {
  constexpr double kLogits[] = {1000, 11629060, 11629080, 11629083, 11629088, 11629099, 11629103, 11700000, 16000000};
  constexpr int kCount = std::size(kLogits);
  for (const char* line : {"bf16 b1 h1 q70 k70 d64 window0,0",
                           "f16 b1 h1 q70 k70 d64 window0,0 repro=run",
                           "f16 b1 h1 q70 k70 d64 window0,0 alibi",
                           "bf16 b1 h1 q70 k70 d96 window0,0",
                           "bf16 b1 h1 q70 k70 d128 window0,0",
                           "f16 b1 h1 q70 k70 d128 window0,0 alibi",
                           "f16 b1 h1 q70 k70 d192/128 window0,0",
                           "bf16 b1 h1 q70 k70 d256 window0,0",
                           "bf16 b1 h1 q70 k70 d256 window0,0 alibi",
                           "f32 b1 h1 q70 k70 d8 window0,0",
                           "f32 b1 h1 q70 k70 d64 window0,0 precision=tf32",
                           "f32 b1 h1 q70 k70 d130 window0,0 precision=tf32x3",
                           "f32 b1 h1 q70 k70 d64 window0,0 alibi precision=tf32x3",
                           "bf16 b1 h16/1 q1 k1 d64 causal : selected n=3 s=16",
                           "f16 b1 h16/1 q1 k1 d128 causal : selected n=3 s=32",
                           "f32 b1 h1 q1 k1 d8 causal : selected n=3 s=1"})
    for (int turn = 0; turn < kCount; ++turn) {
      World world(problem(join("backward ", line)), {});
      const auto logit = [&](int row) { return kLogits[(row + turn) % kCount]; };
      const auto digit = [](double x, int n) { return double(int(x) >> 8 * n & 255); };
      set(world.args[Role::q],
          [&](int, int i, int, int d) { return d < 3 ? std::ldexp(digit(logit(i), d), 4 * d) : 0; });
      set(world.args[Role::k], [](int, int, int, int d) { return d < 3 ? std::ldexp(1., 4 * d) : 0; });
      if (world.args.given(variant_tensor(0)))
        // The list holds block 0 only.
        set(world.args[variant_tensor(0)], [](int, int, int, int n) { return n ? -1 : 0; });
      world.args.scale = 1.f;
      run_forward(world, world.forward_result());
      each_run(world, [&](const std::string& at, const Outputs& got) {
        const Tensor &d_out = world.args[Role::d_out], &dv = got.args[Role::dv];
        for (const Role r : got.roles) EXPECT_TRUE(finite(got.args[r])) << name(r) << ", " << at;
        std::string wrong;  // the last mismatch
        each(dv, [&](int b, int i, int h, int d) {
          double most = 0, least = 0, room = 0;  // bounds of the sum over the GQA group
          const double base2 = logit(i) * std::log2(std::exp(1.)), off = base2 - kLargeLogit;
          const bool exact = base2 < 1e4 || off > 2;
          for (int head = 0; head < world.problem.heads_q; ++head) {
            const double x = load(d_out, b, i, head, d), half = exact ? x : x / 2, twice = exact ? x : 2 * x;
            least += std::fmin(half, twice), most += std::fmax(half, twice), room += 0.01 * std::fabs(x);
          }
          const double y = load(dv, b, i, h, d);
          if (!(y >= least - room && y <= most + room)) wrong = join("dv is ", y, " at a logit of ", logit(i));
        });
        EXPECT_EQ(wrong, "") << at;
      });
    }
}

// A large-logit sink takes the whole row: its gradient is that of the row's log-sum-exp.
TEST(Extremes, a_sink_that_is_far_takes_the_row) {
  for (const char* line : {"backward bf16 b2 h2 q70 k90 d64 causal sink | d_lse",
                           "backward f16 b2 h4/2 q70 k90 d128 causal sink | d_lse",
                           "backward bf16 b2 h2 q70 k90 d256 causal sink | d_lse",
                           "backward f32 b2 h2 q40 k90 d64 causal sink | d_lse",
                           "backward f32 b2 h2 q40 k90 d64 causal sink precision=tf32x3 | d_lse"})
    for (const double sink : {0x1p25, 0x1p30, -0x1p3}) {
      const Case c = case_of(line);
      World world(c.problem, c.variation);
      set(world.args[Role::sinks], [&](int, int, int, int) { return sink; });
      run_forward(world, world.forward_result());
      each_run(world, [&](const std::string& at, const Outputs& got) {
        const Tensor& d_lse = world.args[Role::d_lse];
        for (const Role r : got.roles) EXPECT_TRUE(finite(got.args[r])) << at;
        if (sink < 0) return;
        for (int h = 0; h < c.problem.heads_q; ++h) {
          double sum = 0;
          each(d_lse, [&](int b, int s, int of, int d) { sum += of == h ? load(d_lse, b, s, of, d) : 0; });
          EXPECT_NEAR(load(got.args[Role::d_sinks], 0, 0, h, 0), sum, 1e-3) << at;
        }
        double most = 0;
        const Tensor& dv = got.args[Role::dv];
        each(dv, [&](int b, int s, int h, int d) { most = std::fmax(most, std::fabs(load(dv, b, s, h, d))); });
        EXPECT_EQ(most, 0) << at;
      });
    }
}

// Masks that are added hide keys with the least f32, which overflows in base 2. A row of such keys sees them alike, and
// one of the largest f32 is finite too.
TEST(Extremes, a_mask_of_the_least_f32_hides_no_row) {
  for (const char* line : {"f32 b1 h2 q40 k70 d16 full bias", "bf16 b1 h2 q40 k70 d16 causal bias",
                           "f32 b1 h2 q1 k70 d16 full bias", "f32 b1 h2 q40 k70 d16 full bias dropout",
                           "bf16 b1 h4/2 q40 k70 d64 full alibi bias"})
    for (const double sign : {-1, 1})
      for (const char* const pass : {"forward ", "backward "}) {
        World world(problem(join(pass, line)), {});
        const bool backward = world.problem.pass == Pass::backward;
        const Tensor& bias = world.args[Role::bias];
        const double mask = sign * (bias.dtype == DType::bf16 ? 0x1.FEp127 : double(FLT_MAX));
        if (sign > 0 && bias.dtype == DType::bf16) continue;  // a log-sum-exp of f32 would not name it
        each(bias, [&](int b, int s, int h, int d) { if (s % 3 == 0) store(bias, b, s, h, d, mask); });
        if (backward) run_forward(world, world.forward_result());
        Outputs golden = world.outputs(true);
        ASSERT_EQ(find_backend("reference")->run(Plan{.problem = world.problem}, golden.args, {}, nullptr).message, "");
        each_run(world, [&](const std::string& at, const Outputs& got) {
          if (at.find(" on cuda") != at.npos) return;  // GPU kernels are not held to it
          for (const Role r : got.roles) {
            double off = 0, most = 0;
            each(got.args[r], [&](int b, int s, int h, int d) {
              const double want = load(golden.args[r], b, s, h, d), is = load(got.args[r], b, s, h, d);
              most = std::fmax(most, std::fabs(want)), off = std::fabs(is - want) <= off ? off : std::fabs(is - want);
            });
            EXPECT_LE(off, 0.03 * most) << name(r) << ", " << mask << ", " << at;
          }
        });
      }
}

}  // namespace
}  // namespace attune
