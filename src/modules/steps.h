// SPDX-License-Identifier: Apache-2.0
// The steps of modules other than attention. Each declares its inputs and outputs at construction; forward and backward
// look up the tensors in the Run.
#pragma once
#include "core/variant/shard.h"
#include "machine/layer_ops.h"
#include "modules/graph.h"

namespace attune {

// out = x weight' + bias + plus: [rows, outputs] = [rows, inputs] [outputs, inputs]'. out may be f32 if x is not.
// `bias` and `plus` (a value: the residual) may be -1.
class Linear : public Step {
 public:
  Linear(const Graph&, int x, int weight, int bias, int plus, int out);
  Status forward(const Run&) const override;
  Status backward(const Run&) const override;
  size_t scratch(Pass) const override { return scratch_; }

 private:
  int x_, weight_, bias_, plus_, out_;
  size_t copy_bytes_ = 0, scratch_ = 0;  // for a gradient in x's dtype
};

// With Factor::add_one, rows are multiplied by 1 + weight.
class Norm : public Step {
 public:
  enum class Factor : int32_t { weight, add_one };
  Norm(Graph&, int x, int weight, int bias, int out, NormKind, float eps, Factor = Factor::weight);
  Status forward(const Run&) const override;
  Status backward(const Run&) const override;
  size_t scratch(Pass) const override { return factor_bytes_ + scratch_; }

 private:
  Status factor(const Run&, Tensor& out) const;
  int x_, weight_, bias_, out_, stat_;
  NormKind kind_;
  float eps_;
  size_t factor_bytes_ = 0, scratch_ = 0;  // the factor, then sums
};

// Rotates the queries and keys of a projection in place. Tables cover all tokens. Over several ranks each uses the
// tokens of its shard, which the call's communicator determines.
class Rotary : public Step {
 public:
  Rotary(const Graph&, int x, int cos, int sin, bool halves, const Shards&);
  Status forward(const Run& r) const override { return apply(r.value(x_), r, false); }
  Status backward(const Run& r) const override { return apply(r.gradient(x_), r, true); }

 private:
  Status apply(const Tensor&, const Run&, bool inverse) const;
  int x_, cos_, sin_;
  bool halves_;
  Shards shards_;
};

class Activated : public Step {
 public:
  Activated(const Graph&, int x, int out, Activation);
  Status forward(const Run&) const override;
  Status backward(const Run&) const override;

 private:
  int x_, out_;
  Activation kind_;
};

class Dropped : public Step {
 public:
  Dropped(const Graph&, int x, int out, float p, uint32_t layer);
  Status forward(const Run&) const override;
  Status backward(const Run&) const override;  // x has no other reader

 private:
  int x_, out_;
  float p_;
  uint32_t layer_;
};

class MeanOfGroup : public Step {
 public:
  MeanOfGroup(const Graph&, int x, int out);
  Status forward(const Run&) const override;
  Status backward(const Run&) const override;

 private:
  int x_, out_;
};

}  // namespace attune
