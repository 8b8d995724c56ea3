// SPDX-License-Identifier: Apache-2.0
// The modules, each a few lines of steps. Parameters have the names of Hugging Face's Llama and PyTorch's transformer
// layers, so checkpoints load by name. Matrices with a common input are stored together: q, k and v are one matrix, and
// so are gate and up of SwiGLU.
//
//   multihead        y = W_o LN?(attention(W_q x, W_k x, W_v x))
//   feed_forward     y = W_2 LN(drop(act(W_1 LN(x))))
//   longnet_encoder  y = x + multihead(LN(x));  z = y + feed_forward(y)
//   longnet_decoder  the same with y' = y + cross(LN(y), memory) in between. As in MAGNETO, the LayerNorm after
//                    attention is in the self-attention and not in the cross-attention
//   llama            y = x + multihead(RMS(x));  z = y + W_down (silu(W_gate RMS(y)) * W_up RMS(y))
#include "modules/build.h"

#include <cmath>

#include "core/variant/adaptive.h"
#include "core/variant/nsa.h"
#include "core/variant/ring.h"
#include "modules/attend.h"
#include "modules/lists.h"
#include "modules/steps.h"

namespace attune {
namespace {

constexpr Init kOne{.kind = Init::one}, kZero{.kind = Init::zero};

struct Builder {
  const Settings& s;
  std::span<const Rule> rules;
  Graph& g;
  std::string& why;
  Status failed{};
  double gain = 1;
  int layer = 0;                    // numbers the uses of dropout
  int cos = -1, sin = -1;           // rotary tables, shared by all layers
  Shards shards{};                  // division of the tokens; one rank holds all

  int tokens(int v) const { return g.values[size_t(v)].extent.seq; }
  int width(int v) const { return g.values[size_t(v)].extent.head * g.values[size_t(v)].extent.dim; }
  static Init xavier(int in, int out, double by = 1) { return {Init::xavier, double(in) + out, by}; }

  struct Part { std::string name; int rows; double gain = 1; };
  // x times the matrices of all parts, concatenated in the result.
  int linear(int x, const std::vector<Part>& parts, bool bias, int plus = -1, DType type = DType::none, int in = 0) {
    std::vector<Graph::Named> weights, biases;
    int out = 0;
    if (!in) in = width(x);
    for (const Part& p : parts) {
      weights.push_back({p.name + ".weight", p.rows, xavier(in, p.rows, p.gain)});
      biases.push_back({p.name + ".bias", p.rows, kZero});
      out += p.rows;
    }
    const int w = g.matrix(weights, in, s.dtype), b = bias ? g.matrix(biases, 0, s.dtype) : -1;
    Extents e = g.values[size_t(x)].extent;
    e.head = width(x) / in, e.dim = out;
    const int to = g.value(e, type == DType::none ? s.dtype : type);
    g.step<Linear>(g, x, w, b, plus, to);
    return to;
  }
  int norm(int x, const std::string& name, NormKind kind = NormKind::layer) {
    const int dim = width(x), w = g.matrix({{name + ".weight", dim, kOne}}, 0, s.dtype);
    const int b = kind == NormKind::layer ? g.matrix({{name + ".bias", dim, kZero}}, 0, s.dtype) : -1;
    const int to = g.value(row_extent(s.batch, tokens(x), dim), s.dtype);
    g.step<Norm>(g, x, w, b, to, kind, float(s.eps));
    return to;
  }
  int activated(int x, Activation kind) {
    Extents e = g.values[size_t(x)].extent;
    if (kind == Activation::swiglu) e.dim /= 2;
    const int to = g.value(e, s.dtype);
    g.step<Activated>(g, x, to, kind);
    return to;
  }

