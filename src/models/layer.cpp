// SPDX-License-Identifier: Apache-2.0
#include "models/layer.h"

#include <cmath>
#include <cstring>

#include "machine/cuda/runtime.h"
#include "machine/tensor_ops.h"
#include "models/ops.h"
#include "modules/attend.h"
#include "modules/steps.h"

namespace attune::models {
namespace {

constexpr double kDeviation = 0.02;  // of initial matrices, as in GPT-2

// The activations that modules do not have.
class Gated : public Step {
 public:
  Gated(int x, int out, Act act, bool gated) : x_(x), out_(out), act_(act), gated_(gated) {
    inputs = {x}, outputs = {out};
  }
  Status forward(const Run& r) const override {
    return activate({.x = r.value(x_), .out = r.value(out_), .act = act_, .gated = gated_}, r.stream);
  }
  Status backward(const Run& r) const override {
    return activate_backward({.x = r.value(x_), .d_out = r.gradient(out_), .dx = r.gradient(x_), .act = act_,
                              .gated = gated_, .keep = keep[0]}, r.stream);
  }

 private:
  int x_, out_;
  Act act_;
  bool gated_;
};

// out = x + plus
class Sum : public Step {
 public:
  Sum(int x, int plus, int out) : x_(x), plus_(plus), out_(out) { inputs = {x, plus}, outputs = {out}, passes = 1; }
  Status forward(const Run& r) const override {
    if (Status s = scale_add(r.value(x_), 1.f, r.value(out_), 0.f, r.stream); !s.ok()) return s;
    return add(r.value(plus_), r.value(out_), r.stream);
  }
  Status backward(const Run& r) const override {
    const Tensor given = r.gradient(out_), residual = r.gradient(plus_);
    if (Status s = scale_add(given, 1.f, r.gradient(x_), keep[0], r.stream); !s.ok()) return s;
    if (residual.data == given.data) return Status::good();
    return scale_add(given, 1.f, residual, keep[1], r.stream);
  }

 private:
  int x_, plus_, out_;
};

enum class Tables { filled, sized };  // constants: as they are, or their sizes alone

struct Builder {
  const Config& c;
  const LayerShape& shape;
  DType dtype;
  const Attention& attention;
  std::span<const Rule> rules;
  Layer& layer;
  Tables tables;
  Graph& g = layer.graph;
  Status failed{};

  static Init normal(double deviation) { return {Init::xavier, 2, deviation}; }
  double residual_deviation() const { return kDeviation / std::sqrt(2. * c.layers); }

  struct Part { std::string_view name; int rows; };
  int linear(int x, int in, std::initializer_list<Part> parts, bool bias, double deviation, int plus = -1) {
    std::vector<Graph::Named> weights, biases;
    int out = 0;
    for (const Part& p : parts) {
      weights.push_back({join(p.name, ".weight"), p.rows, normal(deviation)});
      biases.push_back({join(p.name, ".bias"), p.rows, {}});
      out += p.rows;
    }
    const int w = g.matrix(weights, in, dtype), b = bias ? g.matrix(biases, 0, dtype) : -1;
    const int to = g.value(row_extent(shape.batch, shape.len, out), dtype);
    g.step<Linear>(g, x, w, b, plus, to);
    return to;
  }
  int norm(int x, std::string_view name) {
    const Init one{.kind = c.norm_adds_one ? Init::zero : Init::one};
    const int w = g.matrix({{join(name, ".weight"), c.embed, one}}, 0, dtype);
    const int b = c.norm == NormKind::layer ? g.matrix({{join(name, ".bias"), c.embed, {}}}, 0, dtype) : -1;
    const int to = g.value(row_extent(shape.batch, shape.len, c.embed), dtype);
    g.step<Norm>(g, x, w, b, to, c.norm, float(c.eps), c.norm_adds_one ? Norm::Factor::add_one : Norm::Factor::weight);
    return to;
  }
  int sum(int x, int plus) {
    const int to = g.value(g.values[size_t(x)].extent, dtype);
    g.step<Sum>(x, plus, to);
    return to;
  }

  Problem problem() const {
    const bool cached = shape.capacity > 0;
    Problem p;
    p.dtype = {dtype, dtype, dtype, DType::none, DType::none};
    p.batch = shape.batch, p.heads_q = c.heads, p.heads_kv = c.heads_kv, p.dim_qk = p.dim_v = c.dim;
    p.len_q = shape.len, p.len_k = cached ? shape.capacity : shape.len;
    p.mask.kind = MaskKind::causal;
    if (shape.windowed) p.mask.kind = MaskKind::window, p.mask.left = c.window - 1;
    if (c.softcap > 0) p.set(Option::softcap);
    if (cached) p.set(Option::append);
    if (cached && c.rotary.dims) p.set(c.rotary.pairs == Pairs::halves ? Option::rotary_half : Option::rotary);
    return p;
  }
  void cache(std::vector<Source>& sources) {
    const Extents e{shape.slots, shape.capacity, c.heads_kv, c.dim}, one{shape.batch, 1, 1, 1};
    sources.push_back({.name = "k", .value = g.input(Argument::k_cache, e, dtype)});
    sources.push_back({.name = "v", .value = g.input(Argument::v_cache, e, dtype)});
    sources.push_back({.name = "used_k", .value = g.input(Argument::used_k, one, DType::i32)});
    sources.push_back({.name = "cache_index", .value = g.input(Argument::cache_index, one, DType::i32)});
  }

