// SPDX-License-Identifier: Apache-2.0
#include "modules/steps.h"

#include <algorithm>

#include "machine/gemm.h"
#include "machine/tensor_ops.h"
#include "variants/ring/ring.h"

namespace attune {
namespace {

int64_t rows_of(const Tensor& t) { return int64_t(t.extent.batch) * t.extent.seq * t.extent.head; }
// The row pitch of a tensor with evenly spaced rows, as all values have.
int64_t pitch(const Tensor& t) {
  return t.extent.head > 1 ? t.stride.head : t.extent.seq > 1 ? t.stride.seq : t.extent.batch > 1 ? t.stride.batch
                                                                                                 : t.extent.dim;
}
Extents extent_of(const Graph& g, int v) { return g.values[size_t(v)].extent; }
size_t sum_bytes(const Graph& g, int v) { return column_bytes({.extent = extent_of(g, v)}); }

}  // namespace

Linear::Linear(const Graph& g, int x, int weight, int bias, int plus, int out)
    : x_(x), weight_(weight), bias_(bias), plus_(plus), out_(out) {
  inputs = {x}, outputs = {out};
  if (plus >= 0) inputs.push_back(plus), passes = 1;
  const Value &from = g.values[size_t(x)], &to = g.values[size_t(out)];
  const Extents e = to.extent;
  if (from.dtype != to.dtype)
    copy_bytes_ = size_t(round_up(int64_t(e.batch) * e.seq * e.head * e.dim * size_of(from.dtype), 256));
  scratch_ = copy_bytes_ + std::max(gemm_bytes(g.device), bias >= 0 ? sum_bytes(g, out) : 0);
}

Status Linear::forward(const Run& r) const {
  const Tensor x = r.value(x_), w = r.weight(weight_), out = r.value(out_);
  const Gemm product{.in = x.dtype, .out = out.dtype, .m = int32_t(rows_of(x)), .n = w.extent.seq, .k = w.extent.dim,
                     .y_transposed = true, .pitch_x = pitch(x), .pitch_y = w.extent.dim, .pitch_to = w.extent.seq,
                     .x = x.data, .y = w.data, .plus = plus_ >= 0 ? r.value(plus_).data : nullptr, .to = out.data,
                     .beta = plus_ >= 0 ? 1.f : 0.f, .tf32 = r.graph.tf32};
  if (Status s = gemm(r.graph.device, product, r.scratch, r.stream); !s.ok() || bias_ < 0) return s;
  Tensor rows = out;  // a bias is as wide as all heads of a token
  rows.extent = {1, int32_t(rows_of(x)), 1, w.extent.seq}, rows.stride = compact(rows.extent);
  return add(r.weight(bias_), rows, r.stream);
}

Status Linear::backward(const Run& r) const {
  const Tensor x = r.value(x_), w = r.weight(weight_), dx = r.gradient(x_), given = r.gradient(out_);
  Tensor dy = given;
  std::byte* scratch = r.scratch + copy_bytes_;
  const int32_t rows = int32_t(rows_of(x)), outputs = w.extent.seq, inputs = w.extent.dim;
  dy.extent = {1, rows, 1, outputs}, dy.stride = compact(dy.extent);
  if (copy_bytes_) {
    Tensor copy = dy;
    copy.data = r.scratch, copy.dtype = x.dtype;
    if (Status s = convert(dy, copy, r.stream); !s.ok()) return s;
    dy = copy;
  }
  const Gemm of_x{.in = x.dtype, .out = x.dtype, .m = rows, .n = inputs, .k = outputs, .pitch_x = outputs,
                  .pitch_y = inputs, .pitch_to = pitch(dx), .x = dy.data, .y = w.data, .to = dx.data, .beta = keep[0],
                  .tf32 = r.graph.tf32};
  if (Status s = gemm(r.graph.device, of_x, scratch, r.stream); !s.ok()) return s;
  if (r.parameter_gradients) {
    const Gemm of_w{.in = x.dtype, .out = DType::f32, .m = outputs, .n = inputs, .k = rows, .x_transposed = true,
                    .pitch_x = outputs, .pitch_y = pitch(x), .pitch_to = inputs, .x = dy.data, .y = x.data,
                    .to = r.weight_gradient(weight_).data, .beta = r.keep, .tf32 = r.graph.tf32};
    if (Status s = gemm(r.graph.device, of_w, scratch, r.stream); !s.ok()) return s;
  }
  if (bias_ >= 0 && r.parameter_gradients) {
    const ColumnSum sum{.x = dy, .sum = r.weight_gradient(bias_), .keep = r.keep,
                        .scratch = reinterpret_cast<float*>(scratch)};
    if (Status s = column_sum(sum, r.stream); !s.ok()) return s;
  }
  if (plus_ < 0) return Status::good();
  const Tensor residual = r.gradient(plus_);
  if (residual.data == given.data) return Status::good();
  return scale_add(given, 1.f, residual, keep[1], r.stream);
}

Norm::Norm(Graph& g, int x, int weight, int bias, int out, NormKind kind, float eps, Factor factor)
    : x_(x), weight_(weight), bias_(bias), out_(out), kind_(kind), eps_(eps), scratch_(sum_bytes(g, x)) {
  Extents e = extent_of(g, x);
  if (factor == Factor::add_one) factor_bytes_ = size_t(round_up(int64_t(e.dim) * 4, 256));
  e.dim = 2;
  stat_ = g.value(e, DType::f32);
  inputs = {x}, outputs = {out, stat_};
}

Status Norm::factor(const Run& r, Tensor& out) const {
  out = r.weight(weight_);
  if (!factor_bytes_) return Status::good();
  const Tensor weight = out;
  out.data = r.scratch;
  if (Status s = fill(out, 1.f, r.stream); !s.ok()) return s;
  return add(weight, out, r.stream);
}

Status Norm::forward(const Run& r) const {
  Tensor weight;
  if (Status s = factor(r, weight); !s.ok()) return s;
  return normalize({.x = r.value(x_), .weight = weight, .bias = bias_ >= 0 ? r.weight(bias_) : Tensor{},
                    .out = r.value(out_), .stat = r.value(stat_), .kind = kind_, .eps = eps_}, r.stream);
}

Status Norm::backward(const Run& r) const {
  const bool sums = r.parameter_gradients;
  Tensor weight;
  if (Status s = factor(r, weight); !s.ok()) return s;
  return normalize_backward({.x = r.value(x_), .weight = weight, .stat = r.value(stat_),
                             .d_out = r.gradient(out_), .dx = r.gradient(x_),
                             .d_weight = sums ? r.weight_gradient(weight_) : Tensor{},
                             .d_bias = sums && bias_ >= 0 ? r.weight_gradient(bias_) : Tensor{}, .kind = kind_,
                             .keep_dx = keep[0], .keep_sums = r.keep,
                             .scratch = reinterpret_cast<float*>(r.scratch + factor_bytes_)}, r.stream);
}

Rotary::Rotary(const Graph&, int x, int cos, int sin, bool halves, const Shards& shards)
    : x_(x), cos_(cos), sin_(sin), halves_(halves), shards_(shards) {
  inputs = {x}, outputs = {x}, in_place = true;
}

Status Rotary::apply(const Tensor& x, const Run& r, bool inverse) const {
  const auto rows = [](Tensor t, int64_t first, int count, int step) {
    t.data = row_address(t, 0, first, 0), t.extent.seq = count, t.stride.seq *= step;
    return t;
  };
  if (shards_.ranks == 1)
    return rotate({.x = x, .cos = r.constant(cos_), .sin = r.constant(sin_), .halves = halves_, .inverse = inverse},
                  r.stream);
  Communicator* comm = nullptr;
  int rank = 0;
  if (Status s = ring_detail::rank_of("module", shards_, r.communicator, comm, rank); !s.ok()) return s;
  if (x.extent.seq != shards_.count(rank))
    return Status::no("module: x has ", x.extent.seq, " tokens, but rank ", rank, " has ", shards_.count(rank),
                      " of the ", shards_.tokens);
  for (int n = 0; n < shards_.pieces(); ++n) {
    const Piece piece = shards_.piece(rank, n);
    if (!piece.count) continue;
    const auto table = [&](int which) { return rows(r.constant(which), piece.first, piece.count, piece.step); };
    if (Status s = rotate({.x = rows(x, shards_.first_row(rank, n), piece.count, 1), .cos = table(cos_),
                           .sin = table(sin_), .halves = halves_, .inverse = inverse}, r.stream); !s.ok())
      return s;
  }
  return Status::good();
}

Activated::Activated(const Graph&, int x, int out, Activation kind) : x_(x), out_(out), kind_(kind) {
  inputs = {x}, outputs = {out};
}
Status Activated::forward(const Run& r) const {
  return activate({.x = r.value(x_), .out = r.value(out_), .kind = kind_}, r.stream);
}
Status Activated::backward(const Run& r) const {
  return activate_backward({.x = r.value(x_), .d_out = r.gradient(out_), .dx = r.gradient(x_), .kind = kind_,
                            .keep = keep[0]}, r.stream);
}

Dropped::Dropped(const Graph&, int x, int out, float p, uint32_t layer) : x_(x), out_(out), p_(p), layer_(layer) {
  inputs = {x}, outputs = {out};
}
Status Dropped::forward(const Run& r) const {
  if (!r.seed.data) return scale_add(r.value(x_), 1.f, r.value(out_), 0.f, r.stream);  // no seed: no dropout
  return drop({.x = r.value(x_), .out = r.value(out_), .seed = r.seed, .p = p_, .layer = layer_}, r.stream);
}
Status Dropped::backward(const Run& r) const {
  if (!r.seed.data) return scale_add(r.gradient(out_), 1.f, r.gradient(x_), 0.f, r.stream);
  return drop({.x = r.gradient(out_), .out = r.gradient(x_), .seed = r.seed, .p = p_, .layer = layer_}, r.stream);
}

MeanOfGroup::MeanOfGroup(const Graph&, int x, int out) : x_(x), out_(out) { inputs = {x}, outputs = {out}; }
Status MeanOfGroup::forward(const Run& r) const {
  return group_mean({.x = r.value(x_), .out = r.value(out_)}, r.stream);
}
Status MeanOfGroup::backward(const Run& r) const {
  return group_mean({.x = r.gradient(x_), .out = r.gradient(out_), .backward = 1, .keep = keep[0]}, r.stream);
}

}  // namespace attune
