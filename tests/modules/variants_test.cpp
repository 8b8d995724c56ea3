// SPDX-License-Identifier: Apache-2.0
// Modules that contain variants: every parameter's gradient equals the slope of the loss. Conformance cases check the
// variants themselves; these tests check that modules pass them the right inputs.
#include <algorithm>

#include "tests/modules/world.h"

namespace attune {
namespace {

void write(const ModuleWorld& w, const Parameter* p, const std::vector<float>& x) {
  if (!p) return;
  EXPECT_EQ(w.module.write(*p, x.data()).message, "");
}

double length(const std::vector<float>& x) { return std::sqrt(dot(x, x)); }

// The slope along a direction of one parameter or input, from two forwards.
double slope(ModuleWorld& w, std::vector<float>& at, const std::vector<float>& along, const Parameter* p, float step) {
  const std::vector<float> before = at;
  double loss[2];
  for (const int side : {0, 1}) {
    for (size_t n = 0; n < at.size(); ++n) at[n] = before[n] + (side ? step : -step) * along[n];
    write(w, p, at);
    EXPECT_EQ(w.forward().message, "");
    loss[side] = w.loss();
  }
  at = before;
  write(w, p, at);
  return (loss[1] - loss[0]) / (2 * step);
}

// The effect of rounding on a slope: elements of out have independent errors of about 16 f32 roundings, so their
// squares add up in the loss.
double noise(const ModuleWorld& w, float step) {
  double squares = 0;
  for (size_t n = 0; n < w.out.size(); ++n) squares += std::pow(double(w.out[n]) * double(w.d_out[n]), 2);
  return 16 * 0x1p-24 * std::sqrt(squares) / step;
}

// Combines the gradient, where the slope is steepest, with a random direction, which exposes missing components.
std::vector<float> direction(const std::vector<float>& gradient, unsigned seed) {
  std::vector<float> along = randoms(gradient.size(), seed);
  const double side = dot(along, gradient) < 0 ? -1 : 1, random = side / length(along), steepest = 1 / length(gradient);
  for (size_t n = 0; n < along.size(); ++n) along[n] = float(random * along[n] + steepest * gradient[n]);
  return along;
}

// Parameters in `blind` do not affect the loss: their slope is noise and their gradient is rounding, within 16 f32
// roundings of all gradients together. Any other gradient is a thousand times larger and agrees with its slope.
void check_slopes(std::string_view line, std::initializer_list<std::string_view> blind = {}) {
  constexpr float kStep = 1.f / 64;
  SCOPED_TRACE(line);
  const auto module = made(line);
  ASSERT_TRUE(module);
  disturb(*module);
  ModuleWorld w(*module);
  ASSERT_EQ(w.forward().message, "");
  for (const float y : w.out) ASSERT_TRUE(std::isfinite(y));
  ASSERT_EQ(w.backward().message, "");
  const double rounding = noise(w, kStep);
  unsigned seed = 40;
  const auto agree = [&](const std::vector<float>& gradient, std::vector<float>& at, const Parameter* p) {
    const std::vector<float> along = direction(gradient, ++seed);
    EXPECT_NEAR(dot(gradient, along), slope(w, at, along, p, kStep), 2e-3 * length(gradient) + rounding)
        << (p ? p->name : "x");
  };
  const std::vector<float> dx = w.dx;
  std::vector<std::vector<float>> gradients;
  double squares = 0;
  for (const Parameter& p : module->graph().parameters) {
    gradients.push_back(w.gradient(p));
    squares += dot(gradients.back(), gradients.back());
  }
  const double nothing = 16 * 0x1p-24 * std::sqrt(squares);
  agree(dx, w.x, nullptr);
  size_t unseen = 0;
  for (size_t n = 0; n < gradients.size(); ++n) {
    const Parameter& p = module->graph().parameters[n];
    std::vector<float> at = w.parameter(p);
    if (std::find(blind.begin(), blind.end(), p.name) == blind.end()) {
      EXPECT_GT(length(gradients[n]), 1000 * nothing) << p.name;
      agree(gradients[n], at, &p);
      continue;
    }
    ++unseen;
    const std::vector<float> along = randoms(at.size(), ++seed, 1 / std::sqrt(float(at.size())));
    EXPECT_LE(length(gradients[n]), nothing) << p.name;
    EXPECT_NEAR(slope(w, at, along, &p, kStep), 0, rounding) << p.name;
  }
  EXPECT_EQ(unseen, blind.size());
}

TEST(Variants, dilated_inside_a_module) {
  check_slopes("multihead f32 b2 s24 e32 h4/2 norm=1 rope=pairs | causal : dilated mode=longnet norm=lse rates=1,2 "
               "segments=8,16");
  // A softmax is invariant to a constant in all logits, such as a key bias without rotary embedding.
  check_slopes("longnet_encoder f32 b1 s24 e32 h4 | full : dilated mode=headgroup norm=divide rates=1,2 segments=8,16",
               {"self_attn.k_proj.bias"});
}

TEST(Variants, native_sparse_attention_inside_a_module) {
  for (const std::string gate : {"sigmoid", "softmax"}) {
    const auto line = [&](const char* phi) {
      return join("multihead f32 b1 s40 e32 h4/2 rope=pairs | causal : nsa d=4 gate=", gate, " l=8 n=8 phi=", phi,
                  " s=8 w=12");
    };
    check_slopes(line("mean"));
    check_slopes(line("conv"));
    check_slopes(line("mlp"), {"phi_k.b2"});  // a constant in every compressed key
  }
  check_slopes("llama f32 b1 s40 e32 h4/2 | causal : nsa d=4 gate=sigmoid l=8 n=8 phi=mean s=8 w=0");
}

// Includes rotary, projections and gates: the gate passes one branch, and every branch sees all tokens.
TEST(Variants, a_branch_that_sees_everything_is_attention_with_rotary) {
  const auto plain = made("multihead f32 b2 s40 e32 h4/2 rope=pairs | causal");
  disturb(*plain);
  ModuleWorld want(*plain);
  ASSERT_EQ(want.forward().message, "");
  for (const std::string branch : {"compress", "select", "window"}) {
    const auto nsa = made("multihead f32 b2 s40 e32 h4/2 rope=pairs | causal : nsa d=1 gate=softmax l=1 n=40 phi=mean "
                          "s=1 w=40");
    disturb(*nsa);
    ModuleWorld got(*nsa);
    int copied = 0;
    for (const Parameter& p : nsa->graph().parameters) {
      std::string name = p.name;
      if (const size_t at = name.find("_" + branch); at != std::string::npos) name.erase(at, branch.size() + 1);
      for (const Parameter& from : plain->graph().parameters)
        if (from.name == name) write(got, &p, want.parameter(from)), ++copied;
      if (name == "gate.fc2.weight") write(got, &p, std::vector<float>(size_t(p.count()), 0.f));
      if (name == "gate.fc2.bias")
        write(got, &p, {branch == "compress" ? 90.f : 0, branch == "select" ? 90.f : 0, branch == "window" ? 90.f : 0});
    }
    EXPECT_EQ(copied, int(plain->graph().parameters.size()));
    ASSERT_EQ(got.forward().message, "");
    for (size_t n = 0; n < want.out.size(); ++n) ASSERT_NEAR(got.out[n], want.out[n], 1e-5) << branch;
  }
}

TEST(Variants, block_lists_inside_a_module) {
  check_slopes("multihead f32 b2 s40 e32 h4/2 | causal | 8x8 local_window window=16", {"k_proj.bias"});
  check_slopes("llama f32 b1 s37 e32 h4 | causal | 8x16 random density=0.4 seed=3");
}

TEST(Variants, adaptive_blocks_inside_a_module) {
  // All blocks are kept, because the choice is not differentiable. ReLU is not smooth at 0 either, but with so few
  // hidden units none is within a step of it. A constant that the scorer adds to all scores cancels in their softmax.
  check_slopes("multihead f32 b1 s24 e32 h4/2 | causal : adaptive block=8 density=1 hidden=4", {"scorer.b2"});
  check_slopes("multihead f32 b1 s20 e32 h2 | full : adaptive block=8 density=1 hidden=3 per_head=1", {"scorer.b2"});
  const auto noisy = made("multihead f32 b1 s40 e32 h4 | causal : adaptive block=8 density=0.5 hidden=6 noise=gumbel");
  ModuleWorld w(*noisy);
  EXPECT_EQ(w.both().message, "");
  const std::vector<float> without = w.out;
  const auto silent = made("multihead f32 b1 s40 e32 h4 | causal : adaptive block=8 density=0.5 hidden=6");
  ModuleWorld s(*silent);
  EXPECT_EQ(s.both().message, "");
  EXPECT_EQ(without, s.out) << "without a seed there is noise";
  EXPECT_EQ(w.dx, s.dx);
  w.drops = true;
  EXPECT_EQ(w.forward().message, "");
  const std::vector<float> first = w.out;
  EXPECT_NE(first, without);
  EXPECT_EQ(w.backward().message, "");
  w.seed[0] = 12;
  EXPECT_EQ(w.forward().message, "");
  EXPECT_NE(w.out, first);
}

TEST(Variants, a_list_of_every_block_changes_nothing) {
  const auto all = made("llama f32 b1 s40 e32 h4"), listed = made("llama f32 b1 s40 e32 h4 | causal | 8x8 dense");
  ModuleWorld a(*all), b(*listed);
  for (ModuleWorld* w : {&a, &b}) {
    ASSERT_EQ(w->both().message, "");
  }
  for (size_t n = 0; n < a.out.size(); ++n) {
    ASSERT_NEAR(a.out[n], b.out[n], 1e-5);
    ASSERT_NEAR(a.dx[n], b.dx[n], 1e-4);
  }
}

TEST(Variants, options_of_attention) {
  check_slopes("multihead f32 b1 s12 e32 h4/2 | causal sink");
  check_slopes("multihead f32 b1 s12 e32 h4 softcap=5 | window4,4 softcap alibi");
}

// Evaluation: a module with dropout and no seed equals one without dropout.
TEST(Variants, attention_drops_nothing_without_a_seed) {
  const std::pair<std::string, std::string> tails[] = {
      {"multihead f32 b1 s24 e32 h4", "causal"},
      {"longnet_decoder f32 b1 s24 e32 h4", "causal"},
      {"multihead f32 b1 s24 e32 h4", "causal : adaptive block=8 density=1 hidden=4"}};
  for (const auto& [kind, tail] : tails) {
    const std::string dropping = "causal dropout" + tail.substr(6);
    SCOPED_TRACE(kind + dropping);
    const auto none = made(kind + " | " + tail), some = made(kind + " dropout=0.5 | " + dropping);
    ASSERT_TRUE(none && some);
    ModuleWorld want(*none), got(*some);
    ASSERT_EQ(want.both().message, "");
    ASSERT_EQ(got.both().message, "");
    for (size_t n = 0; n < want.out.size(); ++n) {
      ASSERT_NEAR(got.out[n], want.out[n], 1e-5);
      ASSERT_NEAR(got.dx[n], want.dx[n], 1e-5);
    }
    got.drops = true;
    const std::vector<float> kept = got.out;
    ASSERT_EQ(got.both().message, "");
    EXPECT_NE(got.out, kept);
  }
}

// The feed-forward of a LongNet layer uses dropout, whether or not its attention does.
TEST(Variants, dropout_of_a_layer_need_not_be_its_attention_s) {
  for (const char* line : {"longnet_encoder f32 b1 s16 e32 h4 dropout=0.3 | causal",
                           "longnet_decoder f32 b1 s16 e32 h4 dropout=0.3 | causal",
                           "longnet_decoder f32 b1 s16 e32 h4 dropout=0.3 | causal dropout"}) {
    SCOPED_TRACE(line);
    const auto module = made(line);
    ASSERT_TRUE(module);
    ModuleWorld w(*module);
    ASSERT_EQ(w.both().message, "");
    const std::vector<float> kept = w.out;
    w.drops = true;
    ASSERT_EQ(w.both().message, "");
    EXPECT_NE(w.out, kept);
  }
  Settings s;
  std::unique_ptr<Module> none;
  ASSERT_EQ(read_settings("multihead f32 b1 s16 e32 h4 dropout=0.3 | causal", s).message, "");
  EXPECT_EQ(Module::make(s, this_cpu(), nullptr, none).message,
            "module: dropout = 0.3 given, but the problem does not have option dropout")
      << "nor has anything else there";
}

TEST(Variants, what_a_module_does_not_make_is_refused) {
  Settings s;
  std::unique_ptr<Module> none;
  ASSERT_EQ(
      read_settings("multihead f32 b1 s40 e32 h4 | causal : nsa d=4 gate=sigmoid l=8 n=8 phi=none s=8 w=0", s).message,
      "");
  EXPECT_EQ(Module::make(s, this_cpu(), nullptr, none).message,
            "module: nsa with only=, phi=none or gate=none is not accepted in a module");
  EXPECT_EQ(read_settings("llama f32 b1 s15 e32 h4 | causal : ring layout=ring ranks=2 tokens=32", s).message,
            "module: s15 is not the size of a shard; the longest of 32 tokens over 2 ranks has 16");
}

}  // namespace
}  // namespace attune
