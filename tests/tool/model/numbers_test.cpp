// SPDX-License-Identifier: Apache-2.0
// The small models of tests/models/data against the numbers of transformers beside them: logits, loss, every gradient
// and 256 greedy tokens.
#include <filesystem>

#include "tests/models/small.h"
#include "tool/model/model.h"

namespace attune {
namespace {

void expect_right(const std::string& family, const std::string& attention) {
  const auto model = models::small_model(family);
  std::vector<Deviation> all;
  ASSERT_EQ(compare_numbers(*model, {attention}, models::small_folder(family) + "/numbers.safetensors", all).message,
            "");
  EXPECT_EQ(all.size(), model->parameters().size() + 3) << family;
  for (const Deviation& d : all) EXPECT_TRUE(d.right) << family << " " << attention << ": " << d.what << " " << d.error;
}

TEST(Numbers, are_those_of_transformers) {
  for (const char* family : models::kSmall)
    for (const char* attention : {"auto", "standard"}) expect_right(family, attention);
}

TEST(Numbers, a_changed_weight_is_seen) {
  const auto model = models::small_model("gpt2");
  const models::ModelParameter& p = model->parameters()[5];
  std::vector<float> weight(size_t(p.count()));
  ASSERT_TRUE(model->read(p, weight.data()).ok());
  weight[0] += 0.1f;
  ASSERT_TRUE(model->write(p, weight.data()).ok());
  std::vector<Deviation> all;
  ASSERT_TRUE(compare_numbers(*model, {}, models::small_folder("gpt2") + "/numbers.safetensors", all).ok());
  EXPECT_FALSE(all[0].right);
}

TEST(Numbers, a_wrong_file_is_one_sentence) {
  const auto model = models::small_model("gpt2");
  std::vector<Deviation> all;
  EXPECT_NE(compare_numbers(*model, {}, "/nonexistent", all).message, "");
  const std::string weights = models::small_folder("gpt2") + "/model.safetensors";
  EXPECT_EQ(compare_numbers(*model, {}, weights, all).message, weights + ": holds neither tokens nor greedy");
}

}  // namespace
}  // namespace attune
