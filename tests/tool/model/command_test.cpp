// SPDX-License-Identifier: Apache-2.0
// `attune model` from outside: what it refuses before it works, and where its weights are from.
#include <gtest/gtest.h>

#include "tests/tool/spawn.h"

namespace attune {
namespace {

namespace fs = std::filesystem;
const std::string kData = ATTUNE_SOURCE_DIR "/tests/models/data/";

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

Ran model(const std::string& what, std::vector<std::string> words) {
  words.insert(words.begin(), {"model", what});
  return attune_says(words);
}

// A folder with the config.json of a small model.
std::string folder(const std::string& name, const std::string& family) {
  const std::string path = temporary(name);
  fs::remove_all(path);
  fs::create_directories(path);
  fs::copy_file(kData + family + "/config.json", path + "/config.json");
  return path;
}

TEST(ModelCommand, an_option_without_effect_is_refused) {
  for (const auto& [words, told] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--memory", "--save", temporary("unsaved")}, "--save given with a memory option"},
           {{"--generate", "--checkpointing"}, "--checkpointing given without --train or a memory option"},
           {{"--train", "--temperature", "1"}, "--temperature: given without --generate, which it needs"},
           {{"--generate", "--steps", "2"}, "--steps: given without --train, which it needs"}}) {
    const Ran r = model(kData + "gpt2", words);
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_TRUE(has(r.err, told)) << r.err;
  }
}

TEST(ModelCommand, a_folder_that_cannot_be_saved_to_is_refused_before_training) {
  const std::string letters = temporary("letters");
  fs::create_directories(letters);
  std::ofstream(letters + "/letter.txt") << "dear";
  const Ran r = model(kData + "gpt2", {"--train", "--steps", "1", "--length", "8", "--save", letters});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.out, "");
  EXPECT_TRUE(has(r.err, "holds files and no config.json")) << r.err;
}

TEST(ModelCommand, says_where_its_weights_are_from) {
  const std::vector<std::string> generate{"--generate", "--prompt", "3", "--tokens", "2"};
  EXPECT_TRUE(has(model(kData + "gpt2", generate).out, "weights         those of " + kData + "gpt2\n"));
  const std::string bare = folder("bare", "gpt2");
  EXPECT_TRUE(has(model(bare, generate).out, "weights         random, by seed 0\n"));
  std::ofstream(bare + "/pytorch_model.bin") << "weights";
  const Ran r = model(bare, generate);
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.err, "holds 'pytorch_model.bin', but neither model.safetensors nor")) << r.err;
}

TEST(ModelCommand, a_text_in_a_file_stays_in_its_line) {
  const std::string path = folder("lines", "gpt2");
  std::ofstream(path + "/config.json") << R"({"model_type": "a\nb\u001b[2J"})";
  const Ran r = model(path, {});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.err.find('\n'), r.err.size() - 1) << r.err;
  EXPECT_FALSE(has(r.err, "\x1b"));
}

TEST(ModelCommand, what_memory_cannot_hold_is_refused_at_once) {
  const std::string path = folder("large", "gpt2");
  const Ran r = model(path, {"--train", "--batch", "65536", "--length", "272"});
  EXPECT_EQ(r.code, 3) << r.err;
  EXPECT_TRUE(has(r.err, " are free; --memory and --fits need no weights")) << r.err;
}

TEST(ModelCommand, the_longest_context_is_that_of_the_positions) {
  const Ran r = model(folder("positions", "gpt2"), {"--longest", "--json"});
  EXPECT_TRUE(has(r.out, "\"longest_to_train\": 272")) << r.out;
  EXPECT_TRUE(has(r.out, "\"longest_to_generate\": 272")) << r.out;
}

TEST(ModelCommand, a_text_has_the_tokens_of_the_model) {
  const std::string text = temporary("text");
  std::ofstream(text) << "text of bytes beyond 61";
  const Ran r = model(kData + "gpt2", {"--train", "--steps", "1", "--length", "8", "--text", text});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.err, "byte 0 is 116, and the model has 61 tokens")) << r.err;
}

}  // namespace
}  // namespace attune
