// SPDX-License-Identifier: Apache-2.0
// What a language model needs beyond the operations of its layers (machine/layer_ops.h): the embedding, activations
// that Hugging Face has, the loss and AdamW. They run on the CPU; on a GPU they refuse, until kernels of them exist.
// Sums are f32 and in an order that depends on the shape alone.
#pragma once
#include "core/tensor.h"
#include "models/config.h"

namespace attune::models {

// out [batch, seq, 1, dim] = scale * table[token] + positions[position of the row]. tokens: [batch * seq] i32.
// `positions` is optional; row s of sequence b has position first[b] + s.
struct Embed {
  Tensor tokens{}, table{}, positions{}, first{}, out{};  // first: [batch] i32, optional: 0
  float scale = 1.f;
};
// d_table and d_positions (f32) are added to.
struct EmbedBackward {
  Tensor tokens{}, d_out{}, d_table{}, d_positions{};
  float scale = 1.f;
};

// out = act(x), or with `gated` act(first half of x) * second half. Backward: dx = gradient + keep * dx.
struct Gate {
  Tensor x{}, out{}, d_out{}, dx{};
  Act act = Act::gelu_tanh;
  bool gated = false;
  float keep = 0.f;
};

// The cross-entropy of rows of logits [rows, vocab] f32, after softcap * tanh(logit / softcap). losses: [rows] f32.
// With `factor` the logits become their gradients times that. A target below 0 has no loss.
struct CrossEntropy {
  Tensor logits{}, targets{}, losses{};  // targets: [rows] i32
  float softcap = 0.f, factor = 0.f;
};

// logits = softcap * tanh(logits / softcap)
struct Softcap {
  Tensor logits{};
  float softcap = 0.f;
};

// Decoupled weight decay, as torch.optim.AdamW. All are compact and have one extent; moments and gradient are f32.
struct AdamW {
  Tensor parameter{}, gradient{}, first{}, second{};
  float rate = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, decay = 0.01f;
  int64_t step = 1;
};

Status embed(const Embed&, void* stream);
Status embed_backward(const EmbedBackward&, void* stream);
Status activate(const Gate&, void* stream);
Status activate_backward(const Gate&, void* stream);
Status cross_entropy(const CrossEntropy&, void* stream);
Status softcap(const Softcap&, void* stream);
Status adamw(const AdamW&, void* stream);

}  // namespace attune::models
