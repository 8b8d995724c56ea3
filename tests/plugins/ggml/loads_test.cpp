// SPDX-License-Identifier: Apache-2.0
// ggml loads the backend and its own CPU backend agrees with it; llama.cpp loads it by GGML_BACKEND_PATH and finds the
// same tokens.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

#ifdef ATTUNE_GGML_COMPARE
std::string printed(const std::string& line) {
  std::string text;
  FILE* pipe = popen(line.c_str(), "r");
  if (!pipe) return "popen failed";
  for (int c; (c = std::fgetc(pipe)) != EOF;) text += char(c);
  return pclose(pipe) == 0 ? text : "failed: " + text;
}
#endif

TEST(Ggml, loads_the_backend_and_agrees_with_it) {
#ifdef ATTUNE_GGML_COMPARE
  const std::string text = printed(std::string(ATTUNE_GGML_COMPARE) + " " + ATTUNE_GGML_PLUGIN + " check 2");
  EXPECT_EQ(text.find("WRONG"), std::string::npos) << text;
  EXPECT_EQ(text.find("refused"), std::string::npos) << text;
  EXPECT_NE(text.find("ok"), std::string::npos) << text;
#else
  GTEST_SKIP() << "requires ggml, built with shared libraries: cmake -DATTUNE_GGML_SOURCE=/path/to/llama.cpp "
                  "-DATTUNE_GGML_BUILD=/path/to/its/build";
#endif
}

TEST(LlamaCpp, finds_the_same_tokens) {
#ifdef ATTUNE_GGML_TOKENS
  const std::string program = ATTUNE_GGML_TOKENS, model = testing::TempDir() + "attune_random.gguf";
  ASSERT_EQ(printed(program + " " + model + " make"), "");
  for (const char* type : {"f16", "q8_0"}) {
    const std::string run = program + " " + model + " " + type + " 24 2>&1";
    const std::string alone = printed(run);
    const std::string with = printed("GGML_BACKEND_PATH=" ATTUNE_GGML_PLUGIN " " + run);
    EXPECT_TRUE(alone.starts_with("attune is not loaded\n")) << alone;
    EXPECT_EQ(with, "attune is loaded\n" + alone.substr(alone.find('\n') + 1)) << type;
  }
  std::remove(model.c_str());
#else
  GTEST_SKIP() << "requires llama.cpp, built with shared libraries: cmake -DATTUNE_GGML_SOURCE=/path/to/llama.cpp "
                  "-DATTUNE_GGML_BUILD=/path/to/its/build";
#endif
}

}  // namespace
