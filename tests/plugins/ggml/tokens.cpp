// SPDX-License-Identifier: Apache-2.0
// llama_tokens MODEL make               writes a small model with random weights
// llama_tokens MODEL [f16 | q8_0] [N]   reads 300 tokens and prints the N most likely that follow, one by one
// A program of llama.cpp and nothing else: with GGML_BACKEND_PATH, llama.cpp loads the backend itself.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"
#include "llama.h"

namespace {

constexpr int kVocab = 512, kWidth = 512, kHidden = 768, kHeads = 8, kHeadsKv = 2, kDim = 64, kLayers = 4;

void make(const char* path) {
  gguf_context* file = gguf_init_empty();
  ggml_context* memory = ggml_init({size_t(256) << 20, nullptr, false});
  std::mt19937 random(11);
  gguf_set_val_str(file, "general.architecture", "llama");
  gguf_set_val_str(file, "tokenizer.ggml.model", "none");
  const std::pair<const char*, uint32_t> sizes[] = {
      {"llama.block_count", kLayers},         {"llama.context_length", 4096},
      {"llama.embedding_length", kWidth},     {"llama.feed_forward_length", kHidden},
      {"llama.attention.head_count", kHeads}, {"llama.attention.head_count_kv", kHeadsKv},
      {"llama.vocab_size", kVocab},           {"llama.rope.dimension_count", kDim}};
  for (const auto& [key, value] : sizes) gguf_set_val_u32(file, key, value);
  gguf_set_val_f32(file, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const auto add = [&](const std::string& name, int64_t in, int64_t out, float size) {
    ggml_tensor* t =
        out ? ggml_new_tensor_2d(memory, GGML_TYPE_F32, in, out) : ggml_new_tensor_1d(memory, GGML_TYPE_F32, in);
    ggml_set_name(t, (name + ".weight").c_str());
    std::normal_distribution<float> normal(out ? 0.f : 1.f, size);
    for (int64_t n = 0; n < ggml_nelements(t); ++n) static_cast<float*>(t->data)[n] = normal(random);
    gguf_add_tensor(file, t);
  };
  const float width = 1.f / std::sqrt(float(kWidth)), hidden = 1.f / std::sqrt(float(kHidden));
  add("token_embd", kWidth, kVocab, 1.f);
  add("output", kWidth, kVocab, 3 * width);
  add("output_norm", kWidth, 0, 0.1f);
  for (int n = 0; n < kLayers; ++n) {
    const std::string layer = "blk." + std::to_string(n) + ".";
    add(layer + "attn_norm", kWidth, 0, 0.1f);
    add(layer + "attn_q", kWidth, kHeads * kDim, 2 * width);
    add(layer + "attn_k", kWidth, kHeadsKv * kDim, 2 * width);
    add(layer + "attn_v", kWidth, kHeadsKv * kDim, 2 * width);
    add(layer + "attn_output", kHeads * kDim, kWidth, 2 * width);
    add(layer + "ffn_norm", kWidth, 0, 0.1f);
    add(layer + "ffn_gate", kWidth, kHidden, width);
    add(layer + "ffn_up", kWidth, kHidden, width);
    add(layer + "ffn_down", kHidden, kWidth, hidden);
  }
  gguf_write_to_file(file, path, false);
  ggml_free(memory);
  gguf_free(file);
}

int decode(llama_context* context, std::vector<llama_token>& tokens) {
  if (llama_decode(context, llama_batch_get_one(tokens.data(), int32_t(tokens.size()))) != 0) std::exit(1);
  const float* logits = llama_get_logits_ith(context, -1);
  return int(std::max_element(logits, logits + kVocab) - logits);
}

int run(const char* path, const char* type, int count) {
  ggml_backend_load_all_from_path(ATTUNE_GGML_FOLDER);  // ggml's CPU backend; GGML_BACKEND_PATH too
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  std::fprintf(stderr, "attune is %s\n", ggml_backend_reg_by_name("attune") ? "loaded" : "not loaded");
  llama_model* model = llama_model_load_from_file(path, llama_model_default_params());
  if (!model) return 1;
  llama_context_params settings = llama_context_default_params();
  settings.n_ctx = settings.n_batch = 1024;
  settings.n_threads = settings.n_threads_batch = 2;
  settings.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  settings.type_k = settings.type_v = std::strcmp(type, "q8_0") == 0 ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
  llama_context* context = llama_init_from_model(model, settings);
  if (!context) return 1;
  std::mt19937 random(4);
  std::vector<llama_token> tokens(300);
  for (llama_token& t : tokens) t = llama_token(random() % kVocab);
  for (int n = 0; n < count; ++n) {
    tokens = {decode(context, tokens)};
    std::printf("%d ", tokens[0]);
  }
  std::printf("\n");
  llama_free(context);
  llama_model_free(model);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "llama_tokens: no model was given; MODEL make, or MODEL [f16 | q8_0] [N] is accepted\n");
    return 2;
  }
  if (argc > 2 && std::strcmp(argv[2], "make") == 0) return make(argv[1]), 0;
  return run(argv[1], argc > 2 ? argv[2] : "f16", argc > 3 ? std::atoi(argv[3]) : 48);
}
