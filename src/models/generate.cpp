// SPDX-License-Identifier: Apache-2.0
#include "models/generate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include "core/dropout.h"
#include "machine/gemm.h"
#include "models/ops.h"

namespace attune::models {
namespace {

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }
size_t bytes_of(const Extents& e, DType t) {
  return size_t(e.batch) * size_t(e.seq) * size_t(e.head) * size_t(e.dim) * size_t(size_of(t));
}

Status put(const Device& d, void* to, const void* from, size_t bytes) {
  if (d.kind == DeviceKind::cpu) return std::memcpy(to, from, bytes), Status::good();
  return cuda::copy_to(to, from, bytes, nullptr);
}
Status get(const Device& d, void* to, const void* from, size_t bytes) {
  if (d.kind == DeviceKind::cpu) return std::memcpy(to, from, bytes), Status::good();
  return cuda::copy_from(to, from, bytes, nullptr);
}

// The places of a call: two rows of activations, the last rows and their statistics, logits, tokens, lengths, and the
// memory of a layer.
struct Call {
  int batch, len;
  size_t lean;
};
size_t call_bytes(const Config& c, DType t, const Device& d, const Call& call) {
  const size_t few = size_t(call.batch), rows = few * size_t(call.len), size = size_t(size_of(t));
  return 2 * rounded(rows * size_t(c.embed) * size) + rounded(few * size_t(c.embed) * size) + rounded(few * 8) +
         rounded(few * size_t(c.vocab) * 4) + rounded(rows * 4) + 2 * rounded(few * 4) +
         std::max(call.lean, gemm_bytes(d));
}

}  // namespace

int32_t next_token(std::span<const float> logits, const Sampling& s, int sequence, int64_t place) {
  if (s.temperature <= 0) return int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t top = s.top > 0 ? std::min(size_t(s.top), order.size()) : order.size();
  std::partial_sort(order.begin(), order.begin() + ptrdiff_t(top), order.end(), [&](int32_t a, int32_t b) {
    return logits[size_t(a)] != logits[size_t(b)] ? logits[size_t(a)] > logits[size_t(b)] : a < b;
  });
  const double most = logits[size_t(order[0])];
  std::vector<double> sums(top);
  double sum = 0;
  for (size_t n = 0; n < top; ++n) sums[n] = sum += std::exp((logits[size_t(order[n])] - most) / s.temperature);
  const Words4 w = philox({{uint32_t(place), uint32_t(uint64_t(place) >> 32), uint32_t(sequence), 0}},
                          uint32_t(s.seed), uint32_t(uint64_t(s.seed) >> 32));
  const double at = (double(w.w[0]) + double(w.w[1]) * 0x1p-32) * 0x1p-32 * sum;
  const auto found = std::upper_bound(sums.begin(), sums.end(), at);
  return order[std::min(size_t(found - sums.begin()), top - 1)];
}

std::vector<int32_t> random_tokens(int vocab, int count, int64_t seed, int sequence) {
  std::vector<int32_t> all(static_cast<size_t>(count));
  for (int n = 0; n < count; ++n) {
    const Words4 w = philox({{uint32_t(n), uint32_t(sequence), 1, 0}}, uint32_t(seed), uint32_t(uint64_t(seed) >> 32));
    all[size_t(n)] = int32_t(uint64_t(w.w[0]) * uint64_t(vocab) >> 32);
  }
  return all;
}

Status Generation::measure(const Config& c, DType dtype, const Device& d, std::span<const Rule> rules,
                           const CacheShape& shape, CacheBytes& out) {
  const size_t one = rounded(bytes_of({shape.sequences, shape.capacity, c.heads_kv, c.dim}, dtype));
  out = {.cache = one * 2 * size_t(c.layers)};
  size_t widest = 0, constants = 0;
  std::set<std::pair<int, int>> calls{{shape.sequences, 1}, {shape.at_once, shape.prompt}};
  for (const auto& [batch, len] : calls) {
    size_t lean = 0;
    for (const bool windowed : {false, true}) {
      if (std::find(c.windowed.begin(), c.windowed.end(), windowed) == c.windowed.end()) continue;
      Layer layer;
      const LayerShape one_layer{.batch = batch, .len = len, .slots = shape.sequences, .capacity = shape.capacity,
                                 .windowed = windowed};
      if (Status s = plan_layer(c, one_layer, dtype, shape.attention, d, rules, layer); !s.ok()) return s;
      lean = std::max(lean, layer.graph.lean_bytes), constants += layer.graph.constant_bytes;
    }
    widest = std::max(widest, call_bytes(c, dtype, d, {batch, len, lean}));
  }
  return out.workspace = widest + constants, Status::good();
}

