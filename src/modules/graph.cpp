// SPDX-License-Identifier: Apache-2.0
#include "modules/graph.h"

#include <algorithm>
#include <map>

#include "core/mask.h"

namespace attune {
namespace {

constexpr size_t kAlign = 256;
size_t rounded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
int64_t elements(const Extents& e) { return int64_t(e.batch) * e.seq * e.head * e.dim; }

// An allocator for temporary buffers: takes the first gap that is large enough, else the end.
class Gaps {
 public:
  size_t most() const { return most_; }
  size_t take(size_t bytes) {
    size_t at = 0;
    for (const auto& [first, last] : live_) {
      if (first >= at + bytes) break;
      at = std::max(at, last);
    }
    live_[at] = at + bytes;
    most_ = std::max(most_, at + bytes);
    return at;
  }
  void give(size_t at) { live_.erase(at); }

 private:
  std::map<size_t, size_t> live_{};  // first byte -> end
  size_t most_ = 0;
};

Tensor tensor_of(std::byte* data, DType dtype, const Extents& e, const Strides& s, const Device& d) {
  return {.data = data, .dtype = dtype, .device = d.kind, .device_index = d.kind == DeviceKind::cuda ? d.index : 0,
          .extent = e, .stride = s};
}

Tensor piece_of(const Value& v, Tensor root) {
  root.data = static_cast<char*>(root.data) + v.offset * size_of(v.dtype);
  root.dtype = v.dtype, root.extent = v.extent, root.stride = v.stride;
  return root;
}

}  // namespace

Strides compact(const Extents& e) {
  const auto unless_one = [](int32_t extent, int64_t step) { return extent == 1 ? 0 : step; };
  return {unless_one(e.batch, int64_t(e.seq) * e.head * e.dim), unless_one(e.seq, int64_t(e.head) * e.dim),
          unless_one(e.head, e.dim)};
}

Extents row_extent(int batch, int len, int dim) { return {batch, len, 1, dim}; }

int Graph::input(Argument a, Extents e, DType t) {
  const int v = value(e, t);
  values[size_t(v)].argument = a;
  return v;
}

int Graph::value(Extents e, DType t) {
  const int v = int(values.size());
  values.push_back({.extent = e, .dtype = t, .stride = compact(e), .root = v});
  return v;
}

int Graph::piece(int of, int64_t first, int heads, int dim) {
  Value v = values[size_t(of)];
  v.offset += first;
  // Rows keep their pitch, so an axis of extent 1 may have any stride: 0.
  const int64_t pitch = int64_t(values[size_t(v.root)].extent.dim) * values[size_t(v.root)].extent.head;
  v.extent = {v.extent.batch, v.extent.seq, heads, dim};
  v.stride = {v.extent.batch == 1 ? 0 : pitch * v.extent.seq, v.extent.seq == 1 ? 0 : pitch, heads == 1 ? 0 : dim};
  v.argument = Argument::none;
  values.push_back(v);
  return int(values.size()) - 1;
}

int Graph::constant(DType t, Extents e, const void* data) {
  Constant c{.dtype = t, .extent = e, .at = constant_bytes};
  const auto* first = static_cast<const std::byte*>(data);
  const size_t bytes = size_t(elements(e)) * size_t(size_of(t));
  if (data) c.bytes.assign(first, first + bytes);
  constant_bytes += rounded(bytes);
  constants.push_back(std::move(c));
  return int(constants.size()) - 1;
}

int Graph::matrix(const std::vector<Named>& named, int columns, DType t) {
  int rows = 0;
  const int width = std::max(columns, 1);
  for (const Named& n : named) {
    const size_t before = size_t(rows) * size_t(width);
    std::vector<int64_t> shape{n.rows};
    if (columns) shape.push_back(columns);
    parameters.push_back({.name = n.name,
                          .dtype = t,
                          .shape = shape,
                          .at = parameter_bytes + before * size_t(size_of(t)),
                          .gradient_at = gradient_bytes + before * sizeof(float),
                          .init = n.init});
    rows += n.rows;
  }
  const Extents e = columns ? Extents{1, rows, 1, columns} : Extents{1, 1, 1, rows};
  weights.push_back({.dtype = t, .extent = e, .at = parameter_bytes, .gradient_at = gradient_bytes});
  parameter_bytes += rounded(size_t(elements(e)) * size_t(size_of(t)));
  gradient_bytes += rounded(size_t(elements(e)) * sizeof(float));
  return int(weights.size()) - 1;
}

int Graph::weight(const std::string& name, std::vector<int64_t> shape, Extents e, DType t, Init init) {
  parameters.push_back({.name = name, .dtype = t, .shape = std::move(shape), .at = parameter_bytes,
                        .gradient_at = gradient_bytes, .init = init});
  weights.push_back({.dtype = t, .extent = e, .at = parameter_bytes, .gradient_at = gradient_bytes});
  parameter_bytes += rounded(size_t(elements(e)) * size_t(size_of(t)));
  gradient_bytes += rounded(size_t(elements(e)) * sizeof(float));
  return int(weights.size()) - 1;
}

size_t Graph::bytes(const Value& v) const { return rounded(size_t(elements(v.extent)) * size_t(size_of(v.dtype))); }

void Graph::finish(int out) {
  values[size_t(out)].argument = Argument::out;
  place_values();
  place_gradients();
}

void Graph::place_values() {
  const auto root = [&](int v) { return size_t(values[size_t(v)].root); };
  std::vector<int> last(values.size(), -1);  // the last step that uses a root
  for (int n = 0; n < int(steps.size()); ++n)
    for (const auto* list : {&steps[size_t(n)]->inputs, &steps[size_t(n)]->outputs})
      for (const int v : *list) last[root(v)] = n;
  Gaps lean;
  std::vector<bool> placed(values.size(), false);
  tape_bytes = 0;
  size_t scratch = 0;
  for (int n = 0; n < int(steps.size()); ++n) {
    for (const int v : steps[size_t(n)]->outputs) {
      Value& r = values[root(v)];
      if (placed[root(v)] || r.argument != Argument::none) continue;
      placed[root(v)] = true;
      r.tape_at = tape_bytes, r.lean_at = lean.take(bytes(r));
      tape_bytes += bytes(r);
    }
    for (size_t v = 0; v < values.size(); ++v)
      if (placed[v] && last[v] == n) lean.give(values[v].lean_at);
    scratch = std::max(scratch, steps[size_t(n)]->scratch(Pass::forward));
  }
  forward_bytes = rounded(scratch);
  lean_bytes = lean.most() + forward_bytes;
}

void Graph::place_gradients() {
  const auto root = [&](int v) { return size_t(values[size_t(v)].root); };
  Gaps gaps;
  std::vector<bool> begun(values.size(), false), placed(values.size(), false);
  std::vector<int> first(values.size(), -1);  // the first step that writes a root
  for (int n = int(steps.size()); n-- > 0;)
    for (const int v : steps[size_t(n)]->outputs)
      if (!steps[size_t(n)]->in_place) first[root(v)] = n;
  size_t scratch = 0;
  for (int n = int(steps.size()); n-- > 0;) {
    Step& s = *steps[size_t(n)];
    if (s.in_place) continue;
    s.keep.assign(s.inputs.size(), 0.f);
    const size_t from = root(s.outputs[0]);
    bool handed_on = false;
    for (size_t i = 0; i < s.inputs.size(); ++i) {
      const int v = s.inputs[i];
      s.keep[i] = begun[size_t(v)] ? 1.f : 0.f;
      begun[size_t(v)] = true;
      if (placed[root(v)]) continue;
      placed[root(v)] = true;
      Value& r = values[root(v)];
      // A residual's gradient reuses the memory of the sum's gradient, which is no longer needed.
      const bool this_one = int(i) == s.passes && root(v) == size_t(v) && values[from].argument == Argument::none;
      r.gradient_at = this_one ? values[from].gradient_at : gaps.take(bytes(r));
      handed_on |= this_one;
    }
    scratch = std::max(scratch, s.scratch(Pass::backward));
    if (first[from] == n && values[from].argument == Argument::none && !handed_on) gaps.give(values[from].gradient_at);
  }
  gradients_end = gaps.most();
  backward_bytes = gradients_end + rounded(scratch);
}

Tensor Run::value(int n) const {
  const Value& v = graph.values[size_t(n)];
  const Value& root = graph.values[size_t(v.root)];
  if (root.argument != Argument::none) return piece_of(v, given[int(root.argument)]);
  return piece_of(v, tensor_of(tape + (lean ? root.lean_at : root.tape_at), v.dtype, v.extent, v.stride, graph.device));
}

Tensor Run::gradient(int n) const {
  const Value& v = graph.values[size_t(n)];
  const Value& root = graph.values[size_t(v.root)];
  const Tensor& theirs = gradient_given[int(root.argument)];
  if (root.argument != Argument::none && theirs.data) return piece_of(v, theirs);
  return piece_of(v, tensor_of(workspace + root.gradient_at, v.dtype, v.extent, v.stride, graph.device));
}

Tensor Run::weight(int n) const {
  const Weight& w = graph.weights[size_t(n)];
  return tensor_of(parameters + w.at, w.dtype, w.extent, compact(w.extent), graph.device);
}

Tensor Run::weight_gradient(int n) const {
  const Weight& w = graph.weights[size_t(n)];
  return tensor_of(parameter_gradients + w.gradient_at, DType::f32, w.extent, compact(w.extent), graph.device);
}

Tensor Run::constant(int n) const {
  const Constant& c = graph.constants[size_t(n)];
  return tensor_of(constants + c.at, c.dtype, c.extent, compact(c.extent), graph.device);
}

}  // namespace attune
