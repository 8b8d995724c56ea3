// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "core/dropout.h"
#include "core/dtypes.h"
#include "machine/cpu/threads.h"
#include "machine/gemm.h"
#include "machine/tensor_ops.h"
#include "models/ops.h"
#include "plan/tuned.h"

namespace attune::models {
namespace {

uint64_t hash_of(std::string_view text) {  // FNV-1a: the same on every machine
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ uint8_t(c)) * 0x100000001B3u;
  return h;
}

// Four standard normal numbers as a function of seed, name and place.
void normals(uint64_t seed, uint64_t name, uint64_t place, float (&out)[4]) {
  const Words4 w = philox({{uint32_t(place), uint32_t(place >> 32), uint32_t(name), uint32_t(name >> 32)}},
                          uint32_t(seed), uint32_t(seed >> 32));
  for (int n = 0; n < 4; n += 2) {
    const float radius = std::sqrt(-2.f * std::log((float(w.w[n] >> 8) + 1.f) * 0x1p-24f));
    const float angle = 2.f * std::numbers::pi_v<float> * (float(w.w[n + 1] >> 8) * 0x1p-24f);
    out[n] = radius * std::cos(angle), out[n + 1] = radius * std::sin(angle);
  }
}

void store(DType t, std::byte* to, int64_t n, float x) {
  if (t == DType::f32) reinterpret_cast<float*>(to)[n] = x;
  else if (t == DType::f16) reinterpret_cast<F16*>(to)[n] = F16(x);
  else reinterpret_cast<Bf16*>(to)[n] = Bf16(x);
}

void fill_with(const Init& init, uint64_t seed, uint64_t name, int64_t first, int64_t last, DType t, std::byte* to) {
  const float same = init.kind == Init::one ? 1.f : 0.f;
  for (int64_t at = first; at < last; at += 4) {
    float four[4] = {same, same, same, same};
    if (init.kind == Init::xavier) normals(seed, name, uint64_t(at) / 4, four);
    for (int n = 0; n < 4 && at + n < last; ++n)
      store(t, to, at + n, init.kind == Init::xavier ? float(init.value) * four[n] : same);
  }
}

Status copy(const Device& d, void* to, const void* from, size_t bytes, bool inwards) {
  if (d.kind == DeviceKind::cpu) return std::memcpy(to, from, bytes), Status::good();
  const cuda::DeviceGuard use(d.index);
  if (!use.status.ok()) return use.status;
  return inwards ? cuda::copy_to(to, from, bytes, nullptr) : cuda::copy_from(to, from, bytes, nullptr);
}

}  // namespace

Tensor tensor_at(void* data, DType t, const Extents& e, const Device& d) {
  return {.data = data, .dtype = t, .device = d.kind, .device_index = d.kind == DeviceKind::cuda ? d.index : 0,
          .extent = e, .stride = compact(e)};
}

int64_t ModelParameter::count() const {
  int64_t n = 1;
  for (const int64_t x : shape) n *= x;
  return n;
}

std::vector<int64_t> ModelParameter::file_shape(const Config&) const {
  if (layout == Layout::transposed && shape.size() == 2) return {shape[1], shape[0]};
  return shape;
}

Status Model::make(const Config& config, DType dtype, const Device& device, int64_t seed, std::unique_ptr<Model>& out) {
  if (device.index < 0) return Status::unsupported("model: device ", device.name, " is not present");
  if (device.kind != DeviceKind::cpu)
    return Status::unsupported("model: runs on a CPU; on a GPU embedding, loss and AdamW have no kernels yet");
  if (!is_f32_or_half(dtype)) return Status::no("model: dtype '", name(dtype), "' is not one of f32, f16, bf16");
  auto made = std::make_unique<Model>();
  made->config_ = config, made->dtype_ = dtype, made->device_ = device;
  Tuned tuned;
  if (Status s = load_tuned(device, tuned); !s.ok()) return s;
  made->tuned_ = std::move(tuned.rules);
  if (Status s = made->place(); !s.ok()) return s;
  if (Status s = made->memory_.allocate(device, made->bytes_); !s.ok()) return s;
  if (Status s = made->factor_.allocate(device, size_t(config.embed) * sizeof(float)); !s.ok()) return s;
  if (seed >= 0)
    if (Status s = made->initialise(seed); !s.ok()) return s;
  out = std::move(made);
  return Status::good();
}

void Model::declare_outer(Graph& g) {
  const Config& c = config_;
  const Init normal{Init::xavier, 2, 0.02}, factor{.kind = c.norm_adds_one ? Init::zero : Init::one};
  const auto declare = [&](Outer which, std::string_view base, const char* suffix, int rows, int columns, Init init) {
    const int w = g.matrix({{join(base, suffix), rows, init}}, columns, dtype_);
    const Weight& weight = g.weights[size_t(w)];
    outer_[int(which)] = {weight.at, weight.gradient_at, weight.extent, true};
  };
  declare(Outer::embed, c.names.embed, ".weight", c.vocab, c.embed, normal);
  if (c.learned_positions) declare(Outer::positions, c.names.positions, ".weight", c.positions, c.embed, normal);
  declare(Outer::norm_weight, c.names.final_norm, ".weight", c.embed, 0, factor);
  if (c.norm == NormKind::layer) declare(Outer::norm_bias, c.names.final_norm, ".bias", c.embed, 0, {});
  if (c.tied) outer_[int(Outer::head)] = outer_[int(Outer::embed)];
  else declare(Outer::head, c.names.head, ".weight", c.vocab, c.embed, normal);
  if (c.bias_head) declare(Outer::head_bias, c.names.head, ".bias", c.vocab, 0, {});
}

