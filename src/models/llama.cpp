// SPDX-License-Identifier: Apache-2.0
// Llama, Mistral and Qwen2: RMSNorm, rotary of halves, grouped queries, SwiGLU. Mistral may have a sliding window,
// Qwen2 has biases of q, k and v.
#include "models/families.h"

namespace attune::models {
namespace {

void read_llama(Fields& f, Config& c) {
  read_llama_like(f, c);
  c.bias_qkv = c.bias_out = f.truth("attention_bias", false), c.bias_mlp = f.truth("mlp_bias", false);
  if (f.has("sliding_window")) f.refuse("sliding_window is not accepted for llama");
}

void read_mistral(Fields& f, Config& c) {
  read_llama_like(f, c, {.heads_kv = 8});
  windows_of(f, c, Windows::all);
}

void read_qwen2(Fields& f, Config& c) {
  read_llama_like(f, c, {.heads_kv = 32});
  c.bias_qkv = true;
  windows_of(f, c, Windows::late);
}

constexpr KnownModel kKnownLlama[] = {
    {"llama-2-7b", R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
  "intermediate_size": 11008, "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "vocab_size": 32000,
  "eos_token_id": 2})"},
    {"llama-2-13b", R"({"model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
  "intermediate_size": 13824, "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "vocab_size": 32000,
  "eos_token_id": 2})"},
    {"llama-2-70b", R"({"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
  "num_key_value_heads": 8, "intermediate_size": 28672, "max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
  "vocab_size": 32000, "eos_token_id": 2})"},
    {"llama-3-8b", R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "intermediate_size": 14336, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
  "rope_theta": 500000.0, "vocab_size": 128256, "eos_token_id": 128001})"},
    {"llama-3-70b", R"({"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
  "num_key_value_heads": 8, "intermediate_size": 28672, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
  "rope_theta": 500000.0, "vocab_size": 128256, "eos_token_id": 128001})"}};

constexpr KnownModel kKnownMistral[] = {{"mistral-7b", R"({"model_type": "mistral", "hidden_size": 4096,
  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "sliding_window": 4096, "vocab_size": 32000,
  "eos_token_id": 2})"}};

constexpr KnownModel kKnownQwen2[] = {{"qwen2.5-7b", R"({"model_type": "qwen2", "hidden_size": 3584,
  "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "vocab_size": 152064,
  "eos_token_id": 151643})"}};

}  // namespace

const Names kLlamaNames{
    .base = "model.", .embed = "model.embed_tokens", .positions = "", .layer = "model.layers.",
    .final_norm = "model.norm", .head = "lm_head", .norm1 = "input_layernorm", .qkv = "", .q = "self_attn.q_proj",
    .k = "self_attn.k_proj", .v = "self_attn.v_proj", .out = "self_attn.o_proj", .norm2 = "post_attention_layernorm",
    .post1 = "", .post2 = "", .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"};

void read_llama_like(Fields& f, Config& c, const LlamaDefaults& otherwise) {
  c.vocab = f.integer("vocab_size", 1, -1), c.embed = f.integer("hidden_size", 1, -1);
  c.layers = f.integer("num_hidden_layers", 1, -1), c.heads = f.integer("num_attention_heads", 1, -1);
  const bool as_heads = !otherwise.heads_kv || f.is_null("num_key_value_heads");
  c.heads_kv = f.integer("num_key_value_heads", 1, as_heads ? c.heads : otherwise.heads_kv);
  c.ffn = f.integer("intermediate_size", 1, -1), c.positions = f.integer("max_position_embeddings", 1, -1);
  if (f.has("head_dim") || otherwise.dim)
    c.dim = f.integer("head_dim", 1, otherwise.dim);
  else
    c.dim = divided_width(f, c);
  c.norm = NormKind::rms, c.eps = f.number("rms_norm_eps", 1e-6);
  c.act = act_of(f, "hidden_act", "silu"), c.gated = true;
  c.rotary = rotary_of(f, c), c.tied = f.truth("tie_word_embeddings", false);
}

const Family kLlama{.word = "llama", .read = read_llama, .names = kLlamaNames, .known = kKnownLlama};
const Family kMistral{.word = "mistral", .read = read_mistral, .names = kLlamaNames, .known = kKnownMistral};
const Family kQwen2{.word = "qwen2", .read = read_qwen2, .names = kLlamaNames, .known = kKnownQwen2};

}  // namespace attune::models
