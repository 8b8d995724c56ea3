// SPDX-License-Identifier: Apache-2.0
// Numerical stress for attention and its variants, on the CPU and on a GPU if there is one: values of any magnitude,
// zeros, lengths next to tile boundaries, permuted sequences, a thousand runs.
#include "core/dtypes.h"
#include "tests/runs.h"

namespace attune {
namespace {

constexpr std::string_view kKinds[] = {
    "causal", "causal : nsa d=4 gate=softmax l=8 n=4 phi=mean s=8 w=20", "causal : selected n=4 s=8",
    "causal : dilated rates=1,2,3 segments=8,16,40", "full : dilated mode=headgroup rates=1,2 segments=8,16"};

std::string line_of(std::string_view pass, std::string_view dtype, int batch, int len, std::string_view kind) {
  return join(pass, " ", dtype, " b", batch, " h4/2 q", len, " k", len, " d16 ", kind);
}

template <class F>
void each_input(const World& w, F f) {
  for (int n = 0; n < int(Role::count); ++n)
    if (const Tensor& t = w.args[Role(n)]; t.data && is_f32_or_half(t.dtype)) f(t);
}

// An output is a weighted mean of values, so it never exceeds the largest of them.
TEST(Numerics, values_of_any_size_stay_within_the_values) {
  for (const Device& device : devices())
    for (const std::string_view kind : kKinds)
      for (const int exponent : {-4, -2, 0, 2, 4}) {
        SCOPED_TRACE(join(device.name, " ", kind, " x1e", exponent));
        const std::string size = exponent ? join(" | x1e", exponent) : "";
        const Ran f(line_of("forward", "f32", 2, 65, kind) + size, device);
        double most = 0, largest = 0;
        for (const Role r : {Role::v, variant_tensor(1), variant_tensor(3)})
          if (const Tensor& t = f.world->args[r]; t.data && is_f32_or_half(t.dtype))
            each(t, [&](int b, int s, int h, int d) { most = std::fmax(most, std::fabs(load(t, b, s, h, d))); });
        bool finite = true;
        each(f.got.args[Role::out], [&](int b, int s, int h, int d) {
          const double x = std::fabs(f.at(Role::out, b, s, h, d));
          finite &= std::isfinite(x), largest = std::fmax(largest, x);
        });
        EXPECT_TRUE(finite);
        EXPECT_LE(largest, 1.0001 * most);
        EXPECT_GT(largest, 0.1 * most);
        const Ran b(line_of("backward", "f32", 2, 65, kind) + size, device);
        for (const Role r : b.got.roles)
          each(b.got.args[r], [&](int x, int s, int h, int d) { finite &= std::isfinite(b.at(r, x, s, h, d)); });
        EXPECT_TRUE(finite) << "a gradient";
      }
}

TEST(Numerics, zeros_give_zeros) {
  for (const Device& device : devices())
    for (const std::string_view kind : kKinds) {
      const Ran r(line_of("forward", "bf16", 2, 65, kind), device, [](World& w) {
        each_input(w, [](const Tensor& t) { set(t, [](int, int, int, int) { return 0; }); });
      });
      each(r.got.args[Role::out],
           [&](int b, int s, int h, int d) { ASSERT_EQ(r.at(Role::out, b, s, h, d), 0) << kind; });
    }
}

// The planner's choice agrees with the reference.
void expect_right(std::string_view line, const Device& device) {
  Trial trial(case_of(line));
  ASSERT_TRUE(trial.prepare().ok());
  Plan plan;
  ASSERT_EQ((Planner{.device = device}.plan(trial.world.problem, plan).message), "");
  const Outcome o = trial.run(*plan.backend, device);
  EXPECT_NE(o.verdict, Verdict::fail) << line << ": " << o.why;
  EXPECT_EQ(o.unfit, "");
}

TEST(Numerics, lengths_beside_the_edges_of_tiles) {
  for (const Device& device : devices())
    for (const std::string_view kind : kKinds)
      for (const std::string_view pass : {"forward", "backward"})
        for (const std::string_view dtype : {"f32", "bf16"})
          for (const int len : {1, 31, 32, 33, 65})
            expect_right(line_of(pass, dtype, 2, len, kind), device);
}

TEST(Numerics, every_head_dim_and_short_length_of_plain_attention) {
  for (const Device& device : devices())
    for (const std::string_view dtype : {"f16", "bf16"})
      for (const std::string_view mask : {"causal", "window0,0"})
        for (const int dim : {64, 96, 128, 192, 256})
          for (const int len : {1, 8, 16, 32, 96, 128})
            expect_right(join("forward ", dtype, " b1 h2/1 q", len, " k", len, " d", dim, " ", mask), device);
}

TEST(Numerics, sequences_change_places_with_their_results) {
  for (const Device& device : devices())
    for (const std::string_view kind : kKinds) {
      const std::string line = line_of("forward", "f32", 3, 65, kind);
      const Ran first(line, device);
      const Ran turned(line, device, [&](World& w) {
        for (int n = 0; n < int(Role::count); ++n)
          if (const Tensor &to = w.args[Role(n)], &from = first.world->args[Role(n)]; to.data && to.extent.batch == 3)
            set(to, [&](int b, int s, int h, int d) { return load(from, (b + 1) % 3, s, h, d); });
      });
      for (const Role r : {Role::out, Role::lse})
        if (first.got.args.given(r))
          each(first.got.args[r], [&](int b, int s, int h, int d) {
            const double x = first.at(r, (b + 1) % 3, s, h, d), y = turned.at(r, b, s, h, d);
            ASSERT_TRUE(x == y || std::fabs(x - y) < 1e-5) << kind << ", row " << s << ": " << x << " " << y;
          });
    }
}

TEST(Numerics, a_thousand_runs_give_the_same_bits) {
  for (const Device& device : devices())
    for (const std::string_view kind : kKinds)
      for (const std::string_view pass : {"forward", "backward"}) {
        const size_t colon = std::min(kind.find(" : "), kind.size());
        const std::string line =
            line_of(pass, "bf16", 1, 40, join(kind.substr(0, colon), " repro=run", kind.substr(colon)));
        Ran first(line, device);
        for (int n = 1; n < 1000; ++n) {
          const Outputs before = std::move(first.got);
          first.run(device);
          for (const Role r : before.roles) ASSERT_EQ(first.got.of(r).memory, before.of(r).memory) << line << " " << n;
        }
      }
}

}  // namespace
}  // namespace attune
