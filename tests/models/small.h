// SPDX-License-Identifier: Apache-2.0
// The small models of tests/models/data, one of each family, made by scripts/model_numbers.py.
#pragma once
#include <gtest/gtest.h>

#include "machine/host.h"
#include "models/checkpoint.h"

namespace attune::models {

inline const char* const kSmall[] = {"gpt2", "gptj", "gpt_neox", "llama", "mistral", "qwen2", "gemma2"};

inline std::string small_folder(const std::string& family) {
  return std::string(ATTUNE_SOURCE_DIR "/tests/models/data/") + family;
}

// With the weights of the folder, or random by seed.
inline std::unique_ptr<Model> small_model(const std::string& family, int64_t seed = -1, DType dtype = DType::f32) {
  Config c;
  EXPECT_EQ(find_config(small_folder(family), c).message, "");
  Device cpu;
  EXPECT_EQ(device_named("cpu", cpu).message, "");
  std::unique_ptr<Model> model;
  EXPECT_EQ(Model::make(c, dtype, cpu, seed, model).message, "");
  if (seed >= 0) return model;
  EXPECT_EQ(load_checkpoint(*model, small_folder(family)).message, "");
  return model;
}

inline std::vector<std::byte> bytes_of(const Model& model) {
  std::vector<std::byte> all;
  for (const ModelParameter& p : model.parameters()) {
    const size_t at = all.size();
    all.resize(at + size_t(p.count()) * size_t(size_of(model.dtype())));
    EXPECT_TRUE(model.read(p, all.data() + at).ok());
  }
  return all;
}

}  // namespace attune::models
