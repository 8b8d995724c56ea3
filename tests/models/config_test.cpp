// SPDX-License-Identifier: Apache-2.0
#include "models/config.h"

#include <gtest/gtest.h>

#include "models/json.h"

namespace attune::models {
namespace {

// Parameters as transformers counts them (sum of numel() of the model made from the same config.json).
TEST(Config, known_models_have_their_sizes) {
  const std::pair<const char*, int64_t> known[] = {
      {"gpt2-124m", 124'439'808},      {"gpt2-355m", 354'823'168},     {"gpt2-774m", 774'030'080},
      {"gpt2-1.5b", 1'557'611'200},    {"gpt-j-6b", 6'050'882'784},    {"gpt-neox-20b", 20'554'567'680},
      {"llama-2-7b", 6'738'415'616},   {"llama-2-13b", 13'015'864'320}, {"llama-2-70b", 68'976'648'192},
      {"llama-3-8b", 8'030'261'248},   {"llama-3-70b", 70'553'706'496}, {"mistral-7b", 7'241'732'096},
      {"qwen2.5-7b", 7'615'616'512},   {"gemma-2-9b", 9'241'705'984}};
  EXPECT_EQ(all_known().size(), std::size(known));
  for (const auto& [name, count] : known) {
    Config c;
    ASSERT_TRUE(find_config(name, c).ok()) << name;
    EXPECT_EQ(c.parameters(), count) << name;
  }
}

TEST(Config, a_window_follows_the_layer_types) {
  Config c;
  ASSERT_TRUE(find_config("gemma-2-9b", c).ok());
  EXPECT_EQ(c.window_of(0), 4096);
  EXPECT_EQ(c.window_of(1), 0);
  ASSERT_TRUE(find_config("mistral-7b", c).ok());
  EXPECT_EQ(c.window_of(31), 4096);
}

std::string refusal(std::string_view text) {
  Config c;
  c.name = "before";
  const Status s = read_config(text, "config.json", c);
  EXPECT_EQ(c.name, "before") << "a refused file changed the config";
  return s.ok() ? "" : s.message;
}

TEST(Config, a_wrong_file_is_one_sentence) {
  EXPECT_EQ(refusal("{"), "config.json: is not JSON: expected a string at byte 1");
  EXPECT_EQ(refusal("[]"), "config.json: is not a JSON object");
  EXPECT_EQ(refusal(R"({"model_type": "bert"})"),
            "config.json: model_type 'bert' is not one of gpt2, gptj, gpt_neox, llama, mistral, qwen2, gemma2");
  EXPECT_EQ(refusal(R"({"model_type": "gpt2", "n_embd": "x"})"), "config.json: n_embd is not a number");
  EXPECT_EQ(refusal(R"({"model_type": "gpt2", "n_embd": 10, "n_head": 3})"),
            "config.json: width 10 is not divisible by 3 heads");
  EXPECT_EQ(refusal(R"({"model_type": "gpt2", "n_layer": 0})"),
            "config.json: n_layer = 0 is not an integer of 1 ... 2^30");
  EXPECT_EQ(refusal(R"({"model_type": "llama"})"), "config.json: vocab_size is missing");
  const std::string llama = R"({"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1,
                                "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 16)";
  EXPECT_EQ(refusal(llama + R"(, "rope_scaling": {"rope_type": "yarn"}})"),
            "config.json: rope_type 'yarn' is not one of default, linear, llama3");
  EXPECT_EQ(refusal(llama + R"(, "hidden_act": "mish"})"),
            "config.json: hidden_act = 'mish' is not one of gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, silu, relu");
  EXPECT_EQ(refusal(llama + R"(, "num_key_value_heads": 3})"),
            "config.json: 2 heads are not a multiple of 3 key and value heads");
}

TEST(Config, an_unknown_name_lists_the_known) {
  Config c;
  const Status s = find_config("gpt5", c);
  EXPECT_TRUE(s.message.starts_with("model: 'gpt5' is not one of gpt2-124m, ")) << s.message;
}

TEST(Json, refuses_what_is_not_json) {
  Json j;
  for (const char* text : {"", "{\"a\": 1,}", "[1 2]", "{\"a\": 1, \"a\": 2}", "nul", "1 2", "\"\\u12\"", "-", "[1"})
    EXPECT_FALSE(read_json(text, j).ok()) << text;
  EXPECT_FALSE(read_json(std::string(100, '['), j).ok());
  ASSERT_TRUE(read_json(R"({"a": [1, -2.5e1, true, null, "\u00e9\n"]})", j).ok());
  const Json* const list = j.find("a");
  ASSERT_EQ(list->items.size(), 5u);
  EXPECT_EQ(list->items[1].number, -25);
  EXPECT_EQ(list->items[4].text, "\u00e9\n");
}

}  // namespace
}  // namespace attune::models