  // cos and sin of position / rope_scale * theta^(-2i / dim), one row per position of the whole sequence.
  void rotate(int x) {
    if (s.rope == Rope::no) return;
    if (cos < 0) {
      const int half = s.dim / 2;
      std::vector<float> c(size_t(shards.tokens) * size_t(half)), n(c.size());
      for (int p = 0; p < shards.tokens; ++p)
        for (int i = 0; i < half; ++i) {
          const double angle = p / s.rope_scale * std::pow(s.theta, -2. * i / s.dim);
          c[size_t(p) * size_t(half) + size_t(i)] = float(std::cos(angle));
          n[size_t(p) * size_t(half) + size_t(i)] = float(std::sin(angle));
        }
      const Extents e{1, shards.tokens, 1, half};
      cos = g.constant(DType::f32, e, c.data()), sin = g.constant(DType::f32, e, n.data());
    }
    g.step<Rotary>(g, x, cos, sin, s.rope == Rope::half, shards);
  }

  // The gate logits of Native Sparse Attention. Softmax gates come from the mean query of a GQA group through a small
  // MLP; sigmoid gates come from the input through one matrix.
  int gates(const Nsa& nsa, const std::string& at, int x, int q) {
    if (nsa.gate == GateOf::sigmoid) {
      const int all = linear(x, {{at + "gate", 3 * s.heads}}, true, -1, DType::f32);
      return g.piece(all, 0, s.heads, 3);
    }
    const int mean = g.value({s.batch, s.len, s.heads_kv, s.dim}, s.dtype);
    g.step<MeanOfGroup>(g, q, mean);
    const int inside = linear(mean, {{at + "gate.fc1", std::max(1, s.dim / 2)}}, true, -1, DType::none, s.dim);
    return linear(activated(inside, Activation::silu), {{at + "gate.fc2", 3}}, true, -1, DType::f32,
                  std::max(1, s.dim / 2));
  }
  // The weights of a compression, under the variant's names.
  void compression(const Nsa& nsa, const std::string& at, const std::string& suffix, int dim,
                   std::vector<Source>& sources) {
    const int hidden = nsa.width(dim), l = nsa.l;
    const auto add = [&](const std::string& name, std::vector<int64_t> shape, Extents e, Init init) {
      const std::string of = join("phi_", suffix, ".", name);
      sources.push_back(
          {.name = name, .weight = g.weight(at + of, std::move(shape), e, DType::f32, init)});
    };
    if (nsa.phi == Phi::conv) add("taps", {l, s.heads_kv, dim}, {1, l, s.heads_kv, dim}, {Init::constant, 0, 1. / l});
    if (nsa.phi != Phi::mlp) return;
    add("position", {l, dim}, {1, l, 1, dim}, kZero);
    add("w1", {hidden, l, dim}, {1, hidden, l, dim}, xavier(l * dim, hidden));
    add("b1", {hidden}, {1, 1, 1, hidden}, kZero);
    add("w2", {dim, hidden}, {1, dim, 1, hidden}, xavier(hidden, dim));
    add("b2", {dim}, {1, 1, 1, dim}, kZero);
  }

  // The network that scores blocks in content-adaptive attention.
  void scorer(const Problem& p, const std::string& at, std::vector<Source>& sources) {
    const Adaptive a = adaptive_of(p);
    const int nets = a.per_head ? p.heads_q : 1, dim = s.dim, hidden = a.hidden;
    const auto add = [&](const std::string& name, Extents e, Init init) {
      std::vector<int64_t> shape;
      for (const int n : {e.seq, e.head, e.dim})
        if (n > 1) shape.push_back(n);
      if (shape.empty()) shape.push_back(1);
      sources.push_back({.name = name, .weight = g.weight(at + "scorer." + name, shape, e, DType::f32, init)});
    };
    for (const char* side : {"q", "k"}) {
      add(join("w", side), {1, dim, 1, dim}, xavier(dim, dim));
      add(join("b", side), {1, 1, 1, dim}, kZero);
    }
    add("w1", {1, hidden, nets, 2 * dim}, xavier(2 * dim, hidden)), add("b1", {1, 1, nets, hidden}, kZero);
    add("w2", {1, 1, nets, hidden}, xavier(hidden, 1)), add("b2", {1, 1, nets, 1}, kZero);
    add("log_temperature", {1, 1, 1, 1}, kZero);
    if (a.gumbel) sources.push_back({.name = "noise", .seed = true});
  }

