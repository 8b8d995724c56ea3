// SPDX-License-Identifier: Apache-2.0
// Gemma-2: norms before and after attention and feed-forward, whose factor is 1 + weight; GELU by tanh of a gate;
// softcaps of scores and logits; every other layer, from the first, sees a window; a scaled, tied embedding.
#include <cmath>

#include "models/families.h"

namespace attune::models {
namespace {

void read(Fields& f, Config& c) {
  read_llama_like(f, c, {.heads_kv = 4, .dim = 256});
  c.act = act_of(f, "hidden_activation", "gelu_pytorch_tanh"), c.norm_adds_one = c.post_norms = true;
  c.bias_qkv = c.bias_out = f.truth("attention_bias", false);
  const auto cap = [&](std::string_view name, double otherwise) {
    return f.is_null(name) ? 0 : f.number(name, otherwise);
  };
  c.softcap = cap("attn_logit_softcapping", 50), c.final_softcap = cap("final_logit_softcapping", 30);
  const double scalar = f.number("query_pre_attn_scalar", 256);
  if (!(scalar > 0)) f.refuse("query_pre_attn_scalar = ", scalar, " is not above 0");
  c.scale = 1 / std::sqrt(scalar), c.embed_scale = std::sqrt(double(c.embed));
  c.tied = f.truth("tie_word_embeddings", true);
  windows_of(f, c, Windows::alternating);
  if (f.truth("use_bidirectional_attention", false)) f.refuse("use_bidirectional_attention is not accepted");
}

constexpr Names kNames{
    .base = "model.", .embed = "model.embed_tokens", .positions = "", .layer = "model.layers.",
    .final_norm = "model.norm", .head = "lm_head", .norm1 = "input_layernorm", .qkv = "", .q = "self_attn.q_proj",
    .k = "self_attn.k_proj", .v = "self_attn.v_proj", .out = "self_attn.o_proj", .norm2 = "pre_feedforward_layernorm",
    .post1 = "post_attention_layernorm", .post2 = "post_feedforward_layernorm", .gate = "mlp.gate_proj",
    .up = "mlp.up_proj", .down = "mlp.down_proj"};

constexpr KnownModel kKnown[] = {{"gemma-2-9b", R"({"model_type": "gemma2", "hidden_size": 3584,
  "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
  "intermediate_size": 14336, "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "sliding_window": 4096,
  "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256, "vocab_size": 256000,
  "eos_token_id": 1})"}};

}  // namespace

const Family kGemma2{.word = "gemma2", .read = read, .names = kNames, .known = kKnown};

}  // namespace attune::models
