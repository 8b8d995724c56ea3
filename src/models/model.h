// SPDX-License-Identifier: Apache-2.0
// A language model: the parameters of a Config on a device, by name, and what training and generation share. Layers are
// alike, so their parameters follow each other at one distance.
#pragma once
#include <memory>

#include "models/layer.h"

namespace attune::models {

struct ModelParameter {
  std::string name{};             // in a checkpoint
  std::vector<int64_t> shape{};   // here
  Layout layout = Layout::as_here;
  size_t at = 0, gradient_at = 0; // bytes; gradients are f32
  Init init{};
  int64_t count() const;
  std::vector<int64_t> file_shape(const Config&) const;
};

// Which tensors of a model are not in a layer.
enum class Outer : int32_t { embed, positions, norm_weight, norm_bias, head, head_bias, count };

class Model {
 public:
  // Random parameters by seed; with `seed` below 0 they are left zero, for a checkpoint to fill.
  static Status make(const Config&, DType, const Device&, int64_t seed, std::unique_ptr<Model>& out);

  const Config& config() const { return config_; }
  DType dtype() const { return dtype_; }
  const Device& device() const { return device_; }
  std::span<const Rule> rules() const { return tuned_; }
  const std::vector<ModelParameter>& parameters() const { return parameters_; }
  size_t parameter_bytes() const { return bytes_; }
  size_t gradient_bytes() const { return gradient_bytes_; }

  std::byte* parameters_at() const { return memory_.data(); }
  Status gradients(std::byte*& out);                   // allocated and cleared on first use
  size_t layer_at(int n) const { return outer_bytes_ + size_t(n) * layer_bytes_; }
  size_t layer_gradient_at(int n) const { return outer_gradient_bytes_ + size_t(n) * layer_gradient_bytes_; }
  Tensor outer(Outer) const;                           // null data if the model has none
  Tensor outer_gradient(Outer) const;
  Status write(const ModelParameter&, const void* from);  // a whole parameter, as it lies here
  Status read(const ModelParameter&, void* to) const;
  Status read_gradient(const ModelParameter&, float* to) const;

  // x [batch, len, 1, embed] from tokens [batch * len] i32 on the device. `first` [batch] i32: positions of the first
  // tokens; none: 0.
  Status embed_tokens(const Tensor& tokens, const Tensor& first, const Tensor& x, void* stream) const;
  // logits [rows, vocab] f32 of rows that are normalized already.
  Status head(const Tensor& rows, const Tensor& logits, void* scratch, void* stream) const;
  // What the final norm multiplies by: its weight, or 1 + weight in memory of the model.
  Status norm_factor(Tensor& out, void* stream) const;
  Status final_norm(const Tensor& x, const Tensor& out, const Tensor& stat, void* stream) const;

 private:
  Status place();
  Status initialise(int64_t seed);
  void declare_outer(Graph&);

  Config config_{};
  DType dtype_ = DType::f32;
  Device device_{};
  std::vector<Rule> tuned_{};
  std::vector<ModelParameter> parameters_{};
  struct Place { size_t at = 0, gradient_at = 0; Extents extent{}; bool there = false; };
  Place outer_[int(Outer::count)]{};
  size_t outer_bytes_ = 0, outer_gradient_bytes_ = 0, layer_bytes_ = 0, layer_gradient_bytes_ = 0;
  size_t bytes_ = 0, gradient_bytes_ = 0;
  Storage memory_{}, gradients_{}, factor_{};
};

// A tensor [1, rows, 1, width] or of any extent over memory of a device.
Tensor tensor_at(void* data, DType, const Extents&, const Device&);

}  // namespace attune::models
