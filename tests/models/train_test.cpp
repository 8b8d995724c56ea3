// SPDX-License-Identifier: Apache-2.0
#include "models/train.h"

#include <cmath>

#include "models/generate.h"
#include "models/ops.h"
#include "tests/models/small.h"

namespace attune::models {
namespace {

std::vector<float> gradients_of(const Model& model) {
  std::vector<float> all;
  for (const ModelParameter& p : model.parameters()) {
    const size_t at = all.size();
    all.resize(at + size_t(p.count()));
    EXPECT_TRUE(model.read_gradient(p, all.data() + at).ok());
  }
  return all;
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double d = 0, norm = 0;
  for (size_t n = 0; n < a.size(); ++n) d += std::pow(double(a[n]) - b[n], 2), norm += std::pow(double(b[n]), 2);
  return std::sqrt(d / norm);
}

double run(Model& model, const TrainSettings& settings, std::vector<float>& gradients) {
  std::unique_ptr<Training> training;
  EXPECT_EQ(Training::make(model, settings, training).message, "");
  double loss = 0;
  for (int twice = 0; twice < 2; ++twice)  // the second time over what the first left
    EXPECT_EQ(training->gradients(random_tokens(model.config().vocab, settings.batch * settings.len, 1, 0), loss)
                  .message, "");
  gradients = gradients_of(model);
  return loss;
}

TEST(Training, a_layer_computed_again_has_the_same_bits) {
  for (const char* family : kSmall) {
    const auto model = small_model(family);
    std::vector<float> kept, again;
    const double loss = run(*model, {.batch = 2, .len = 11}, kept);
    EXPECT_EQ(loss, run(*model, {.batch = 2, .len = 11, .checkpointing = true}, again)) << family;
    EXPECT_EQ(kept, again) << family;
  }
}

TEST(Training, other_attention_agrees) {
  for (const char* family : kSmall) {
    const auto model = small_model(family);
    std::vector<float> fused, standard;
    const double loss = run(*model, {.batch = 2, .len = 11}, fused);
    EXPECT_NEAR(loss, run(*model, {.batch = 2, .len = 11, .attention = {"standard"}}, standard), 1e-5) << family;
    EXPECT_LT(difference(fused, standard), 1e-5) << family;
  }
}

TEST(Training, half_precision_is_near) {
  for (const char* family : kSmall) {
    const auto f32 = small_model(family), bf16 = small_model(family, -1, DType::bf16);
    std::vector<float> exact, rounded;
    const double loss = run(*f32, {.batch = 2, .len = 11}, exact);
    EXPECT_NEAR(loss, run(*bf16, {.batch = 2, .len = 11}, rounded), 0.05 * loss) << family;
    EXPECT_LT(difference(rounded, exact), 0.1) << family;
  }
}

TEST(Training, learns_a_batch_by_heart) {
  for (const char* family : kSmall) {
    const auto model = small_model(family, 4);
    std::unique_ptr<Training> training;
    ASSERT_EQ(Training::make(*model, {.batch = 1, .len = 16}, training).message, "");
    const std::vector<int32_t> text = random_tokens(model->config().vocab, 16, 2, 0);
    double first = 0, loss = 0;
    for (int step = 0; step < 60; ++step) {
      ASSERT_EQ(training->gradients(text, loss).message, "");
      ASSERT_EQ(training->update({.rate = 1e-2f}).message, "");
      if (!step) first = loss;
    }
    EXPECT_NEAR(first, std::log(61), 0.5) << family;
    EXPECT_LT(loss, first / 2) << family;
  }
}

TEST(Training, refuses_wrong_sizes_and_tokens) {
  const auto model = small_model("gpt2");
  std::unique_ptr<Training> training;
  EXPECT_EQ(Training::make(*model, {.batch = 1, .len = 1}, training).message,
            "model: batch 1 and length 1 are not at least 1 and 2");
  EXPECT_EQ(Training::make(*model, {.batch = 1, .len = 273}, training).message,
            join("model: length 273 is over the 272 positions of ", small_folder("gpt2")));
  ASSERT_EQ(Training::make(*model, {.batch = 1, .len = 4}, training).message, "");
  double loss = 0;
  EXPECT_EQ(training->gradients(std::vector<int32_t>{1, 2}, loss).message, "model: 2 tokens given, not 1 x 4");
  EXPECT_EQ(training->gradients(std::vector<int32_t>{1, 2, 3, -1}, loss).message, "model: token -1 is not in 0 ... 60");
}

// Sizes from the plan alone are those of the memory that is taken.
TEST(Training, measures_what_it_takes) {
  for (const char* family : kSmall) {
    const auto model = small_model(family);
    std::unique_ptr<Training> training;
    ASSERT_EQ(Training::make(*model, {.batch = 2, .len = 11}, training).message, "");
    TrainBytes planned;
    ASSERT_EQ(Training::measure(model->config(), DType::f32, model->device(), {}, {.batch = 2, .len = 11}, planned)
                  .message, "");
    EXPECT_EQ(planned.activations, training->bytes().activations) << family;
    EXPECT_EQ(planned.workspace, training->bytes().workspace) << family;
    EXPECT_LE(planned.weights, training->bytes().weights) << family;
  }
}

// Logits far below the cap keep their digits.
TEST(Softcap, is_exact_near_zero) {
  std::vector<float> x;
  for (float one = 1e-6f; one < 300; one *= 1.3f) x.push_back(one), x.push_back(-one);
  const std::vector<float> before = x;
  const Tensor t{.data = x.data(), .dtype = DType::f32, .extent = {1, 1, 1, int32_t(x.size())}};
  ASSERT_TRUE(softcap({.logits = t, .softcap = 30.f}, nullptr).ok());
  for (size_t n = 0; n < x.size(); ++n) {
    const double right = 30 * std::tanh(double(before[n]) / 30);
    EXPECT_NEAR(double(x[n]) / right, 1, 4e-7) << before[n];
  }
}

TEST(AdamW, updates_every_row) {
  float p[6] = {}, g[6] = {1, 1, 1, 1, 1, 1}, m[6] = {}, v[6] = {};
  const auto tensor = [](float* data) {
    return Tensor{.data = data, .dtype = DType::f32, .extent = {1, 2, 1, 3}};
  };
  ASSERT_TRUE(adamw({.parameter = tensor(p), .gradient = tensor(g), .first = tensor(m), .second = tensor(v)},
                    nullptr).ok());
  for (const float one : p) EXPECT_NE(one, 0.f);
}

// Three steps against the definition in double.
TEST(AdamW, is_that_of_its_definition) {
  float p = 0.5f, m = 0, v = 0;
  double x = 0.5, a = 0, b = 0;
  const auto tensor = [](float& one) {
    return Tensor{.data = &one, .dtype = DType::f32, .extent = {1, 1, 1, 1}};
  };
  for (int step = 1; step <= 3; ++step) {
    float g = float(step) * 0.3f - 0.5f;
    ASSERT_TRUE(adamw({.parameter = tensor(p), .gradient = tensor(g), .first = tensor(m), .second = tensor(v),
                       .rate = 0.1f, .decay = 0.02f, .step = step}, nullptr).ok());
    a = 0.9 * a + 0.1 * double(g), b = 0.999 * b + 0.001 * double(g) * double(g);
    x -= 0.1 * 0.02 * x;
    x -= 0.1 * (a / (1 - std::pow(0.9, step))) / (std::sqrt(b / (1 - std::pow(0.999, step))) + 1e-8);
    EXPECT_NEAR(double(p), x, 1e-6) << step;
  }
}

}  // namespace
}  // namespace attune::models
