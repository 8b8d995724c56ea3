// SPDX-License-Identifier: Apache-2.0
// The families of models, a file each. To add one: a file that ends in this table, and its line below.
#pragma once
#include <span>

#include "models/config.h"
#include "models/json.h"

namespace attune::models {

struct KnownModel { std::string_view name, json; };  // json: as in its config.json

struct Family {
  std::string_view word;               // model_type of config.json
  void (*read)(Fields&, Config&);      // everything but the names; refusals go into the fields
  const Names& names;
  std::span<const KnownModel> known;
};

extern const Family kGpt2, kGptJ, kGptNeox, kLlama, kMistral, kQwen2, kGemma2;
inline constexpr const Family* kFamilies[] = {&kGpt2, &kGptJ, &kGptNeox, &kLlama, &kMistral, &kQwen2, &kGemma2};

// Shared by families. What a file leaves out has the value that transformers gives it; what is null is none.
// embed / heads, for a family without a head_dim of its own: one that differs is refused.
int divided_width(Fields&, const Config&);
Act act_of(Fields&, std::string_view name, std::string_view otherwise);
// A size with two names, as n_embd and hidden_size. The file may have both where they agree.
int size_of_either(Fields&, std::string_view name, std::string_view other, int64_t otherwise);
// rope_parameters, or rope_theta and rope_scaling of older files. A family may have older names of its own for the base
// and for the rotated share of the dims; without a name for the share all dims are rotated.
struct RotaryNames {
  std::string_view theta{}, share{};
  double otherwise = 1;
};
RotaryShape rotary_of(Fields&, const Config&, const RotaryNames& older = {});
// sliding_window, unless the file says otherwise of so many keys, and the layers that have one: layer_types, or
//   all          all of them, whatever layer_types says
//   alternating  every other layer from the first
//   late         those from max_window_layers on, where use_sliding_window is true
enum class Windows : int32_t { all, alternating, late };
void windows_of(Fields&, Config&, Windows);
// What Llama, Mistral and Qwen2 have in common, and their names. A file may leave out heads_kv (0: it has the value of
// heads) and dim (0: embed / heads).
struct LlamaDefaults {
  int heads_kv = 0, dim = 0;
};
void read_llama_like(Fields&, Config&, const LlamaDefaults& = {});
extern const Names kLlamaNames;

}  // namespace attune::models