  int attend(int x) {
    const int q_width = c.heads * c.dim, k_width = c.heads_kv * c.dim;
    const Names& n = c.names;
    const int all = n.qkv.empty()
                        ? linear(x, c.embed, {{n.q, q_width}, {n.k, k_width}, {n.v, k_width}}, c.bias_qkv, kDeviation)
                        : linear(x, c.embed, {{n.qkv, q_width + 2 * k_width}}, c.bias_qkv, kDeviation);
    const int q = g.piece(all, 0, c.heads, c.dim), k = g.piece(all, q_width, c.heads_kv, c.dim);
    const int v = g.piece(all, q_width + k_width, c.heads_kv, c.dim);
    const bool cached = shape.capacity > 0;
    std::vector<Source> sources{{.name = "q", .value = q}, {.name = cached ? "k_new" : "k", .value = k},
                                {.name = cached ? "v_new" : "v", .value = v}};
    if (cached) cache(sources);
    if (c.rotary.dims) {
      std::vector<float> cosines, sines;
      const int rows = cached ? shape.capacity : shape.len;
      if (tables == Tables::filled) rotary_tables(c.rotary, rows, cosines, sines);
      const auto data = [](const std::vector<float>& of) { return of.empty() ? nullptr : of.data(); };
      const Extents e{1, rows, 1, c.rotary.dims / 2};
      const int cos = g.constant(DType::f32, e, data(cosines)), sin = g.constant(DType::f32, e, data(sines));
      sources.push_back({.name = "rotary_cos", .constant = cos});
      sources.push_back({.name = "rotary_sin", .constant = sin});
      const bool halves = c.rotary.pairs == Pairs::halves;
      if (!cached)
        for (const int one : {q, k}) g.step<Rotary>(g, one, cos, sin, halves, Shards{.tokens = rows});
      if (!cached) sources.resize(3);
    }
    const int rows = g.value(row_extent(shape.batch, shape.len, q_width), dtype);
    Attend* step = nullptr;
    const Problem p = filled(problem());
    failed = valid(p);
    if (failed.ok())
      failed = Attend::make(g, p, rules, sources,
                            {.softcap = float(c.softcap), .scale = float(c.scale),
                             .backend = attention.backend(g.device)},
                            g.piece(rows, 0, c.heads, c.dim), step);
    if (!failed.ok()) return x;
    layer.why = step->why();
    return rows;
  }
  int feed_forward(int x, int plus) {
    const Names& n = c.names;
    const int inside = c.gated ? linear(x, c.embed, {{n.gate, c.ffn}, {n.up, c.ffn}}, c.bias_mlp, kDeviation)
                               : linear(x, c.embed, {{n.up, c.ffn}}, c.bias_mlp, kDeviation);
    const int active = g.value(row_extent(shape.batch, shape.len, c.ffn), dtype);
    if (c.gated && c.act == Act::silu) g.step<Activated>(g, inside, active, Activation::swiglu);
    else if (!c.gated && c.act == Act::gelu) g.step<Activated>(g, inside, active, Activation::gelu);
    else if (!c.gated && c.act == Act::silu) g.step<Activated>(g, inside, active, Activation::silu);
    else if (!c.gated && c.act == Act::relu) g.step<Activated>(g, inside, active, Activation::relu);
    else g.step<Gated>(inside, active, c.act, c.gated);
    return linear(active, c.ffn, {{n.down, c.embed}}, c.bias_mlp, residual_deviation(), plus);
  }

  int build() {
    const Names& n = c.names;
    const int x = g.input(Argument::x, row_extent(shape.batch, shape.len, c.embed), dtype);
    const int normal = norm(x, n.norm1), rows = attend(normal), q_width = c.heads * c.dim;
    if (!failed.ok()) return x;
    int h = linear(rows, q_width, {{n.out, c.embed}}, c.bias_out, residual_deviation(), c.post_norms ? -1 : x);
    if (c.post_norms) h = sum(norm(h, n.post1), x);
    const int second = c.residual == Residual::parallel_one_norm ? normal
                       : norm(c.residual == Residual::parallel ? x : h, n.norm2);
    if (c.post_norms) return sum(norm(feed_forward(second, -1), n.post2), h);
    return feed_forward(second, h);
  }
};

Status build_layer(const Config& c, const LayerShape& shape, DType dtype, const Attention& attention, const Device& d,
                   std::span<const Rule> rules, Tables tables, Layer& out) {
  out.graph.batch = shape.batch, out.graph.len = shape.len, out.graph.device = d;
  Builder b{
      .c = c, .shape = shape, .dtype = dtype, .attention = attention, .rules = rules, .layer = out, .tables = tables};
  const int last = b.build();
  if (b.failed.ok()) out.graph.finish(last);
  return b.failed;
}

}  // namespace

std::string Attention::backend(const Device& d) const {
  if (text == "auto") return "";
  if (text == "standard") return d.kind == DeviceKind::cuda ? "cuda_standard" : "cpu_standard";
  return text;
}

Status plan_layer(const Config& c, const LayerShape& shape, DType dtype, const Attention& attention, const Device& d,
                  std::span<const Rule> rules, Layer& out) {
  return build_layer(c, shape, dtype, attention, d, rules, Tables::sized, out);
}

Status make_layer(const Config& c, const LayerShape& shape, DType dtype, const Attention& attention, const Device& d,
                  std::span<const Rule> rules, Layer& out) {
  if (Status s = build_layer(c, shape, dtype, attention, d, rules, Tables::filled, out); !s.ok()) return s;
  if (Status s = out.constants.allocate(d, out.graph.constant_bytes); !s.ok()) return s;
  for (Constant& one : out.graph.constants) {
    std::byte* const to = out.constants.data() + one.at;
    if (d.kind == DeviceKind::cpu) std::memcpy(to, one.bytes.data(), one.bytes.size());
    else if (Status s = cuda::copy_to(to, one.bytes.data(), one.bytes.size(), nullptr); !s.ok()) return s;
    one.bytes = {};
  }
  return Status::good();
}

}  // namespace attune::models
