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

// Shared by families. `head_dim` of the file, else embed / heads.
int head_dim_of(Fields&, const Config&);
Act act_of(Fields&, std::string_view name, std::string_view otherwise);
// rope_parameters, or rope_theta and rope_scaling of older files; `fraction` of the dims is rotated unless the file
// says otherwise.
RotaryShape rotary_of(Fields&, int dim, double fraction, Pairs);
// sliding_window and layer_types; `alternating`: every other layer from the first, unless layer_types says otherwise.
enum class Windows : int32_t { none, all, alternating };
void windows_of(Fields&, Config&, Windows);
// What Llama, Mistral and Qwen2 have in common, and their names.
void read_llama_like(Fields&, Config&);
extern const Names kLlamaNames;

}  // namespace attune::models