  // The other inputs of an attention: slopes, sinks, block lists, a scorer.
  void options(const Problem& p, const Pattern& pattern, const std::string& at, std::vector<Source>& sources) {
    const Extents heads{1, 1, p.heads_q, 1};
    if (p.has(Option::alibi)) {
      std::vector<float> slopes;  // 2^(-8 / H), its square, ...
      for (int h = 1; h <= p.heads_q; ++h) slopes.push_back(float(std::exp2(-8. * h / p.heads_q)));
      sources.push_back({.name = "slopes", .constant = g.constant(DType::f32, heads, slopes.data())});
    }
    if (p.has(Option::sink))
      sources.push_back({.name = "sinks", .weight = g.weight(at + "sinks", {p.heads_q}, heads, DType::f32, kZero)});
    if (word(p.variant) == "adaptive") scorer(p, at, sources);
    if (p.mask.blocks.q && failed.ok()) failed = add_block_lists(g, p, pattern, sources);
  }

  // Queries, keys and values of x, or of x and a memory, as sources.
  void project(const std::string& at, int x, int memory, std::vector<Source>& sources) {
    const int q_width = s.heads * s.dim, k_width = s.heads_kv * s.dim, v_width = s.heads_kv * s.dim_v;
    const Part of_q{at + "q_proj", q_width}, of_k{at + "k_proj", k_width}, of_v{at + "v_proj", v_width, gain};
    const int all = memory >= 0 ? linear(x, {of_q}, s.bias) : linear(x, {of_q, of_k, of_v}, s.bias);
    const int from = memory >= 0 ? linear(memory, {of_k, of_v}, s.bias) : all;
    const int64_t first = memory >= 0 ? 0 : q_width;
    const int q = g.piece(all, 0, s.heads, s.dim), k = g.piece(from, first, s.heads_kv, s.dim);
    if (memory < 0) rotate(q), rotate(k);
    sources.push_back({.name = "q", .value = q});
    sources.push_back({.name = "k", .value = k});
    sources.push_back({.name = "v", .value = g.piece(from, first + k_width, s.heads_kv, s.dim_v)});
  }

  // The same for Native Sparse Attention: each branch has its own keys and values, from one matrix.
  void project_branches(const Nsa& nsa, const std::string& at, int x, std::vector<Source>& sources) {
    const int q_width = s.heads * s.dim, k_width = s.heads_kv * s.dim, v_width = s.heads_kv * s.dim_v;
    struct Branch { const char *name, *k, *v; };
    std::vector<Branch> branches{{"compress", "k", "v"}, {"select", "k_select", "v_select"}};
    if (nsa.w > 0) branches.push_back({"window", "k_window", "v_window"});
    std::vector<Part> parts{{at + "q_proj", q_width}};
    for (const Branch& b : branches) {
      parts.push_back({join(at, "k_", b.name, "_proj"), k_width});
      parts.push_back({join(at, "v_", b.name, "_proj"), v_width, gain});
    }
    const int all = linear(x, parts, s.bias), q = g.piece(all, 0, s.heads, s.dim);
    rotate(q);
    sources.push_back({.name = "q", .value = q});
    int64_t column = q_width;
    for (const Branch& b : branches) {
      const int k = g.piece(all, column, s.heads_kv, s.dim);
      rotate(k);
      sources.push_back({.name = b.k, .value = k});
      sources.push_back({.name = b.v, .value = g.piece(all, column + k_width, s.heads_kv, s.dim_v)});
      column += k_width + v_width;
    }
    sources.push_back({.name = "gates", .value = gates(nsa, at, x, q)});
    compression(nsa, at, "k", s.dim, sources), compression(nsa, at, "v", s.dim_v, sources);
  }

