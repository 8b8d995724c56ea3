// SPDX-License-Identifier: Apache-2.0
#include "models/generate.h"

#include <cmath>

#include "models/train.h"
#include "tests/models/small.h"

namespace attune::models {
namespace {

std::unique_ptr<Generation> generation(Model& model, int sequences, int capacity) {
  std::unique_ptr<Generation> made;
  EXPECT_EQ(Generation::make(model, sequences, capacity, {}, made).message, "");
  return made;
}

double distance(std::span<const float> a, std::span<const float> b) {
  double most = 0;
  for (size_t n = 0; n < a.size(); ++n) most = std::max(most, double(std::abs(a[n] - b[n])));
  return most;
}

// Each step with the cache has the logits of a forward over the whole text.
TEST(Generation, agrees_with_a_forward_without_a_cache) {
  for (const char* family : kSmall) {
    const auto model = small_model(family);
    constexpr int kLen = 21, kPrompt = 5;
    const size_t vocab = size_t(model->config().vocab);
    const std::vector<int32_t> text = random_tokens(int(vocab), kLen, 3, 0);
    std::unique_ptr<Training> whole;
    ASSERT_EQ(Training::make(*model, {.batch = 1, .len = kLen}, whole).message, "");
    std::vector<float> all, last;
    ASSERT_EQ(whole->logits(text, all).message, "");
    const auto g = generation(*model, 1, kLen);
    for (int at = 0; at < kLen;) {
      const int count = at ? 1 : kPrompt;
      const std::span<const int32_t> part(text.data() + at, size_t(count));
      ASSERT_EQ(g->append({&part, 1}, last).message, "");
      at += count;
      EXPECT_LT(distance(last, std::span(all).subspan(size_t(at - 1) * vocab, vocab)), 2e-5) << family << " " << at;
    }
  }
}

TEST(Generation, unequal_prompts_do_not_see_each_other) {
  for (const char* family : {"gpt2", "gemma2"}) {
    const auto model = small_model(family);
    std::vector<std::vector<int32_t>> prompts, together, alone;
    for (const int len : {3, 11, 6}) prompts.push_back(random_tokens(model->config().vocab, len, 5, len));
    ASSERT_EQ(generate(*generation(*model, 3, 40), prompts, 20, {}, together, {}).message, "");
    for (size_t n = 0; n < prompts.size(); ++n) {
      ASSERT_EQ(generate(*generation(*model, 1, 40), {&prompts[n], 1}, 20, {}, alone, {}).message, "");
      EXPECT_EQ(together[n], alone[0]) << family << " " << n;
    }
  }
}

TEST(Generation, refuses_what_does_not_fit_and_stays_as_it_was) {
  const auto model = small_model("gpt2");
  const auto g = generation(*model, 1, 4);
  const std::vector<int32_t> three{1, 2, 3}, wrong{61};
  std::vector<float> logits;
  const std::span<const int32_t> text(three), other(wrong);
  ASSERT_EQ(g->append({&text, 1}, logits).message, "");
  EXPECT_EQ(g->append({&text, 1}, logits).message,
            "model: sequence 0 has 3 tokens, and 3 more do not fit in its 4");
  EXPECT_EQ(g->append({&other, 1}, logits).message, "model: token 61 is not in 0 ... 60");
  EXPECT_EQ(g->length(0), 3);
  std::unique_ptr<Generation> made;
  EXPECT_EQ(Generation::make(*model, 1, 273, {}, made).message,
            join("model: 273 tokens are over the 272 positions of ", small_folder("gpt2")));
}

// Sizes from the plan alone are those of the memory that is taken.
TEST(Generation, measures_what_it_takes) {
  for (const char* family : kSmall) {
    const auto model = small_model(family);
    std::vector<std::vector<int32_t>> prompts, texts;
    for (int n = 0; n < 3; ++n) prompts.push_back(random_tokens(model->config().vocab, 9, 5, n));
    const auto g = generation(*model, 3, 20);
    ASSERT_EQ(generate(*g, prompts, 4, {}, texts, {}).message, "");
    CacheBytes planned;
    const CacheShape shape{.sequences = 3, .capacity = 20, .prompt = 9, .at_once = 3};
    ASSERT_EQ(Generation::measure(model->config(), DType::f32, model->device(), {}, shape, planned).message, "");
    EXPECT_EQ(planned.cache, g->bytes().cache) << family;
    EXPECT_EQ(planned.workspace, g->bytes().workspace) << family;
  }
}

TEST(Generation, refuses_logits_that_are_not_finite) {
  const auto model = small_model("gpt2");
  const ModelParameter& p = model->parameters()[0];
  std::vector<float> weight(size_t(p.count()), NAN);
  ASSERT_TRUE(model->write(p, weight.data()).ok());
  std::vector<std::vector<int32_t>> texts;
  const std::vector<int32_t> prompt{1, 2};
  EXPECT_EQ(generate(*generation(*model, 1, 9), {&prompt, 1}, 4, {}, texts, {}).message,
            "model: logits are not finite after 0 tokens; its weights or dtype are at fault");
}

TEST(Sampling, is_a_function_of_the_seed) {
  const std::vector<float> logits{0, 1, 2, 3};
  const auto draws = [&](const Sampling& s) {
    std::vector<int> count(4);
    for (int n = 0; n < 4000; ++n) ++count[size_t(next_token(logits, s, 0, n))];
    return count;
  };
  EXPECT_EQ(next_token(logits, {}, 0, 0), 3);
  const std::vector<int> one = draws({.temperature = 1, .seed = 1});
  EXPECT_EQ(one, draws({.temperature = 1, .seed = 1}));
  EXPECT_NE(one, draws({.temperature = 1, .seed = 2}));
  double sum = 0;
  for (int n = 0; n < 4; ++n) sum += std::exp(n);
  for (int n = 0; n < 4; ++n) EXPECT_NEAR(one[size_t(n)] / 4000., std::exp(n) / sum, 0.03) << n;
  EXPECT_EQ(draws({.temperature = 1, .top = 2})[1], 0);
}

}  // namespace
}  // namespace attune::models
