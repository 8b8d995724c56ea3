// SPDX-License-Identifier: Apache-2.0
// GPT-J: attention and feed-forward side by side after one LayerNorm, rotary of adjacent pairs in a part of each head,
// biases outside attention, an untied head with a bias.
#include "models/families.h"

namespace attune::models {
namespace {

void read(Fields& f, Config& c) {
  c.vocab = f.integer("vocab_size", 1, 50400), c.embed = size_of_either(f, "n_embd", "hidden_size", 4096);
  c.layers = size_of_either(f, "n_layer", "num_hidden_layers", 28);
  c.heads = c.heads_kv = size_of_either(f, "n_head", "num_attention_heads", 16);
  c.positions = size_of_either(f, "n_positions", "max_position_embeddings", 2048), c.dim = divided_width(f, c);
  c.ffn = f.integer("n_inner", 1, int64_t(4) * c.embed);
  c.eps = f.number("layer_norm_epsilon", 1e-5), c.act = act_of(f, "activation_function", "gelu_new");
  c.bias_mlp = true, c.residual = Residual::parallel_one_norm;
  if (f.is_null("rotary_dim")) f.refuse("rotary_dim is null; it is a number of dims");
  c.rotary = {.dims = f.integer("rotary_dim", 2, 64), .pairs = Pairs::adjacent};
  c.tied = f.truth("tie_word_embeddings", false), c.bias_head = true;
}

constexpr Names kNames{
    .base = "transformer.", .embed = "transformer.wte", .positions = "", .layer = "transformer.h.",
    .final_norm = "transformer.ln_f", .head = "lm_head", .norm1 = "ln_1", .qkv = "", .q = "attn.q_proj",
    .k = "attn.k_proj", .v = "attn.v_proj", .out = "attn.out_proj", .norm2 = "", .post1 = "", .post2 = "", .gate = "",
    .up = "mlp.fc_in", .down = "mlp.fc_out"};

constexpr KnownModel kKnown[] = {{"gpt-j-6b", R"({"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16,
  "n_positions": 2048, "rotary_dim": 64, "vocab_size": 50400, "eos_token_id": 50256})"}};

}  // namespace

const Family kGptJ{.word = "gptj", .read = read, .names = kNames, .known = kKnown};

}  // namespace attune::models
