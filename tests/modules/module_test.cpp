// SPDX-License-Identifier: Apache-2.0
// Modules compared with their formulas in double, forward and backward; and guarantees beyond the numbers.
#include "tests/modules/plain.h"
#include "tests/modules/world.h"

namespace attune {
namespace {

using plain::Parameters;
using plain::Shape;
using Formula = std::function<plain::Vector(const plain::Vector& x, const plain::Vector& memory, const Parameters&)>;

plain::Vector doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

void compare(std::string_view line, const Formula& formula) {
  SCOPED_TRACE(line);
  const auto module = made(line);
  ASSERT_TRUE(module);
  disturb(*module);
  ModuleWorld w(*module);
  ASSERT_EQ(w.both().message, "");
  Parameters p;
  for (const Parameter& one : module->graph().parameters) p[one.name] = doubles(w.parameter(one));
  const plain::Vector x = doubles(w.x), memory = doubles(w.memory);
  const plain::Vector want = formula(x, memory, p);
  ASSERT_EQ(want.size(), w.out.size());
  for (size_t n = 0; n < want.size(); ++n) ASSERT_NEAR(w.out[n], want[n], 2e-5 * (1 + std::abs(want[n]))) << n;

  // The slope of the loss along a random direction, from the formula in double and from the gradient.
  const auto slope = [&](plain::Vector* at, const std::vector<float>& along, const plain::Vector& at_x,
                         const plain::Vector& at_memory) {
    constexpr double kStep = 1e-5;
    double loss[2];
    const plain::Vector before = *at;
    for (const int side : {0, 1}) {
      for (size_t n = 0; n < at->size(); ++n) (*at)[n] = before[n] + (side ? kStep : -kStep) * along[n];
      const plain::Vector y = formula(at_x, at_memory, p);
      loss[side] = 0;
      for (size_t n = 0; n < y.size(); ++n) loss[side] += y[n] * w.d_out[n];
    }
    *at = before;
    return (loss[1] - loss[0]) / (2 * kStep);
  };
  const auto agree = [&](double want_slope, const std::vector<float>& gradient, const std::vector<float>& along,
                         const std::string& of) {
    const double size = std::sqrt(dot(gradient, gradient) * dot(along, along) / double(along.size()));
    EXPECT_NEAR(dot(gradient, along), want_slope, 1e-4 * (size + 0.2))
        << of;  // the gradient of a key bias is rounding only
  };
  unsigned seed = 500;
  for (const Parameter& one : module->graph().parameters) {
    const std::vector<float> along = randoms(size_t(one.count()), ++seed);
    agree(slope(&p[one.name], along, x, memory), w.gradient(one), along, one.name);
  }
  plain::Vector moving_x = x, moving_memory = memory;
  const std::vector<float> of_x = randoms(x.size(), 7), of_memory = randoms(memory.size(), 8);
  agree(slope(&moving_x, of_x, moving_x, memory), w.dx, of_x, "x");
  if (!memory.empty()) agree(slope(&moving_memory, of_memory, x, moving_memory), w.d_memory, of_memory, "memory");
}

TEST(Module, multihead_is_its_formula) {
  const Shape s{.batch = 2, .len = 9, .embed = 24, .heads = 4, .heads_kv = 2, .dim = 6, .dim_v = 6, .causal = true};
  const auto with = [](Shape shape) {
    return [shape](const plain::Vector& x, const plain::Vector& memory, const Parameters& p) {
      return plain::multihead(x, memory.empty() ? nullptr : &memory, p, shape, "", shape.norm, shape.causal,
                              "out_proj");
    };
  };
  Shape t = s;
  compare("multihead f32 b2 s9 e24 h4/2 | causal", with(t));
  t.norm = true, t.pairs = true;
  compare("multihead f32 b2 s9 e24 h4/2 norm=1 rope=pairs | causal", with(t));
  t.pairs = false, t.half = true, t.norm = false, t.theta = 500, t.dim_v = 10;
  compare("multihead f32 b2 s9 e24 h4/2 rope=half theta=500 dim_v=10 bias=0 | causal", with(t));
  t = s, t.memory = 13, t.causal = false;
  compare("multihead f32 b2 s9 e24 h4/2 memory=13", with(t));
  t.half = true;  // rotates nothing: memory has no positions in the sequence
  compare("multihead f32 b2 s9 e24 h4/2 memory=13 rope=half", with(t));
}

TEST(Module, feed_forward_is_its_formula) {
  for (const char* act : {"gelu", "relu", "silu"}) {
    const Shape s{
        .batch = 2, .len = 5, .embed = 12, .heads = 1, .heads_kv = 1, .dim = 1, .dim_v = 1, .ffn = 20, .act = act};
    compare(join("feed_forward f32 b2 s5 e12 ffn=20 act=", act),
            [&](const plain::Vector& x, const plain::Vector&, const Parameters& p) {
              return plain::feed_forward(x, p, s, "");
            });
  }
}

TEST(Module, longnet_layers_are_their_formulas) {
  const Shape s{.batch = 2,
                .len = 7,
                .embed = 16,
                .heads = 4,
                .heads_kv = 4,
                .dim = 4,
                .dim_v = 4,
                .memory = 11,
                .ffn = 24,
                .causal = true,
                .norm = true};
  compare("longnet_encoder f32 b2 s7 e16 h4 ffn=24 | causal",
          [&](const plain::Vector& x, const plain::Vector&, const Parameters& p) {
            return plain::longnet(x, nullptr, p, s);
          });
  compare(
      "longnet_decoder f32 b2 s7 e16 h4 ffn=24 memory=11 | causal",
      [&](const plain::Vector& x, const plain::Vector& m, const Parameters& p) { return plain::longnet(x, &m, p, s); });
}

TEST(Module, llama_is_its_formula) {
  const Shape s{.batch = 2, .len = 11, .embed = 32, .heads = 4, .heads_kv = 2, .dim = 8, .dim_v = 8, .ffn = 40,
                .causal = true, .half = true};
  compare("llama f32 b2 s11 e32 h4/2 ffn=40",
          [&](const plain::Vector& x, const plain::Vector&, const Parameters& p) { return plain::llama(x, p, s); });
}

TEST(Module, a_forward_without_a_tape_is_the_same) {
  for (const char* line : {"llama f32 b2 s33 e64 h4/2", "longnet_decoder f32 b1 s20 e32 h4 memory=9 | causal"}) {
    const auto module = made(line);
    ModuleWorld w(*module);
    ASSERT_EQ(w.forward().message, "");
    const std::vector<float> kept = w.out;
    ASSERT_EQ(w.forward(false).message, "");
    EXPECT_EQ(w.out, kept) << line;
    EXPECT_LT(module->workspace_bytes(Pass::forward, false) - module->workspace_bytes(Pass::forward, true),
              module->graph().tape_bytes) << "values that are not needed any more share memory";
  }
}

TEST(Module, parameter_gradients_are_overwritten_or_added_to) {
  for (const char* line : {"longnet_encoder f32 b1 s6 e16 h2 | causal", "multihead f32 b1 s12 e16 h2 | causal sink",
                           "multihead f32 b1 s24 e16 h2 | causal : nsa d=2 gate=softmax l=4 n=4 phi=mlp s=4 w=4"}) {
    SCOPED_TRACE(line);
    const auto module = made(line);
    ModuleWorld w(*module);
    ASSERT_EQ(w.both().message, "");
    std::vector<std::vector<float>> once;
    for (const Parameter& p : module->graph().parameters) once.push_back(w.gradient(p));
    ASSERT_EQ(w.backward().message, "");
    for (size_t n = 0; n < once.size(); ++n) EXPECT_EQ(w.gradient(module->graph().parameters[n]), once[n]);
    ASSERT_EQ(w.backward(true).message, "");
    for (size_t n = 0; n < once.size(); ++n) {
      const std::vector<float> twice = w.gradient(module->graph().parameters[n]);
      for (size_t i = 0; i < twice.size(); ++i)
        ASSERT_NEAR(twice[i], 2 * once[n][i], 1e-4 + 1e-5 * std::abs(once[n][i])) << module->graph().parameters[n].name;
    }
  }
}

TEST(Module, a_gradient_of_the_input_that_nobody_wants_changes_no_other) {
  const auto module = made("llama f32 b1 s8 e32 h4");
  ModuleWorld w(*module);
  ASSERT_EQ(w.both().message, "");
  const std::vector<float> first = w.gradient(module->graph().parameters[0]);
  ModuleCall c = w.call();
  c.d_out = w.tensor(w.d_out, 8);
  ASSERT_EQ(module->backward(c).message, "");
  EXPECT_EQ(w.gradient(module->graph().parameters[0]), first);
}

// A call writes its outputs, the tape, the workspace and, in a backward, the gradients; none of them may overlap.
TEST(Module, what_a_call_writes_shares_no_memory) {
  const auto module = made("longnet_decoder f32 b1 s4 e16 h2 memory=3 | causal");
  ModuleWorld w(*module);
  w.workspace.resize(w.workspace.size() + w.tape.size());  // space for a tape that overlaps nothing else
  ASSERT_LT(module->graph().tape_bytes, module->graph().gradient_bytes);
  ASSERT_EQ(w.both().message, "");
  std::byte* gradients = nullptr;
  ASSERT_EQ(module->gradients(gradients).message, "");
  auto* const parameters = static_cast<std::byte*>(module->data(module->graph().parameters[0]));
  std::byte *const tape = ModuleWorld::aligned(w.tape), *const workspace = ModuleWorld::aligned(w.workspace);
  const std::vector<float> first = w.parameter(module->graph().parameters[0]);
  const std::pair<std::byte*, std::string> places[] = {
      {parameters, "parameters"}, {gradients, "gradients"}, {tape, "tape"}, {workspace, "workspace"}};
  const auto backward = [&] {
    ModuleCall c = w.call();
    c.d_out = w.tensor(w.d_out, 4), c.dx = w.tensor(w.dx, 4), c.d_memory = w.tensor(w.d_memory, 3);
    return c;
  };
  for (const auto& [place, name] : places) {
    ModuleCall forward = w.call(), of_x = backward(), of_memory = backward();
    forward.out.data = place, of_x.dx.data = place, of_memory.d_memory.data = place + 16;
    EXPECT_EQ(module->forward(forward).message, "module: out shares memory with the " + name);
    EXPECT_EQ(module->backward(of_x).message, "module: dx shares memory with the " + name);
    EXPECT_EQ(module->backward(of_memory).message, "module: d_memory shares memory with the " + name);
    // Inputs may overlap other memory that is only read.
    ModuleCall reads = w.call(), back = backward();
    reads.x.data = back.d_out.data = place;
    const bool written = name == "tape" || name == "workspace";
    EXPECT_EQ(module->forward(reads).message, written ? "module: x shares memory with the " + name : "");
    EXPECT_EQ(module->backward(back).message,
              written || name == "gradients" ? "module: d_out shares memory with the " + name : "");
  }
  ModuleCall both = w.call(), seed = w.call(), back = backward();
  both.tape = both.workspace;
  EXPECT_EQ(module->forward(both).message, "module: workspace shares memory with the tape");
  back.tape = gradients;
  EXPECT_EQ(module->backward(back).message, "module: tape shares memory with the gradients");
  seed.seed = {.data = workspace, .dtype = DType::i64, .extent = {1, 1, 1, 2}};
  EXPECT_EQ(module->forward(seed).message, "module: seed shares memory with the workspace");
  seed.seed.data = w.out.data();
  EXPECT_EQ(module->forward(seed).message, "module: out shares memory with seed");
  EXPECT_EQ(w.parameter(module->graph().parameters[0]), first);
}

TEST(Module, dropout_is_the_same_in_both_passes_and_none_without_a_seed) {
  const auto module = made("feed_forward f32 b1 s40 e16 ffn=64 dropout=0.5");
  ModuleWorld w(*module);
  ASSERT_EQ(w.forward().message, "");
  const std::vector<float> kept = w.out;
  w.drops = true;
  ASSERT_EQ(w.forward().message, "");
  EXPECT_NE(w.out, kept);
  ASSERT_EQ(w.backward().message, "");
  // Along a direction of x, with the same elements dropped.
  const std::vector<float> along = randoms(w.x.size(), 9), dx = w.dx, x = w.x;
  constexpr float kStep = 1.f / 128;
  double loss[2];
  for (const int side : {0, 1}) {
    for (size_t n = 0; n < x.size(); ++n) w.x[n] = x[n] + (side ? kStep : -kStep) * along[n];
    ASSERT_EQ(w.forward().message, "");
    loss[side] = w.loss();
  }
  const double slope = (loss[1] - loss[0]) / (2 * kStep);
  EXPECT_NEAR(dot(dx, along), slope, 0.02 * std::abs(slope) + 0.02);
}

TEST(Module, begins_the_same_by_its_seed_and_otherwise_by_another) {
  const auto a = made("llama f32 b1 s4 e32 h4 seed=5"), b = made("llama f32 b2 s8 e32 h4 seed=5");
  const auto c = made("llama f32 b1 s4 e32 h4 seed=6");
  const ModuleWorld of_a(*a), of_b(*b), of_c(*c);
  const Parameter& p = *a->find("self_attn.v_proj.weight");
  const std::vector<float> first = of_a.parameter(p);
  EXPECT_EQ(first, of_b.parameter(*b->find(p.name)));
  EXPECT_NE(first, of_c.parameter(*c->find(p.name)));
  const double deviation = std::sqrt(dot(first, first) / double(first.size()));
  EXPECT_NEAR(deviation, std::sqrt(2. / (32 + 32)), 0.01) << "xavier";
  for (size_t n = 1; n < first.size(); ++n) ASSERT_NE(first[n], first[n - 1]);
}

TEST(Module, magneto_gains_are_on_v_and_out_and_not_on_q_and_k) {
  EXPECT_NEAR(magneto_gain(false, 12, 6), std::sqrt(std::log(18.) * std::log(24.) / 3), 1e-12);
  EXPECT_NEAR(magneto_gain(true, 12, 6), std::sqrt(std::log(18.)), 1e-12);
  EXPECT_NEAR(magneto_gain(false, 12, 0), std::sqrt(std::log(24.)), 1e-12);
  EXPECT_EQ(magneto_gain(true, 0, 0), 1);
  const auto module = made("multihead f32 b1 s2 e128 h4 encoder_layers=12 decoder_layers=6 | full");
  const ModuleWorld w(*module);
  const auto deviation = [&](const char* name) {
    const std::vector<float> x = w.parameter(*module->find(name));
    return std::sqrt(dot(x, x) / double(x.size())) / std::sqrt(2. / 256);
  };
  const double gain = magneto_gain(false, 12, 6);
  EXPECT_NEAR(deviation("q_proj.weight"), 1, 0.02);
  EXPECT_NEAR(deviation("k_proj.weight"), 1, 0.02);
  EXPECT_NEAR(deviation("v_proj.weight"), gain, 0.04);
  EXPECT_NEAR(deviation("out_proj.weight"), gain, 0.04);
}

TEST(Module, shares_the_parameters_of_another_shape) {
  const auto a = made("llama f32 b1 s4 e32 h4 seed=5");
  const auto b = made("llama f32 b1 s7 e32 h4 seed=9", a.get());
  EXPECT_EQ(a->data(*a->find("mlp.up_proj.weight")), b->data(*b->find("mlp.up_proj.weight")));
  Settings other;
  std::unique_ptr<Module> none;
  ASSERT_EQ(read_settings("llama f32 b1 s7 e32 h2", other).message, "");
  EXPECT_EQ(Module::make(other, this_cpu(), a.get(), none).message, "");  // heads do not change a shape
  ASSERT_EQ(read_settings("llama f32 b1 s7 e32 h4 ffn=512", other).message, "");
  EXPECT_EQ(Module::make(other, this_cpu(), a.get(), none).message,
            "module: 'llama f32 b1 s7 e32 h4 ffn=512 | causal' and 'llama f32 b1 s4 e32 h4 seed=5 | causal' differ in "
            "parameters or device, and cannot share parameters");
}

TEST(Module, narrow_dtypes_stay_near_f32) {
  for (const char* dtype : {"bf16", "f16"}) {
    const auto wide = made("llama f32 b1 s16 e64 h4/2"), narrow = made(join("llama ", dtype, " b1 s16 e64 h4/2"));
    ModuleWorld w(*wide);
    ASSERT_EQ(w.forward().message, "");
    const DType t = narrow->settings().dtype;
    std::vector<uint16_t> x(w.x.size()), out(x.size());
    for (size_t n = 0; n < x.size(); ++n) x[n] = t == DType::bf16 ? Bf16(w.x[n]).bits : F16(w.x[n]).bits;
    ModuleWorld room(*narrow);
    ModuleCall c = room.call();
    c.x.data = x.data(), c.out.data = out.data(), c.x.dtype = c.out.dtype = t;
    ASSERT_EQ(narrow->forward(c).message, "");
    double error = 0, size = 0;
    for (size_t n = 0; n < out.size(); ++n) {
      Bf16 b;
      F16 f;
      b.bits = f.bits = out[n];
      const double got = t == DType::bf16 ? float(b) : float(f);
      error += (got - w.out[n]) * (got - w.out[n]), size += double(w.out[n]) * w.out[n];
    }
    EXPECT_LT(std::sqrt(error / size), t == DType::bf16 ? 0.02 : 0.003) << dtype;
  }
}

}  // namespace
}  // namespace attune
