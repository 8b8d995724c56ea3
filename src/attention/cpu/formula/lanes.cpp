// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/formula/lanes.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

// The loops for wider registers too, chosen when the program is loaded; no result depends on it.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ATTUNE_WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ATTUNE_WIDE
#endif

namespace attune::cpu {
namespace {

constexpr int kLanes = FormulaLanes::kLanes;
constexpr int64_t kMostSums = 1 << 22;  // gradients of one array that are summed in double

template <class F>
[[gnu::always_inline]] inline void each(double* to, const F& f) {
  for (int l = 0; l < kLanes; ++l) to[l] = f(l);
}

ATTUNE_WIDE void apply(Op op, const double* a, const double* b, const double* c, double* to) {
  switch (op) {
    case Op::add: return each(to, [=](int l) { return a[l] + b[l]; });
    case Op::subtract: return each(to, [=](int l) { return a[l] - b[l]; });
    case Op::multiply: return each(to, [=](int l) { return a[l] * b[l]; });
    case Op::divide: return each(to, [=](int l) { return a[l] / b[l]; });
    case Op::floor_divide: return each(to, [=](int l) { return std::floor(a[l] / b[l]); });
    case Op::modulo: return each(to, [=](int l) { return a[l] - b[l] * std::floor(a[l] / b[l]); });
    case Op::minimum: return each(to, [=](int l) { return b[l] < a[l] ? b[l] : a[l]; });
    case Op::maximum: return each(to, [=](int l) { return a[l] < b[l] ? b[l] : a[l]; });
    case Op::negative: return each(to, [=](int l) { return -a[l]; });
    case Op::absolute: return each(to, [=](int l) { return std::fabs(a[l]); });
    case Op::tanh: return each(to, [=](int l) { return std::tanh(a[l]); });
    case Op::exp: return each(to, [=](int l) { return std::exp(a[l]); });
    case Op::log: return each(to, [=](int l) { return std::log(a[l]); });
    case Op::sqrt: return each(to, [=](int l) { return std::sqrt(a[l]); });
    case Op::floor: return each(to, [=](int l) { return std::floor(a[l]); });
    case Op::less: return each(to, [=](int l) { return a[l] < b[l] ? 1. : 0.; });
    case Op::less_equal: return each(to, [=](int l) { return a[l] <= b[l] ? 1. : 0.; });
    case Op::greater: return each(to, [=](int l) { return a[l] > b[l] ? 1. : 0.; });
    case Op::greater_equal: return each(to, [=](int l) { return a[l] >= b[l] ? 1. : 0.; });
    case Op::equal: return each(to, [=](int l) { return a[l] == b[l] ? 1. : 0.; });
    case Op::unequal: return each(to, [=](int l) { return a[l] == b[l] ? 0. : 1.; });
    case Op::both: return each(to, [=](int l) { return a[l] * b[l]; });
    case Op::either: return each(to, [=](int l) { return a[l] + b[l] > 0 ? 1. : 0.; });
    case Op::opposite: return each(to, [=](int l) { return 1 - a[l]; });
    case Op::choose: return each(to, [=](int l) { return a[l] != 0 ? b[l] : c[l]; });
    default: return;
  }
}

// The gradients of the operands, times d; each is written whole. A lane that passes nothing on (d = 0) stays 0.
void slopes_of(Op op, const double* a, const double* b, const double* y, const double* d, double* da, double* db) {
  const auto part = [](double d, double by) { return d == 0 ? 0 : d * by; };
  for (int l = 0; l < kLanes; ++l) {
    const double g = d[l];
    double x = 0, z = 0;
    switch (op) {
      case Op::add: x = g, z = g; break;
      case Op::subtract: x = g, z = -g; break;
      case Op::multiply: x = part(g, b[l]), z = part(g, a[l]); break;
      case Op::divide: x = part(g, 1 / b[l]), z = -part(g, a[l] / (b[l] * b[l])); break;
      case Op::modulo: x = g, z = -part(g, std::floor(a[l] / b[l])); break;
      case Op::minimum: (b[l] < a[l] ? z : x) = g; break;
      case Op::maximum: (a[l] < b[l] ? z : x) = g; break;
      case Op::negative: x = -g; break;
      case Op::absolute: x = a[l] < 0 ? -g : a[l] > 0 ? g : 0; break;
      case Op::tanh: x = part(g, 1 - y[l] * y[l]); break;
      case Op::exp: x = part(g, y[l]); break;
      case Op::log: x = part(g, 1 / a[l]); break;
      case Op::sqrt: x = part(g, 0.5 / y[l]); break;
      default: break;
    }
    da[l] = x;
    if (db) db[l] = z;
  }
}

ATTUNE_WIDE void hide_where(const double* visible, float* x) {
  for (int l = 0; l < kLanes; ++l) x[l] = visible[l] != 0 ? x[l] : -INFINITY;
}

void add(double* to, const double* x) {
  for (int l = 0; l < kLanes; ++l) to[l] += x[l];
}

}  // namespace

BoxIs FormulaCall::decide(const PairBox& x) const { return bounds.decide(formula, x); }

bool FormulaCall::sums_arrays() const {
  for (int n = 0; n < formula.arrays; ++n)
    if (args->given(d_variant_tensor(n))) return true;
  return false;
}

FormulaLanes::Scratch FormulaLanes::carve(Workspace& ws, const Problem& p) {
  const size_t numbers = size_t(formula_of(p).nodes) * kLanes;
  Scratch x;
  x.value = ws.take<double>(numbers);
  x.slope = ws.take<double>(p.pass == Pass::backward ? numbers : 0);
  return x;
}

FormulaLanes::FormulaLanes(const FormulaCall& call, const Scratch& scratch, uint8_t lane_leaves)
    : call_(call), f_(call.formula), x_(scratch), lane_leaves_(lane_leaves) {
  for (int n = 0; n < f_.nodes; ++n) {
    const FormulaNode& node = f_.node[n];
    uint8_t& own = depends_[n];
    if (node.op == Op::s) own = kS;
    if (node.op == Op::q) own = kQ;
    if (node.op == Op::k) own = kK;
    if (node.op == Op::h || node.op == Op::g) own = kH;
    for (int i = 0; i < node.operands; ++i) own |= depends_[node.operand[i]];
    if (!node.operands) {  // leaves are filled in
      leaves_[leaves_count_++] = int16_t(n);
      continue;
    }
    if (own & kS) of_s_[s_count_++] = int16_t(n);
    else if (own & ~lane_leaves_) of_rows_[rows_count_++] = int16_t(n);
    else of_lanes_[lanes_count_++] = int16_t(n);
  }
}

void FormulaLanes::fill(Op leaf, double x) {
  for (int i = 0; i < leaves_count_; ++i)
    if (const int n = leaves_[i]; f_.node[n].op == leaf)
      std::fill_n(lane(n), kLanes, leaf == Op::number ? f_.node[n].number : x);
}

void FormulaLanes::begin(const Sequence& seq, int b, int n) {
  n_ = n;
  fill(Op::number, 0), fill(Op::b, b), fill(Op::len_q, seq.len_q), fill(Op::len_k, seq.len_k);
}

void FormulaLanes::keys(const Sequence& seq, int b, int64_t first, int64_t step, int n) {
  begin(seq, b, n);
  for (int node = 0; node < f_.nodes; ++node)
    for (int l = 0; f_.node[node].op == Op::k && l < kLanes; ++l)
      lane(node)[l] = double(first + step * std::min(l, n - 1));
  compute(of_lanes_, lanes_count_);
}

void FormulaLanes::query(int64_t position, int head) {
  fill(Op::q, double(position)), fill(Op::h, head), fill(Op::g, head / call_.group);
  compute(of_rows_, rows_count_);
}

void FormulaLanes::queries(const Sequence& seq, int b, const int64_t* position, const int* head, int n) {
  begin(seq, b, n);
  for (int node = 0; node < f_.nodes; ++node) {
    const Op op = f_.node[node].op;
    if (op != Op::q && op != Op::h && op != Op::g) continue;
    for (int l = 0; l < kLanes; ++l) {
      const int at = std::min(l, n - 1);
      lane(node)[l] = op == Op::q ? double(position[at]) : op == Op::h ? head[at] : head[at] / call_.group;
    }
  }
  compute(of_lanes_, lanes_count_);
}

void FormulaLanes::key(int64_t position) {
  fill(Op::k, double(position));
  compute(of_rows_, rows_count_);
}

void FormulaLanes::hide(int n, float* x) const {
  const double* visible = mask();
  if (n == kLanes) return hide_where(visible, x);
  for (int l = 0; l < n; ++l) x[l] = visible[l] != 0 ? x[l] : -INFINITY;
}

const double* FormulaLanes::score(const double* s) {
  for (int n = 0; n < f_.nodes; ++n)
    if (f_.node[n].op == Op::s) std::copy_n(s, kLanes, lane(n));
  compute(of_s_, s_count_);
  return lane(f_.score);
}

void FormulaLanes::compute(const int16_t* nodes, int count) {
  for (int i = 0; i < count; ++i) {
    const int n = nodes[i];
    const FormulaNode& node = f_.node[n];
    if (node.op == Op::element) element(n);
    else apply(node.op, lane(node.operand[0]), lane(node.operand[1]), lane(node.operand[2]), lane(n));
  }
}

// The element's offset in the array, for lane l.
int64_t FormulaLanes::place(const FormulaNode& node, int l) const {
  const Tensor& t = (*call_.args)[variant_tensor(node.array)];
  const int32_t extent[] = {t.extent.batch, t.extent.seq, t.extent.head, t.extent.dim};
  const int64_t stride[] = {t.stride.batch, t.stride.seq, t.stride.head, 1};
  int64_t at = 0;
  for (int i = 0, axis = kMostIndices - node.operands; i < node.operands; ++i, ++axis)
    at += element_index(lane(node.operand[i])[l], extent[axis]) * stride[axis];
  return at;
}

void FormulaLanes::element(int n) {
  const FormulaNode& node = f_.node[n];
  const Tensor& t = (*call_.args)[variant_tensor(node.array)];
  double* to = lane(n);
  const bool varies = depends_[n] & lane_leaves_;
  const int lanes = varies ? n_ : 1;
  int64_t at[kLanes];
  for (int l = 0; l < lanes; ++l) at[l] = place(node, l);
  const auto read = [&](const auto* data) {
    for (int l = 0; l < lanes; ++l) to[l] = double(data[at[l]]);
  };
  if (t.dtype == DType::f32) read(static_cast<const float*>(t.data));
  else if (t.dtype == DType::i64) read(static_cast<const int64_t*>(t.data));
  else read(static_cast<const int32_t*>(t.data));
  std::fill(to + lanes, to + kLanes, to[lanes - 1]);
}

void FormulaLanes::gradients(const double* d_score, double* d_s) {
  std::fill_n(d_s, kLanes, 0.);
  for (int n = 0; n <= f_.score; ++n) std::fill_n(slope(n), kLanes, 0.);
  std::copy_n(d_score, kLanes, slope(f_.score));
  for (int n = f_.score; n >= 0; --n) {
    const FormulaNode& node = f_.node[n];
    if (node.truth) continue;
    if (node.op == Op::s) add(d_s, slope(n));
    else if (node.op == Op::element) add_to_array(node, slope(n));
    else if (node.operands) add_slopes(node, slope(n));
  }
}

void FormulaLanes::add_slopes(const FormulaNode& node, const double* d) {
  double da[kLanes], db[kLanes];
  if (node.op == Op::choose) {
    const double* condition = lane(node.operand[0]);
    for (int l = 0; l < kLanes; ++l) da[l] = condition[l] != 0 ? d[l] : 0, db[l] = condition[l] != 0 ? 0 : d[l];
    add(slope(node.operand[1]), da), add(slope(node.operand[2]), db);
    return;
  }
  const int own = int(&node - f_.node);
  slopes_of(node.op, lane(node.operand[0]), lane(node.operand[1]), lane(own), d, da, node.operands > 1 ? db : nullptr);
  add(slope(node.operand[0]), da);
  if (node.operands > 1) add(slope(node.operand[1]), db);
}

void FormulaLanes::add_to_array(const FormulaNode& node, const double* d) {
  const Tensor& t = (*call_.args)[d_variant_tensor(node.array)];
  if (!t.data || n_ <= 0) return;
  const Tensor& array = (*call_.args)[variant_tensor(node.array)];
  const auto add_one = [&](int l, double x) {
    if (x == 0) return;
    int64_t index[kMostIndices] = {};
    const int32_t extent[] = {array.extent.batch, array.extent.seq, array.extent.head, array.extent.dim};
    for (int i = 0, axis = kMostIndices - node.operands; i < node.operands; ++i, ++axis)
      index[axis] = element_index(lane(node.operand[i])[l], extent[axis]);
    if (double* sums = call_.d_array[node.array]) {
      double& to = sums[((index[0] * extent[1] + index[1]) * extent[2] + index[2]) * extent[3] + index[3]];
      if (call_.alone) to += x;
      else std::atomic_ref<double>(to).fetch_add(x, std::memory_order_relaxed);
      return;
    }
    float& to = static_cast<float*>(t.data)[index[0] * t.stride.batch + index[1] * t.stride.seq +
                                            index[2] * t.stride.head + index[3]];
    std::atomic_ref<float>(to).fetch_add(float(x), std::memory_order_relaxed);
  };
  uint8_t varies = 0;
  for (int i = 0; i < node.operands; ++i) varies |= depends_[node.operand[i]] & lane_leaves_;
  if (varies) {
    for (int l = 0; l < n_; ++l) add_one(l, d[l]);
    return;
  }
  double sum = 0;
  for (int l = 0; l < n_; ++l) sum += d[l];
  add_one(0, sum);
}

FormulaCall carve_formula(Workspace& ws, const Problem& p) {
  FormulaCall call;
  if (!has_formula(p)) return call;
  call.formula = formula_of(p), call.group = p.heads_q / p.heads_kv;
  place_bounds(p, call.formula, ws, call.bounds);
  for (int n = 0; p.pass == Pass::backward && n < call.formula.arrays; ++n) {
    if (!call.formula.array[n].in_score) continue;
    const Extents e = extents_of(p, call.formula, n);
    const double all = double(e.batch) * e.seq * e.head * e.dim;
    call.sums[n] = int64_t(std::min(all, double(kMostSums)));
    call.d_array[n] = ws.take<double>(size_t(call.sums[n]));
  }
  return call;
}

void begin_formula(const Problem& p, const Args& given, FormulaCall& call) {
  if (!call) return;
  call.args = &given;
  build_bounds(call.formula, given, call.bounds);
  for (int n = 0; n < call.formula.arrays; ++n) {
    const Tensor& to = given[d_variant_tensor(n)];
    const Extents e = to.extent;
    const double all = double(e.batch) * e.seq * e.head * e.dim;
    if (!to.data) continue;
    if (!call.d_array[n] || all > double(call.sums[n])) {
      call.d_array[n] = nullptr;  // larger than the problem needs
      for (int b = 0; b < e.batch && !p.has(Option::accumulate); ++b)
        for (int s = 0; s < e.seq; ++s)
          for (int h = 0; h < e.head; ++h) std::fill_n(view<float>(to).row(b, s, h), e.dim, 0.f);
      continue;
    }
    std::fill_n(call.d_array[n], int64_t(all), 0.);
  }
}

void store_formula(const Problem& p, const FormulaCall& call) {
  for (int n = 0; call && n < call.formula.arrays; ++n) {
    const Tensor& to = (*call.args)[d_variant_tensor(n)];
    if (!to.data || !call.d_array[n]) continue;
    const double* sum = call.d_array[n];
    for (int b = 0; b < to.extent.batch; ++b)
      for (int s = 0; s < to.extent.seq; ++s)
        for (int h = 0; h < to.extent.head; ++h)
          for (int d = 0; d < to.extent.dim; ++d, ++sum) {
            float& x = view<float>(to).row(b, s, h)[d];
            x = float(*sum + (p.has(Option::accumulate) ? double(x) : 0));
          }
  }
}

}  // namespace attune::cpu