Status Generation::make(Model& model, int sequences, int capacity, const Attention& attention,
                        std::unique_ptr<Generation>& out) {
  const Config& c = model.config();
  if (sequences < 1 || capacity < 1)
    return Status::no("model: ", sequences, " sequences of ", capacity, " tokens are not at least 1 of 1");
  if (c.learned_positions && capacity > c.positions)
    return Status::no("model: ", capacity, " tokens are over the ", c.positions, " positions of ", c.name);
  auto made = std::make_unique<Generation>();
  made->model_ = &model, made->sequences_ = sequences, made->capacity_ = capacity, made->attention_ = attention;
  made->lengths_.assign(size_t(sequences), 0);
  made->row_bytes_ = rounded(bytes_of({sequences, capacity, c.heads_kv, c.dim}, model.dtype()));
  const size_t all = made->row_bytes_ * 2 * size_t(c.layers);
  if (Status s = made->cache_.allocate(model.device(), all); !s.ok()) return s;
  made->bytes_.cache = all;
  Stage* step = nullptr;
  if (Status s = made->stage(sequences, 1, step); !s.ok()) return s;
  out = std::move(made);
  return Status::good();
}

Status Generation::stage(int batch, int len, Stage*& out) {
  const auto found = stages_.find({batch, len});
  if (found != stages_.end()) return out = &found->second, Status::good();
  const Config& c = model_->config();
  Stage made;
  for (const bool windowed : {false, true}) {
    if (std::find(c.windowed.begin(), c.windowed.end(), windowed) == c.windowed.end()) continue;
    made.layers[windowed] = std::make_unique<Layer>();
    const LayerShape shape{.batch = batch, .len = len, .slots = sequences_, .capacity = capacity_,
                           .windowed = windowed};
    if (Status s = make_layer(c, shape, model_->dtype(), attention_, model_->device(), model_->rules(),
                              *made.layers[windowed]);
        !s.ok())
      return s;
    made.lean = std::max(made.lean, made.layers[windowed]->graph.lean_bytes);
    made.constants += made.layers[windowed]->graph.constant_bytes;
    why_ = made.layers[windowed]->why;
  }
  // Room for the widest call so far: its places may move, since nothing in them outlives a call.
  const size_t need = call_bytes(c, model_->dtype(), model_->device(), {batch, len, made.lean});
  if (need > work_bytes_) {
    if (Status s = work_.allocate(model_->device(), need); !s.ok()) return s;
    work_bytes_ = need;
  }
  if (stages_.size() >= 64) stages_.erase(stages_.begin());  // prompts of many lengths
  out = &(stages_[{batch, len}] = std::move(made));
  bytes_.workspace = work_bytes_;
  for (const auto& [shape, one] : stages_) bytes_.workspace += one.constants;
  return Status::good();
}

Status Generation::layers(const Stage& stage, int first, int count, int len) {
  const Config& c = model_->config();
  const Device& d = model_->device();
  const DType t = model_->dtype();
  Tensor x = tensor_at(work_.data() + place_.x, t, row_extent(count, len, c.embed), d);
  Tensor y = tensor_at(work_.data() + place_.y, t, x.extent, d);
  std::vector<int32_t> used(lengths_.begin() + first, lengths_.begin() + first + count);
  std::vector<int32_t> index(used.size());
  std::iota(index.begin(), index.end(), first);
  const Tensor used_k = tensor_at(work_.data() + place_.used, DType::i32, {count, 1, 1, 1}, d);
  const Tensor cache_index = tensor_at(work_.data() + place_.index, DType::i32, {count, 1, 1, 1}, d);
  if (Status s = put(d, used_k.data, used.data(), used.size() * 4); !s.ok()) return s;
  if (Status s = put(d, cache_index.data, index.data(), index.size() * 4); !s.ok()) return s;
  const Tensor tokens = tensor_at(work_.data() + place_.tokens, DType::i32, {1, 1, 1, count * len}, d);
  if (Status s = model_->embed_tokens(tokens, used_k, x, nullptr); !s.ok()) return s;
  for (int n = 0; n < c.layers; ++n) {
    const Layer& l = *stage.layers[c.windowed[size_t(n)]];
    Run r{.graph = l.graph};
    const Extents rows{sequences_, capacity_, c.heads_kv, c.dim};
    std::byte* const at = cache_.data() + size_t(n) * 2 * row_bytes_;
    r.given[int(Argument::x)] = x, r.given[int(Argument::out)] = y;
    r.given[int(Argument::k_cache)] = tensor_at(at, t, rows, d);
    r.given[int(Argument::v_cache)] = tensor_at(at + row_bytes_, t, rows, d);
    r.given[int(Argument::used_k)] = used_k, r.given[int(Argument::cache_index)] = cache_index;
    r.lean = true, r.tape = r.workspace = work_.data() + place_.work;
    r.scratch = r.workspace + l.graph.lean_bytes - l.graph.forward_bytes;
    r.parameters = model_->parameters_at() + model_->layer_at(n), r.constants = l.constants.data();
    for (const auto& step : l.graph.steps)
      if (Status s = step->forward(r); !s.ok()) return s;
    std::swap(x, y);
  }
  // The last row of each sequence.
  Tensor last = x;
  last.data = row_address(x, 0, len - 1, 0);
  last.stride.batch = count > 1 ? int64_t(len) * c.embed : 0, last.extent.seq = 1, last.stride.seq = 0;
  const Tensor rows = tensor_at(work_.data() + place_.rows, t, row_extent(count, 1, c.embed), d);
  const Tensor stat = tensor_at(work_.data() + place_.stat, DType::f32, row_extent(count, 1, 2), d);
  return model_->final_norm(last, rows, stat, nullptr);
}

