// SPDX-License-Identifier: Apache-2.0
// Generation with a static cache: some sequences, each with its own length, over one piece of memory per layer. A
// prompt runs as one call per sequence, or one call for all where lengths are equal; then every step appends one token
// to each sequence.
#pragma once
#include <algorithm>
#include <functional>
#include <map>

#include "models/model.h"

namespace attune::models {

// How the next token follows from its logits: the greatest (temperature 0), or at random by seed.
struct Sampling {
  double temperature = 0;
  int top = 0;          // only from so many of the greatest; 0: from all
  int64_t seed = 0;
};
// `place` counts the tokens of a text: the choice depends on seed, sequence and place alone.
int32_t next_token(std::span<const float> logits, const Sampling&, int sequence, int64_t place);

// Tokens by seed, the same on every machine.
std::vector<int32_t> random_tokens(int vocab, int count, int64_t seed, int sequence);

struct CacheBytes {
  size_t cache = 0;
  size_t workspace = 0;  // of the widest call, and the constants of all
};

struct CacheShape {
  int sequences = 1, capacity = 1, prompt = 1;
  int at_once = 1;  // prompts in one call: `sequences` where their lengths are equal, else 1
  Attention attention{};
};

class Generation {
 public:
  // A cache for `sequences` texts of up to `capacity` tokens each.
  static Status make(Model&, int sequences, int capacity, const Attention&, std::unique_ptr<Generation>& out);

  // Appends tokens to sequences: texts[n] to sequence n, each with at least one. logits: [texts, vocab], of the last
  // token of each. Refuses what does not fit, before anything changes.
  Status append(std::span<const std::span<const int32_t>> texts, std::vector<float>& logits);
  int length(int sequence) const { return lengths_[size_t(sequence)]; }
  void clear() { std::fill(lengths_.begin(), lengths_.end(), 0); }
  CacheBytes bytes() const { return bytes_; }
  // Sizes alone, of a model that need not exist: those of a prompt of `prompt` tokens and the steps after it.
  static Status measure(const Config&, DType, const Device&, std::span<const Rule>, const CacheShape&, CacheBytes& out);
  const std::string& why() const { return why_; }  // of the last call

 private:
  struct Stage {
    std::unique_ptr<Layer> layers[2]{};
    size_t lean = 0, constants = 0;
  };
  Status stage(int batch, int len, Stage*& out);
  // One call: `count` sequences from `first`, with `len` tokens each.
  Status run(int first, int count, int len, const int32_t* tokens, float* logits);
  Status layers(const Stage&, int first, int count, int len);

  Model* model_ = nullptr;
  int sequences_ = 0, capacity_ = 0;
  Attention attention_{};
  std::vector<int> lengths_{};
  std::map<std::pair<int, int>, Stage> stages_{};
  size_t row_bytes_ = 0;               // of one sequence in one cache of one layer
  Storage cache_{}, work_{};
  size_t work_bytes_ = 0;
  struct Places { size_t x = 0, y = 0, rows = 0, stat = 0, logits = 0, tokens = 0, used = 0, index = 0, work = 0,
                         end = 0; } place_{};
  CacheBytes bytes_{};
  std::string why_{};
};

// Generates `count` tokens after each prompt. `tell` is called after the prompts and after each step.
Status generate(Generation&, std::span<const std::vector<int32_t>> prompts, int count, const Sampling&,
                std::vector<std::vector<int32_t>>& out, const std::function<void(int)>& tell);

}  // namespace attune::models
