// SPDX-License-Identifier: Apache-2.0
#include "models/train.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "machine/gemm.h"
#include "machine/tensor_ops.h"
#include "models/ops.h"

namespace attune::models {
namespace {

constexpr size_t kLogitBytes = size_t(64) << 20;  // of the rows of logits that exist at a time

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

Status put(const Device& d, void* to, const void* from, size_t bytes) {
  if (d.kind == DeviceKind::cpu) return std::memcpy(to, from, bytes), Status::good();
  return cuda::copy_to(to, from, bytes, nullptr);
}

}  // namespace

Status Training::plan(const Config& c, DType dtype, const Device& d, std::span<const Rule> rules, bool allocate) {
  const TrainSettings& s = settings_;
  if (s.batch < 1 || s.len < 2)
    return Status::no("model: batch ", s.batch, " and length ", s.len, " are not at least 1 and 2");
  if (c.learned_positions && s.len > c.positions)
    return Status::no("model: length ", s.len, " is over the ", c.positions, " positions of ", c.name);
  for (const bool windowed : {false, true}) {
    if (std::find(c.windowed.begin(), c.windowed.end(), windowed) == c.windowed.end()) continue;
    layers_[windowed] = std::make_unique<Layer>();
    const LayerShape shape{.batch = s.batch, .len = s.len, .windowed = windowed};
    if (Status e = (allocate ? make_layer : plan_layer)(c, shape, dtype, s.attention, d, rules, *layers_[windowed]);
        !e.ok())
      return e;
  }
  return place(c, dtype, d);
}

Status Training::place(const Config& c, DType dtype, const Device& d) {
  const size_t rows = size_t(settings_.batch) * size_t(settings_.len), size = size_t(size_of(dtype));
  const size_t wide = rounded(rows * size_t(c.embed) * size), layers = size_t(c.layers);
  size_t forward = 0, lean = 0, backward = 0, constants = 0;
  for (const auto& one : layers_) {
    if (!one) continue;
    const Graph& g = one->graph;
    tape_bytes_ = std::max(tape_bytes_, g.tape_bytes), forward = std::max(forward, g.forward_bytes);
    lean = std::max(lean, g.lean_bytes), backward = std::max(backward, g.backward_bytes);
    constants += g.constant_bytes;
  }
  const size_t row = size_t(c.vocab) * sizeof(float);
  chunk_ = int(std::clamp<size_t>(kLogitBytes / row, 1, rows));
  const bool narrow = dtype != DType::f32;
  size_t end = 0;
  const auto take = [&](size_t bytes) { return std::exchange(end, end + rounded(bytes)); };
  place_.x = take(wide * (layers + 1));
  place_.tapes = take(tape_bytes_ * (settings_.checkpointing ? 1 : layers));
  const size_t kept = end;
  place_.rows = take(wide), place_.d_rows = take(wide), place_.d_other = take(wide);
  place_.stat = take(rows * 2 * sizeof(float));
  place_.logits = take(size_t(chunk_) * row), place_.narrow = take(narrow ? size_t(chunk_) * row / 2 : 0);
  place_.losses = take(rows * sizeof(float)), place_.tokens = take(rows * 4), place_.targets = take(rows * 4);
  const Tensor all{.extent = row_extent(1, int(rows), c.embed)}, scores{.extent = row_extent(1, chunk_, c.vocab)};
  size_t work = std::max({forward, lean, backward, column_bytes(all), gemm_bytes(d)});
  if (c.bias_head) work = std::max(work, column_bytes(scores));
  place_.work = take(work);
  bytes_.activations = kept, bytes_.workspace = end - kept + constants;
  place_.end = end;
  return Status::good();
}

Status Training::measure(const Config& c, DType dtype, const Device& d, std::span<const Rule> rules,
                         const TrainSettings& settings, TrainBytes& out) {
  Training t;
  t.settings_ = settings;
  if (Status s = t.plan(c, dtype, d, rules, false); !s.ok()) return s;
  out = t.bytes_;
  const size_t all = size_t(c.parameters());
  out.weights = all * size_t(size_of(dtype)), out.gradients = all * sizeof(float), out.moments = 2 * out.gradients;
  return Status::good();
}

Status Training::make(Model& model, const TrainSettings& settings, std::unique_ptr<Training>& out) {
  auto made = std::make_unique<Training>();
  made->model_ = &model, made->settings_ = settings;
  const Config& c = model.config();
  if (Status s = made->plan(c, model.dtype(), model.device(), model.rules(), true); !s.ok()) return s;
  if (Status s = made->memory_.allocate(model.device(), made->place_.end); !s.ok()) return s;
  made->bytes_.weights = model.parameter_bytes(), made->bytes_.gradients = model.gradient_bytes();
  made->bytes_.moments = 2 * model.gradient_bytes();
  const size_t rows = size_t(settings.batch) * size_t(settings.len);
  made->targets_.resize(rows), made->losses_.resize(rows);
  out = std::move(made);
  return Status::good();
}

Tensor Training::rows_at(size_t at) const {
  return tensor_at(memory_.data() + at, model_->dtype(),
                   row_extent(settings_.batch, settings_.len, model_->config().embed), model_->device());
}
Tensor Training::x_of(int n) const {
  const size_t wide = rounded(size_t(settings_.batch) * size_t(settings_.len) * size_t(model_->config().embed) *
                              size_t(size_of(model_->dtype())));
  return rows_at(place_.x + size_t(n) * wide);
}

Status Training::copy_in(std::span<const int32_t> tokens) {
  if (tokens.size() != targets_.size())
    return Status::no("model: ", tokens.size(), " tokens given, not ", settings_.batch, " x ", settings_.len);
  for (size_t n = 0; n < tokens.size(); ++n) {
    if (tokens[n] < 0 || tokens[n] >= model_->config().vocab)
      return Status::no("model: token ", tokens[n], " is not in 0 ... ", model_->config().vocab - 1);
    const bool last = (n + 1) % size_t(settings_.len) == 0;
    targets_[n] = last ? -1 : tokens[n + 1];
  }
  const Device& d = model_->device();
  if (Status s = put(d, memory_.data() + place_.tokens, tokens.data(), tokens.size_bytes()); !s.ok()) return s;
  return put(d, memory_.data() + place_.targets, targets_.data(), tokens.size_bytes());
}

Run Training::run_of(int n, bool lean) const {
  const Layer& l = layer(n);
  Run r{.graph = l.graph};
  r.given[int(Argument::x)] = x_of(n), r.given[int(Argument::out)] = x_of(n + 1);
  std::byte* const work = memory_.data() + place_.work;
  r.lean = lean;
  r.tape = lean ? work : memory_.data() + place_.tapes + (settings_.checkpointing ? 0 : size_t(n) * tape_bytes_);
  r.workspace = work, r.scratch = lean ? work + l.graph.lean_bytes - l.graph.forward_bytes : work;
  r.parameters = model_->parameters_at() + model_->layer_at(n), r.constants = l.constants.data();
  return r;
}

Status Training::forward() {
  const Config& c = model_->config();
  const int rows = settings_.batch * settings_.len;
  const Tensor tokens = tensor_at(memory_.data() + place_.tokens, DType::i32, {1, 1, 1, rows}, model_->device());
  at("embed");
  if (Status s = model_->embed_tokens(tokens, {}, x_of(0), nullptr); !s.ok()) return s;
  for (int n = 0; n < c.layers; ++n) {
    if (watch) at(join("layer ", n));
    const Run r = run_of(n, settings_.checkpointing);
    for (const auto& step : r.graph.steps)
      if (Status s = step->forward(r); !s.ok()) return s;
  }
  at("head");
  const Tensor stat = tensor_at(memory_.data() + place_.stat, DType::f32, {settings_.batch, settings_.len, 1, 2},
                                model_->device());
  return model_->final_norm(x_of(c.layers), rows_at(place_.rows), stat, nullptr);
}

Status Training::logits(std::span<const int32_t> tokens, std::vector<float>& out) {
  if (Status s = copy_in(tokens); !s.ok()) return s;
  if (Status s = forward(); !s.ok()) return s;
  const Config& c = model_->config();
  const int rows = settings_.batch * settings_.len;
  out.resize(size_t(rows) * size_t(c.vocab));
  for (int first = 0; first < rows; first += chunk_) {
    const int count = std::min(chunk_, rows - first);
    Tensor part = rows_at(place_.rows);
    part = tensor_at(row_address(part, 0, 0, 0) + int64_t(first) * c.embed * size_of(part.dtype), part.dtype,
                     row_extent(1, count, c.embed), model_->device());
    const Tensor scores = tensor_at(memory_.data() + place_.logits, DType::f32, row_extent(1, count, c.vocab),
                                    model_->device());
    if (Status s = model_->head(part, scores, memory_.data() + place_.work, nullptr); !s.ok()) return s;
    if (c.final_softcap > 0)
      if (Status s = softcap({.logits = scores, .softcap = float(c.final_softcap)}, nullptr); !s.ok()) return s;
    std::memcpy(out.data() + size_t(first) * size_t(c.vocab), scores.data, size_t(count) * size_t(c.vocab) * 4);
  }
  return Status::good();
}

// The loss, the gradients of the head, and those of the normalized rows.
Status Training::head(double& loss) {
  const Config& c = model_->config();
  const Device& d = model_->device();
  const DType dtype = model_->dtype();
  const int rows = settings_.batch * settings_.len, counted = settings_.batch * (settings_.len - 1);
  std::byte *const base = memory_.data(), *const work = base + place_.work;
  const Tensor weight = model_->outer(Outer::head), d_weight = model_->outer_gradient(Outer::head);
  const Tensor d_bias = model_->outer_gradient(Outer::head_bias);
  for (int first = 0; first < rows; first += chunk_) {
    const int count = std::min(chunk_, rows - first);
    const int64_t from = int64_t(first) * c.embed * size_of(dtype);
    const Tensor part = tensor_at(base + place_.rows + from, dtype, row_extent(1, count, c.embed), d);
    const Tensor scores = tensor_at(base + place_.logits, DType::f32, row_extent(1, count, c.vocab), d);
    if (Status s = model_->head(part, scores, work, nullptr); !s.ok()) return s;
    const Tensor targets = tensor_at(base + place_.targets + size_t(first) * 4, DType::i32, {1, 1, 1, count}, d);
    const Tensor losses = tensor_at(base + place_.losses + size_t(first) * 4, DType::f32, {1, 1, 1, count}, d);
    if (Status s = cross_entropy({.logits = scores, .targets = targets, .losses = losses,
                                  .softcap = float(c.final_softcap), .factor = 1.f / float(counted)}, nullptr); !s.ok())
      return s;
    Tensor dy = scores;
    if (dtype != DType::f32) {
      dy = tensor_at(base + place_.narrow, dtype, scores.extent, d);
      if (Status s = convert(scores, dy, nullptr); !s.ok()) return s;
    }
    const Gemm of_rows{.in = dtype, .out = dtype, .m = count, .n = c.embed, .k = c.vocab, .pitch_x = c.vocab,
                       .pitch_y = c.embed, .pitch_to = c.embed, .x = dy.data, .y = weight.data,
                       .to = base + place_.d_rows + from};
    if (Status s = gemm(d, of_rows, work, nullptr); !s.ok()) return s;
    const float keep = first ? 1.f : 0.f;
    const Gemm of_weight{.in = dtype, .out = DType::f32, .m = c.vocab, .n = c.embed, .k = count, .x_transposed = true,
                         .pitch_x = c.vocab, .pitch_y = c.embed, .pitch_to = c.embed, .x = dy.data, .y = part.data,
                         .to = d_weight.data, .beta = keep};
    if (Status s = gemm(d, of_weight, work, nullptr); !s.ok()) return s;
    if (!d_bias.data) continue;
    if (Status s = column_sum({.x = dy, .sum = d_bias, .keep = keep, .scratch = reinterpret_cast<float*>(work)},
                              nullptr); !s.ok())
      return s;
  }
  const float* const losses = reinterpret_cast<const float*>(base + place_.losses);
  std::copy_n(losses, rows, losses_.begin());
  double sum = 0;
  for (const float one : losses_) sum += double(one);
  return loss = sum / counted, Status::good();
}

Status Training::head_backward() {
  Tensor factor;
  if (Status s = model_->norm_factor(factor, nullptr); !s.ok()) return s;
  const Tensor stat = tensor_at(memory_.data() + place_.stat, DType::f32, {settings_.batch, settings_.len, 1, 2},
                                model_->device());
  return normalize_backward({.x = x_of(model_->config().layers), .weight = factor, .stat = stat,
                             .d_out = rows_at(place_.d_rows), .dx = rows_at(place_.d_other),
                             .d_weight = model_->outer_gradient(Outer::norm_weight),
                             .d_bias = model_->outer_gradient(Outer::norm_bias), .kind = model_->config().norm,
                             .scratch = reinterpret_cast<float*>(memory_.data() + place_.work)}, nullptr);
}

Status Training::backward_layer(int n, const Tensor& d_out, const Tensor& dx) {
  if (settings_.checkpointing) {
    const Run again = run_of(n, false);
    for (const auto& step : again.graph.steps)
      if (Status s = step->forward(again); !s.ok()) return s;
  }
  Run r = run_of(n, false);
  std::byte* all = nullptr;
  if (Status s = model_->gradients(all); !s.ok()) return s;
  r.parameter_gradients = all + model_->layer_gradient_at(n);
  r.gradient_given[int(Argument::out)] = d_out, r.gradient_given[int(Argument::x)] = dx;
  r.scratch = r.workspace + r.graph.gradients_end;
  for (size_t step = r.graph.steps.size(); step-- > 0;)
    if (Status s = r.graph.steps[step]->backward(r); !s.ok()) return s;
  return Status::good();
}

Status Training::gradients(std::span<const int32_t> tokens, double& loss) {
  std::byte* all = nullptr;
  if (Status s = model_->gradients(all); !s.ok()) return s;
  if (Status s = copy_in(tokens); !s.ok()) return s;
  if (Status s = forward(); !s.ok()) return s;
  if (Status s = head(loss); !s.ok()) return s;
  if (Status s = head_backward(); !s.ok()) return s;
  Tensor d_out = rows_at(place_.d_other), dx = rows_at(place_.d_rows);
  const Config& c = model_->config();
  for (int n = c.layers; n-- > 0;) {
    if (watch) at(join("backward of layer ", n));
    if (Status s = backward_layer(n, d_out, dx); !s.ok()) return s;
    std::swap(d_out, dx);
  }
  at("backward of embed");
  const Tensor d_table = model_->outer_gradient(Outer::embed), d_positions = model_->outer_gradient(Outer::positions);
  if (!c.tied)
    if (Status s = fill(d_table, 0.f, nullptr); !s.ok()) return s;
  if (d_positions.data)
    if (Status s = fill(d_positions, 0.f, nullptr); !s.ok()) return s;
  const int rows = settings_.batch * settings_.len;
  return embed_backward({.tokens = tensor_at(memory_.data() + place_.tokens, DType::i32, {1, 1, 1, rows},
                                             model_->device()),
                         .d_out = d_out, .d_table = d_table, .d_positions = d_positions,
                         .scale = float(c.embed_scale)}, nullptr);
}

Status Training::update(const AdamWSettings& s) {
  at("adamw");
  std::byte* all = nullptr;
  if (Status e = model_->gradients(all); !e.ok()) return e;
  for (Storage* moments : {&first_, &second_})
    if (!moments->data())
      if (Status e = moments->allocate(model_->device(), model_->gradient_bytes()); !e.ok()) return e;
  ++steps_;
  for (const ModelParameter& p : model_->parameters()) {
    const Extents e{1, int32_t(p.shape[0]), 1, p.shape.size() > 1 ? int32_t(p.shape[1]) : 1};
    const auto f32 = [&](std::byte* from) { return tensor_at(from + p.gradient_at, DType::f32, e, model_->device()); };
    const Tensor parameter = tensor_at(model_->parameters_at() + p.at, model_->dtype(), e, model_->device());
    if (Status f = adamw({.parameter = parameter, .gradient = f32(all), .first = f32(first_.data()),
                          .second = f32(second_.data()), .rate = s.rate, .beta1 = s.beta1, .beta2 = s.beta2,
                          .eps = s.eps, .decay = s.decay, .step = steps_}, nullptr); !f.ok())
      return f;
  }
  return Status::good();
}

}  // namespace attune::models
