// SPDX-License-Identifier: Apache-2.0
// Training of a model at one batch and length: the loss, all gradients, and AdamW. A step allocates nothing. Logits
// exist for some rows at a time: their gradient follows from them at once, so that of the head and of the last rows is
// computed together with the loss.
#pragma once
#include <functional>

#include "models/model.h"

namespace attune::models {

struct TrainSettings {
  int batch = 1, len = 1;
  Attention attention{};
  bool checkpointing = false;  // keep only the input of each layer, and compute the layer again in the backward
};

struct AdamWSettings { float rate = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, decay = 0.01f; };

// Bytes by owner.
struct TrainBytes {
  size_t weights = 0, gradients = 0, moments = 0;
  size_t activations = 0;      // what a forward keeps for its backward: tapes and inputs of layers
  size_t workspace = 0;        // the largest of a layer, the logits, the gradients of two rows of activations
  size_t total() const { return weights + gradients + moments + activations + workspace; }
};

class Training {
 public:
  static Status make(Model&, const TrainSettings&, std::unique_ptr<Training>& out);
  // Sizes alone, of a model that need not exist, for any device.
  static Status measure(const Config&, DType, const Device&, std::span<const Rule>, const TrainSettings&,
                        TrainBytes& out);

  // The mean loss of the next token over all tokens but the last of each sequence, and the gradients of all parameters.
  // tokens: batch * len.
  Status gradients(std::span<const int32_t> tokens, double& loss);
  Status update(const AdamWSettings&);  // one step of AdamW; allocates the moments first
  // Logits [batch * len, vocab] of a forward alone.
  Status logits(std::span<const int32_t> tokens, std::vector<float>& out);
  const TrainBytes& bytes() const { return bytes_; }
  const std::string& why() const { return layers_[0] ? layers_[0]->why : layers_[1]->why; }
  // Called before every part of a step: "embed", "layer 3", "head", ...
  std::function<void(const std::string&)> watch{};

 private:
  struct Places { size_t x = 0, rows = 0, stat = 0, d_rows = 0, d_other = 0, logits = 0, narrow = 0, losses = 0,
                         tokens = 0, targets = 0, tapes = 0, work = 0, end = 0; };
  Status plan(const Config&, DType, const Device&, std::span<const Rule>, bool allocate);
  Status place(const Config&, DType, const Device&);
  Status copy_in(std::span<const int32_t> tokens);
  Status forward();
  Status head(double& loss);
  Status head_backward();
  Status backward_layer(int n, const Tensor& d_out, const Tensor& dx);
  Tensor x_of(int layer) const;
  Tensor rows_at(size_t at) const;
  Run run_of(int layer, bool lean) const;
  const Layer& layer(int n) const { return *layers_[model_->config().windowed[size_t(n)]]; }
  void at(const std::string& what) const { if (watch) watch(what); }

  Model* model_ = nullptr;
  TrainSettings settings_{};
  std::unique_ptr<Layer> layers_[2]{};  // without and with a window
  Places place_{};
  TrainBytes bytes_{};
  size_t tape_bytes_ = 0;
  int chunk_ = 1;                       // rows of logits
  Storage memory_{}, first_{}, second_{};
  std::vector<int32_t> targets_{};
  std::vector<float> losses_{};
  int64_t steps_ = 0;
};

}  // namespace attune::models
