// SPDX-License-Identifier: Apache-2.0
// GPT-NeoX: attention and feed-forward side by side, each after its own LayerNorm; rotary of halves in a quarter of
// each head. The rows of query_key_value are by head: q, k and v of the first head, then of the second.
#include "models/families.h"

namespace attune::models {
namespace {

void read(Fields& f, Config& c) {
  c.vocab = f.integer("vocab_size", 1, 50432), c.embed = f.integer("hidden_size", 1, 6144);
  c.layers = f.integer("num_hidden_layers", 1, 44), c.heads = c.heads_kv = f.integer("num_attention_heads", 1, 64);
  c.ffn = f.integer("intermediate_size", 1, 24576), c.positions = f.integer("max_position_embeddings", 1, 2048);
  c.dim = divided_width(f, c), c.eps = f.number("layer_norm_eps", 1e-5), c.act = act_of(f, "hidden_act", "gelu");
  c.residual = f.truth("use_parallel_residual", true) ? Residual::parallel : Residual::serial;
  c.bias_qkv = c.bias_out = f.truth("attention_bias", true), c.bias_mlp = true;
  c.rotary = rotary_of(f, c, {.theta = "rotary_emb_base", .share = "rotary_pct", .otherwise = 0.25});
  c.tied = f.truth("tie_word_embeddings", false);
}

constexpr Names kNames{
    .base = "gpt_neox.", .embed = "gpt_neox.embed_in", .positions = "", .layer = "gpt_neox.layers.",
    .final_norm = "gpt_neox.final_layer_norm", .head = "embed_out", .norm1 = "input_layernorm",
    .qkv = "attention.query_key_value", .q = "", .k = "", .v = "", .out = "attention.dense",
    .norm2 = "post_attention_layernorm", .post1 = "", .post2 = "", .gate = "", .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h", .fused = Layout::by_head};

constexpr KnownModel kKnown[] = {{"gpt-neox-20b", R"({"model_type": "gpt_neox", "hidden_size": 6144,
  "num_hidden_layers": 44, "num_attention_heads": 64, "intermediate_size": 24576, "hidden_act": "gelu_fast",
  "max_position_embeddings": 2048, "vocab_size": 50432, "rotary_pct": 0.25, "eos_token_id": 0})"}};

}  // namespace

const Family kGptNeox{.word = "gpt_neox", .read = read, .names = kNames, .known = kKnown};

}  // namespace attune::models