  // Self-attention of x, or cross-attention of x over `memory`. `plus` is the residual.
  int multihead(const std::string& at, int x, int memory, int plus, bool with_norm, std::string_view tail,
                const std::string& out_name) {
    Problem p;
    Pattern pattern;
    const bool whole = s.kind == ModuleKind::multihead || memory < 0;  // the cross-attention of a layer has no list
    if (failed.ok())
      failed = attention_of(s, tail, whole ? s.pattern : "", memory >= 0 ? tokens(memory) : s.len, p, pattern);
    const Nsa nsa = nsa_of(p);
    const bool branches = word(p.variant) == "nsa";
    if (failed.ok() && branches && (nsa.only != Branch::all || nsa.phi == Phi::none || nsa.gate == GateOf::none))
      failed = Status::unsupported("module: nsa with only=, phi=none or gate=none is not accepted in a module");
    if (!failed.ok()) return x;
    if (memory < 0) shards = word(p.variant) == "ring" ? ring_of(p).shards : Shards{.tokens = s.len};
    std::vector<Source> sources;
    branches ? project_branches(nsa, at, x, sources) : project(at, x, memory, sources);
    options(p, pattern, at, sources);
    if (!failed.ok()) return x;
    const int rows = g.value(row_extent(s.batch, s.len, s.heads * s.dim_v), s.dtype);
    const int out = g.piece(rows, 0, s.heads, s.dim_v);
    Attend* attend = nullptr;
    // The feed-forward of a LongNet layer uses the dropout, whether this attention does or not.
    const bool layer = s.kind == ModuleKind::longnet_encoder || s.kind == ModuleKind::longnet_decoder;
    const AttendSettings settings{.softcap = float(s.softcap),
                                  .dropout = layer && !p.has(Option::dropout) ? 0.f : float(s.dropout)};
    failed = Attend::make(g, p, rules, sources, settings, out, attend);
    if (!failed.ok()) return x;
    why += join(why.empty() ? "" : "\n", attend->why());
    const int merged = with_norm ? norm(rows, at + "norm") : rows;
    return linear(merged, {{at + out_name, s.embed, gain}}, s.bias, plus);
  }

  int feed_forward(const std::string& at, int x, int plus) {
    const int inside = linear(norm(x, at + "norm1"), {{at + "linear1", s.ffn, gain}}, s.bias);
    int active = activated(inside, s.act);
    if (s.dropout > 0) {
      const int kept = g.value(g.values[size_t(active)].extent, s.dtype);
      g.step<Dropped>(g, active, kept, float(s.dropout), uint32_t(++layer) << 20);
      active = kept;
    }
    return linear(norm(active, at + "norm2"), {{at + "linear2", s.embed, gain}}, s.bias, plus);
  }

  int module() {
    const bool decoder = s.kind == ModuleKind::longnet_decoder;
    gain = s.gain * magneto_gain(decoder, s.encoder_layers, s.decoder_layers);
    int x = g.input(Argument::x, row_extent(s.batch, s.len, s.embed), s.dtype);
    const int memory = s.memory ? g.input(Argument::memory, row_extent(s.batch, s.memory, s.embed), s.dtype) : -1;
    switch (s.kind) {
      case ModuleKind::multihead: return multihead("", x, memory, -1, s.norm, s.attention, "out_proj");
      case ModuleKind::feed_forward: return feed_forward("", x, -1);
      case ModuleKind::longnet_encoder:
      case ModuleKind::longnet_decoder:
        x = multihead("self_attn.", norm(x, "norm1"), -1, x, s.norm, s.attention, "out_proj");
        if (decoder && failed.ok())
          x = multihead("multihead_attn.", norm(x, "norm2"), memory, x, false, "full", "out_proj");
        return failed.ok() ? feed_forward("mlp.", x, x) : x;
      case ModuleKind::llama: break;
    }
    x = multihead("self_attn.", norm(x, "input_layernorm", NormKind::rms), -1, x, false, s.attention, "o_proj");
    if (!failed.ok()) return x;
    const int normal = norm(x, "post_attention_layernorm", NormKind::rms);
    const int both = linear(normal, {{"mlp.gate_proj", s.ffn}, {"mlp.up_proj", s.ffn}}, false);
    return linear(activated(both, Activation::swiglu), {{"mlp.down_proj", s.embed}}, false, x);
  }
};

}  // namespace

Status build(const Settings& s, std::span<const Rule> rules, Graph& g, std::string& why) {
  Builder b{s, rules, g, why};
  Problem p;
  if (s.kind != ModuleKind::feed_forward && attention_of(s, s.attention, s.len, p).ok())
    g.tf32 = p.precision == Precision::tf32;
  const int out = b.module();
  if (b.failed.ok()) g.finish(out);
  return b.failed;
}

}  // namespace attune
