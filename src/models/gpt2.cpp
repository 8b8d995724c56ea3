// SPDX-License-Identifier: Apache-2.0
// GPT-2: learned positions, LayerNorm, GELU by tanh, biases everywhere, a tied head. Matrices are [in, out] in a
// checkpoint.
#include "models/families.h"

namespace attune::models {
namespace {

void read(Fields& f, Config& c) {
  c.vocab = f.integer("vocab_size", 1, 50257), c.embed = size_of_either(f, "n_embd", "hidden_size", 768);
  c.layers = size_of_either(f, "n_layer", "num_hidden_layers", 12);
  c.heads = c.heads_kv = size_of_either(f, "n_head", "num_attention_heads", 12);
  c.positions = size_of_either(f, "n_positions", "max_position_embeddings", 1024), c.dim = divided_width(f, c);
  c.ffn = f.integer("n_inner", 1, int64_t(4) * c.embed);
  c.eps = f.number("layer_norm_epsilon", 1e-5), c.act = act_of(f, "activation_function", "gelu_new");
  c.bias_qkv = c.bias_out = c.bias_mlp = c.learned_positions = true;
  c.tied = f.truth("tie_word_embeddings", true);
  if (!f.truth("scale_attn_weights", true)) c.scale = 1;
  if (f.truth("scale_attn_by_inverse_layer_idx", false)) f.refuse("scale_attn_by_inverse_layer_idx is not accepted");
  if (f.truth("add_cross_attention", false)) f.refuse("add_cross_attention is not accepted");
}

constexpr Names kNames{
    .base = "transformer.", .embed = "transformer.wte", .positions = "transformer.wpe", .layer = "transformer.h.",
    .final_norm = "transformer.ln_f", .head = "lm_head", .norm1 = "ln_1", .qkv = "attn.c_attn", .q = "", .k = "",
    .v = "", .out = "attn.c_proj", .norm2 = "ln_2", .post1 = "", .post2 = "", .gate = "", .up = "mlp.c_fc",
    .down = "mlp.c_proj", .matrices = Layout::transposed};

constexpr KnownModel kKnown[] = {
    {"gpt2-124m", R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "eos_token_id": 50256})"},
    {"gpt2-355m", R"({"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16, "eos_token_id": 50256})"},
    {"gpt2-774m", R"({"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "n_head": 20, "eos_token_id": 50256})"},
    {"gpt2-1.5b", R"({"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "eos_token_id": 50256})"}};

}  // namespace

const Family kGpt2{.word = "gpt2", .read = read, .names = kNames, .known = kKnown};

}  // namespace attune::models
