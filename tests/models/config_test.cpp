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

// A file of a family, with these members beside the required ones.
std::string file_of(const std::string& family, const std::string& more) {
  const std::string sizes = R"(, "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 4,
                               "intermediate_size": 8, "max_position_embeddings": 16)";
  return join(R"({"model_type": ")", family, "\"", sizes, more.empty() ? "" : ", ", more, "}");
}

Config read(const std::string& family, const std::string& more) {
  Config c;
  EXPECT_EQ(read_config(file_of(family, more), "config.json", c).message, "") << family << " " << more;
  return c;
}

// The defaults of Gemma2Config, MistralConfig, Qwen2Config and GPTJConfig in transformers; null is none.
TEST(Config, what_a_file_leaves_out_is_that_of_transformers) {
  const Config gemma2 = read("gemma2", "");
  EXPECT_EQ(gemma2.softcap, 50);
  EXPECT_EQ(gemma2.final_softcap, 30);
  EXPECT_EQ(gemma2.dim, 256);
  EXPECT_EQ(gemma2.heads_kv, 4);
  EXPECT_EQ(gemma2.window_of(0), 4096);
  EXPECT_EQ(gemma2.window_of(1), 0);
  EXPECT_EQ(read("gemma2", R"("final_logit_softcapping": null)").final_softcap, 0);
  EXPECT_EQ(read("mistral", R"("num_key_value_heads": null)").window_of(2), 4096);
  EXPECT_EQ(read("mistral", R"("num_key_value_heads": 2, "sliding_window": null)").window_of(2), 0);
  EXPECT_EQ(refusal(file_of("mistral", "")), "config.json: 4 heads are not a multiple of 8 key and value heads");
  EXPECT_EQ(read("qwen2", R"("num_key_value_heads": null)").heads_kv, 4);
  Config gptj;
  ASSERT_EQ(read_config(R"({"model_type": "gptj", "n_embd": 128, "n_head": 1})", "config.json", gptj).message, "");
  EXPECT_EQ(gptj.rotary.dims, 64);
}

TEST(Config, names_of_transformers_and_of_gpt2_are_one) {
  const Config c = read("gpt2", "");
  EXPECT_EQ(c.embed, 8);
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.positions, 16);
  EXPECT_EQ(refusal(file_of("gpt2", R"("n_embd": 16)")), "config.json: n_embd = 16 disagrees with hidden_size = 8");
  EXPECT_EQ(refusal(file_of("gpt2", R"("head_dim": 4)")), "config.json: head_dim = 4 is not width 8 / 4 heads");
}

TEST(Config, qwen2_has_windows_in_its_late_layers) {
  const std::string window = R"("num_key_value_heads": 4, "use_sliding_window": true, "sliding_window": 5)";
  const Config late = read("qwen2", window + R"(, "max_window_layers": 1)");
  EXPECT_EQ(late.windowed, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(late.window, 5);
  EXPECT_EQ(read("qwen2", R"("num_key_value_heads": 4, "sliding_window": 5)").window, 0);
  const std::string types = R"("layer_types": ["sliding_attention", "full_attention", "full_attention"])";
  EXPECT_EQ(read("qwen2", window + ", " + types).windowed, (std::vector<bool>{true, false, false}));
  EXPECT_EQ(refusal(file_of("qwen2", R"("num_key_value_heads": 4, )" + types)),
            "config.json: layer_types has sliding_attention, and there is no sliding_window");
  EXPECT_EQ(refusal(file_of("mistral", R"("num_key_value_heads": 4, )" + types)),
            "config.json: layer_types and sliding_window disagree about layer 1");
  EXPECT_EQ(refusal(file_of("llama", R"("sliding_window": 5)")),
            "config.json: sliding_window is not accepted for llama");
}

TEST(Config, rotary_is_read_wherever_a_file_has_it) {
  const auto rotary = [](const std::string& more) { return read("llama", more).rotary; };
  EXPECT_EQ(rotary(R"("rope_scaling": {"type": "linear", "factor": 2, "rope_theta": 50})").theta, 50);
  EXPECT_EQ(rotary(R"("rope_theta": 50, "rope_parameters": {"rope_type": "default"})").theta, 50);
  const std::string llama3 = R"({"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4})";
  EXPECT_EQ(rotary(R"("rope_scaling": )" + llama3).original, 16);
  EXPECT_EQ(rotary(R"("original_max_position_embeddings": 8, "rope_scaling": )" + llama3).original, 8);
  const auto no = [](const std::string& more) { return refusal(file_of("llama", more)); };
  EXPECT_EQ(no(R"("rope_scaling": "yarn")"), "config.json: rope_scaling is not an object");
  EXPECT_EQ(no(R"("rope_scaling": {"type": "linear"})"), "config.json: rope_scaling: factor is missing");
  EXPECT_EQ(no(R"("rope_scaling": {"factor": 2})"),
            "config.json: rope_scaling: factor = 2 is for a rope_type of linear or llama3");
  EXPECT_EQ(no(R"("rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "default"})"),
            "config.json: rope_parameters and rope_scaling are both given");
  EXPECT_EQ(no(R"("rope_parameters": {"full_attention": {"rope_theta": 50}})"),
            "config.json: rope_parameters: 'full_attention' is not accepted");
  EXPECT_EQ(no(R"("rope_theta": 7, "rope_parameters": {"rope_theta": 50})"),
            "config.json: rope_theta = 7 disagrees with rope_theta = 50");
  EXPECT_EQ(no(R"("partial_rotary_factor": 0.5)"), "config.json: partial_rotary_factor = 0.5 is not accepted; it is 1");
}

TEST(Config, sizes_that_overflow_are_refused) {
  const auto no = [](const std::string& family, const std::string& more) { return refusal(file_of(family, more)); };
  EXPECT_EQ(no("llama", R"("head_dim": 1073741824)"),
            "config.json: heads x head_dim of 4294967296 given; at most 16777216 are accepted");
  EXPECT_EQ(refusal(R"({"model_type": "gpt2", "n_layer": 1073741824})"),
            "config.json: layers of 1073741824 given; at most 65536 are accepted");
  EXPECT_EQ(refusal(R"({"model_type": "gpt2", "n_inner": 1073741824})"),
            "config.json: a feed-forward width of 1073741824 given; at most 16777216 are accepted");
  const std::string wide = R"({"model_type": "gpt2", "n_embd": 12582912, "n_inner": 16777216, "n_layer": 65536})";
  EXPECT_TRUE(refusal(wide).ends_with(" parameters given; at most 2^48 are accepted")) << refusal(wide);
  EXPECT_EQ(no("gemma2", R"("query_pre_attn_scalar": 0)"), "config.json: query_pre_attn_scalar = 0 is not above 0");
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