Status Model::place() {
  Graph outside;
  declare_outer(outside);
  Layer one;
  if (Status s = plan_layer(config_, {}, dtype_, {}, device_, tuned_, one); !s.ok()) return s;
  outer_bytes_ = outside.parameter_bytes, outer_gradient_bytes_ = outside.gradient_bytes;
  layer_bytes_ = one.graph.parameter_bytes, layer_gradient_bytes_ = one.graph.gradient_bytes;
  bytes_ = layer_at(config_.layers), gradient_bytes_ = layer_gradient_at(config_.layers);
  const auto add = [&](const Parameter& p, const std::string& before, size_t at, size_t gradient_at) {
    ModelParameter made{.name = before + p.name, .shape = p.shape, .at = at + p.at,
                        .gradient_at = gradient_at + p.gradient_at, .init = p.init};
    if (before.empty()) return parameters_.push_back(std::move(made));
    if (!config_.names.qkv.empty() && p.name.starts_with(config_.names.qkv)) made.layout = config_.names.fused;
    if (p.shape.size() == 2 && made.layout == Layout::as_here) made.layout = config_.names.matrices;
    parameters_.push_back(std::move(made));
  };
  for (const Parameter& p : outside.parameters) add(p, "", 0, 0);
  for (int n = 0; n < config_.layers; ++n)
    for (const Parameter& p : one.graph.parameters)
      add(p, join(config_.names.layer, n, "."), layer_at(n), layer_gradient_at(n));
  return Status::good();
}

Status Model::initialise(int64_t seed) {
  std::vector<std::byte> host;
  for (const ModelParameter& p : parameters_) {
    const int64_t count = p.count();
    std::byte* to = parameters_at() + p.at;
    if (device_.kind != DeviceKind::cpu) host.resize(size_t(count) * size_t(size_of(dtype_))), to = host.data();
    const int workers = clamp(count / 4096, 1, device_.kind == DeviceKind::cpu ? device_.units : 16);
    const uint64_t key = hash_of(p.name);
    auto work = [&](int worker) {
      const auto cut = [&](int64_t w) { return w == workers ? count : count / 4 * w / workers * 4; };
      fill_with(p.init, uint64_t(seed), key, cut(worker), cut(worker + 1), dtype_, to);
    };
    parallel(workers, work);
    if (!host.empty())
      if (Status s = write(p, host.data()); !s.ok()) return s;
  }
  return Status::good();
}

Status Model::gradients(std::byte*& out) {
  if (!gradients_.data())
    if (Status s = gradients_.allocate(device_, gradient_bytes_); !s.ok()) return s;
  return out = gradients_.data(), Status::good();
}

Tensor Model::outer(Outer which) const {
  const Place& p = outer_[int(which)];
  return p.there ? tensor_at(parameters_at() + p.at, dtype_, p.extent, device_) : Tensor{};
}
Tensor Model::outer_gradient(Outer which) const {
  const Place& p = outer_[int(which)];
  return p.there ? tensor_at(gradients_.data() + p.gradient_at, DType::f32, p.extent, device_) : Tensor{};
}

Status Model::write(const ModelParameter& p, const void* from) {
  return copy(device_, parameters_at() + p.at, from, size_t(p.count()) * size_t(size_of(dtype_)), true);
}
Status Model::read(const ModelParameter& p, void* to) const {
  return copy(device_, to, parameters_at() + p.at, size_t(p.count()) * size_t(size_of(dtype_)), false);
}
Status Model::read_gradient(const ModelParameter& p, float* to) const {
  if (!gradients_.data()) return Status::no("model: has no gradients yet");
  return copy(device_, to, gradients_.data() + p.gradient_at, size_t(p.count()) * sizeof(float), false);
}

Status Model::embed_tokens(const Tensor& tokens, const Tensor& first, const Tensor& x, void* stream) const {
  return embed({.tokens = tokens, .table = outer(Outer::embed), .positions = outer(Outer::positions), .first = first,
                .out = x, .scale = float(config_.embed_scale)}, stream);
}

Status Model::norm_factor(Tensor& out, void* stream) const {
  out = outer(Outer::norm_weight);
  if (!config_.norm_adds_one) return Status::good();
  const Tensor weight = out;
  out.data = factor_.data();
  if (Status s = fill(out, 1.f, stream); !s.ok()) return s;
  return add(weight, out, stream);
}

Status Model::final_norm(const Tensor& x, const Tensor& out, const Tensor& stat, void* stream) const {
  Tensor weight;
  if (Status s = norm_factor(weight, stream); !s.ok()) return s;
  return normalize({.x = x, .weight = weight, .bias = outer(Outer::norm_bias), .out = out, .stat = stat,
                    .kind = config_.norm, .eps = float(config_.eps)}, stream);
}

Status Model::head(const Tensor& rows, const Tensor& logits, void* scratch, void* stream) const {
  const Tensor w = outer(Outer::head), bias = outer(Outer::head_bias);
  const int32_t count = int32_t(int64_t(rows.extent.batch) * rows.extent.seq);
  const Gemm product{.in = dtype_, .out = DType::f32, .m = count, .n = config_.vocab, .k = config_.embed,
                     .y_transposed = true, .pitch_x = config_.embed, .pitch_y = config_.embed,
                     .pitch_to = config_.vocab, .x = rows.data, .y = w.data, .to = logits.data};
  if (Status s = gemm(device_, product, scratch, stream); !s.ok() || !bias.data) return s;
  return add(bias, logits, stream);
}

}  // namespace attune::models
