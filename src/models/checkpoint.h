// SPDX-License-Identifier: Apache-2.0
// Checkpoints of Hugging Face: a folder with config.json and safetensors, in one file (model.safetensors) or in shards
// with an index (model.safetensors.index.json). Parameters have the names and shapes of the family there.
#pragma once
#include "models/model.h"

namespace attune::models {

// Loads all parameters, rounded once to the model's dtype. Every name, shape and dtype of every shard is checked before
// anything is written, so that a folder that does not fit changes nothing.
Status load_checkpoint(Model&, const std::string& folder);

struct SaveSettings { uint64_t most_shard_bytes = uint64_t(5) << 30; };
// Saves the model to a folder beside the target, and exchanges the two in one step: a process that ends at any time
// leaves a whole checkpoint there, the old one or the new one. Other files of the folder stay, and its mode. The dtype
// in config.json becomes that of the saved weights.
Status save_checkpoint(const Model&, const std::string& folder, const SaveSettings& = {});

// What save_checkpoint would refuse of the folder, before the work that leads to it.
Status can_save(const std::string& folder);
// A folder with weights in other formats alone, which would be overlooked, is refused.
Status has_weights(const std::string& folder, bool& out);

// The elements of a parameter, `size` bytes each, in the order of a checkpoint.
void to_file_order(const Config&, const ModelParameter&, size_t size, const std::byte* here, std::byte* there);

}  // namespace attune::models