Status Generation::run(int first, int count, int len, const int32_t* tokens, float* logits) {
  const Config& c = model_->config();
  const Device& d = model_->device();
  Stage* stage = nullptr;
  if (Status s = this->stage(count, len, stage); !s.ok()) return s;
  const size_t rows = size_t(count) * size_t(len), size = size_t(size_of(model_->dtype()));
  const size_t wide = rounded(rows * size_t(c.embed) * size), few = size_t(count);
  size_t end = 0;
  const auto take = [&](size_t bytes) { return std::exchange(end, end + rounded(bytes)); };
  place_.x = take(wide), place_.y = take(wide), place_.rows = take(few * size_t(c.embed) * size);
  place_.stat = take(few * 8), place_.logits = take(few * size_t(c.vocab) * 4), place_.tokens = take(rows * 4);
  place_.used = take(few * 4), place_.index = take(few * 4), place_.work = end;
  if (Status s = put(d, work_.data() + place_.tokens, tokens, rows * 4); !s.ok()) return s;
  if (Status s = layers(*stage, first, count, len); !s.ok()) return s;
  const Tensor normal = tensor_at(work_.data() + place_.rows, model_->dtype(), row_extent(1, count, c.embed), d);
  const Tensor scores = tensor_at(work_.data() + place_.logits, DType::f32, row_extent(1, count, c.vocab), d);
  if (Status s = model_->head(normal, scores, work_.data() + place_.work, nullptr); !s.ok()) return s;
  if (c.final_softcap > 0)
    if (Status s = softcap({.logits = scores, .softcap = float(c.final_softcap)}, nullptr); !s.ok()) return s;
  for (int n = first; n < first + count; ++n) lengths_[size_t(n)] += len;
  return get(d, logits, scores.data, few * size_t(c.vocab) * 4);
}

Status Generation::append(std::span<const std::span<const int32_t>> texts, std::vector<float>& logits) {
  const Config& c = model_->config();
  if (texts.empty() || texts.size() > size_t(sequences_))
    return Status::no("model: ", texts.size(), " texts given; the cache has ", sequences_, " sequences");
  bool equal = true;
  for (size_t n = 0; n < texts.size(); ++n) {
    if (texts[n].empty()) return Status::no("model: text ", n, " has no tokens");
    if (texts[n].size() > size_t(capacity_ - lengths_[n]))
      return Status::no("model: sequence ", n, " has ", lengths_[n], " tokens, and ", texts[n].size(),
                        " more do not fit in its ", capacity_);
    for (const int32_t token : texts[n])
      if (token < 0 || token >= c.vocab) return Status::no("model: token ", token, " is not in 0 ... ", c.vocab - 1);
    equal = equal && texts[n].size() == texts[0].size();
  }
  logits.resize(texts.size() * size_t(c.vocab));
  if (equal) {
    std::vector<int32_t> all;
    for (const auto& text : texts) all.insert(all.end(), text.begin(), text.end());
    return run(0, int(texts.size()), int(texts[0].size()), all.data(), logits.data());
  }
  for (size_t n = 0; n < texts.size(); ++n)
    if (Status s = run(int(n), 1, int(texts[n].size()), texts[n].data(), logits.data() + n * size_t(c.vocab)); !s.ok())
      return s;
  return Status::good();
}

Status generate(Generation& g, std::span<const std::vector<int32_t>> prompts, int count, const Sampling& sampling,
                std::vector<std::vector<int32_t>>& out, const std::function<void(int)>& tell) {
  const size_t sequences = prompts.size();
  std::vector<std::span<const int32_t>> texts(prompts.begin(), prompts.end());
  std::vector<float> logits;
  std::vector<int32_t> next(sequences);
  out.assign(sequences, {});
  for (int n = 0; n < count; ++n) {
    if (Status s = g.append(texts, logits); !s.ok()) return s;
    if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
      return Status::no("model: logits are not finite after ", n, " tokens; its weights or dtype are at fault");
    const size_t vocab = logits.size() / sequences;
    for (size_t i = 0; i < sequences; ++i) {
      next[i] = next_token({logits.data() + i * vocab, vocab}, sampling, int(i), n);
      out[i].push_back(next[i]);
      texts[i] = {&next[i], 1};
    }
    if (tell) tell(n);
  }
  return Status::good();
}

}  // namespace attune::models
