// SPDX-License-Identifier: Apache-2.0
// The modes of `attune model`, a file each.
#pragma once
#include <string>
#include <vector>

#include "models/generate.h"
#include "models/train.h"
#include "tool/json.h"
#include "tool/model/asked.h"

namespace attune {

// A model to run: its weights are those of a folder, or random by seed.
Status open_model(const ModelAsked&, const models::Config&, const Device&, std::unique_ptr<models::Model>& out);
std::vector<int> prompt_lengths(const ModelAsked&);  // of each sequence
std::string about(const models::Config&);     // "6.74 G parameters, 32 layers of width 4096, ..."

Status generate_text(const ModelAsked&, models::Model&, Context&);
Status train_model(const ModelAsked&, models::Model&, Context&);
Status check_numbers(const ModelAsked&, models::Model&, Context&, bool& right);
Status show_memory(const ModelAsked&, const models::Config&, DType, const Device&, Context&);

// How far results are from those of a file: the norm of the difference over the norm of the file's.
struct Deviation {
  std::string what{};
  double error = 0;
  bool right = true;
};
// Compares logits, loss, gradients and greedy tokens with those in a safetensors file: `tokens` [batch, len], `logits`
// [batch, len, vocab], `loss` [1], `gradient.<name>`, and `greedy` [batch, count] after the tokens of `prompt` [batch,
// len]. Every number may be of any floating dtype. What the file lacks is not compared.
Status compare_numbers(models::Model&, const models::Attention&, const std::string& path, std::vector<Deviation>& out);

}  // namespace attune
