// SPDX-License-Identifier: Apache-2.0
#include "verify/diagnose/reading.h"

#include <algorithm>

#include "core/check.h"

namespace attune {
namespace {

constexpr double kLogOfTwo = 0.6931471805599453;

}  // namespace

std::vector<Reading> readings(const Problem& p, double scale) {
  const Reading right{.name = "", .sentence = "", .mask = p.mask, .scale = scale, .gradient_scale = scale};
  std::vector<Reading> all{right};
  const auto add = [&](const char* name, const char* sentence, auto change) {
    Reading r = right;
    r.name = name, r.sentence = sentence;
    change(r);
    all.push_back(r);
  };
  add("swapped-layout", "the head and sequence axes are swapped: BSHD is read as BHSD, or the reverse",
      [](Reading& r) { r.order = Order::heads_as_sequence; });
  add("swapped-layout", "q, k and v are read with head and sequence axes swapped",
      [](Reading& r) { r.order = Order::inputs_swapped; });
  add("swapped-layout", "all tensors are read and written with head and sequence axes swapped",
      [](Reading& r) { r.order = Order::all_swapped; });
  add("missing-scale", "scores are not multiplied by the scale", [](Reading& r) { r.scale = r.gradient_scale = 1; });
  add("missing-scale", "scores are multiplied by the scale twice",
      [](Reading& r) { r.gradient_scale = r.scale *= r.scale; });
  if (p.pass == Pass::backward) {
    add("missing-scale", "gradients are not multiplied by the scale", [](Reading& r) { r.gradient_scale = 1; });
    add("missing-scale", "gradients are multiplied by the scale twice",
        [](Reading& r) { r.gradient_scale *= r.gradient_scale; });
    add("log2-lse", "the given natural lse is taken for base 2",
        [](Reading& r) { r.lse_by = kLogOfTwo; });
    add("log2-lse", "the given natural lse is converted twice", [](Reading& r) { r.lse_by = 1 / kLogOfTwo; });
  }
  if (p.mask.kind != MaskKind::full && p.mask.align == Align::bottom_right)
    add("top-left-causal", "the mask is aligned to the first query and key, not to the last",
        [](Reading& r) { r.mask.align = Align::top_left; });
  add("head-order", "query head h reads KV head h % heads_kv instead of h / group",
      [](Reading& r) { r.heads_modulo = true; });
  add("transposed-v", "v is read as its transpose", [](Reading& r) { r.transposed_v = true; });
  if (p.mask.kind != MaskKind::full) {
    const int32_t left = p.mask.kind == MaskKind::window ? p.mask.left : kNoLimit;
    const int32_t right_side = p.mask.kind == MaskKind::window ? p.mask.right : 0;
    for (const int by : {1, -1}) {
      if (left != kNoLimit)
        add("window-off-by-one", by > 0 ? "the window has a key too many on the left" : "the window lacks its last key "
            "on the left", [&](Reading& r) { r.mask.kind = MaskKind::window, r.mask.left = left + by; });
      if (right_side != kNoLimit)
        add("window-off-by-one", by > 0 ? "a query sees one key too many on the right" : "a query does not see its "
            "last key on the right", [&](Reading& r) {
              r.mask.kind = MaskKind::window, r.mask.left = left, r.mask.right = right_side + by;
            });
    }
    add("ignored-mask", "every query sees every key", [](Reading& r) {
      r.mask.kind = MaskKind::full, r.mask.left = r.mask.right = 0;
    });
  }
  for (const int tile : {8, 16, 32, 64, 128, 256}) {
    add("tail-unmasked", "keys past the last one, up to the end of a tile, count as zeros",
        [&](Reading& r) { r.tail = Tail::zeros, r.tile = tile; });
    add("tail-unmasked", "the last key is repeated up to the end of a tile",
        [&](Reading& r) { r.tail = Tail::last_again, r.tile = tile; });
  }
  add("one-key", "only the first key is read", [](Reading& r) { r.keys = Keys::first_only; });
  add("one-key", "only the last key is read", [](Reading& r) { r.keys = Keys::last_only; });
  return all;
}

Answer Reader::row(const Reading& r) const {
  Problem as = p;
  as.mask = r.mask;
  const Sequence s = sequence(as, a, b);
  const bool swapped = r.order == Order::inputs_swapped || r.order == Order::all_swapped;
  const bool exchanged = r.order == Order::heads_as_sequence;
  if ((swapped || exchanged) && (p.keys != KeySource::linear || p.heads_q != p.heads_kv || s.len_q != s.len_k))
    return {};
  if (swapped && (s.q_first || s.k_first)) return {};
  const bool by_head = p.has(Option::bias) || p.mask.blocks.q || !word(p.variant).empty();
  if (exchanged && by_head) return {};  // no head exists at the row of a key
  if (r.tail != Tail::none && s.len_k % r.tile == 0) return {};
  const int group = p.heads_q / p.heads_kv, head = r.heads_modulo ? h % p.heads_kv : h / group;
  const Row q = read(a[Role::q], s.q_batch, s.q_first + i, h, swapped);
  const int keys = exchanged ? p.heads_kv : s.len_k;
  const Band band = exchanged ? band_of(r.mask, p.heads_q, p.heads_kv, 0, 0) : s.band;
  const auto key_row = [&](Role role, int64_t j) {
    return exchanged ? read(a[role], s.k_batch, s.k_first + i, j, false) : key(role, s, j, head, swapped);
  };
  // v as its transpose: element (j, d) of [keys, dim] is at d * keys + j.
  const auto value = [&](int64_t j) {
    Row v = key_row(Role::v, j);
    if (!r.transposed_v) return v;
    const int64_t dim = int64_t(v.size());
    for (int64_t d = 0; d < dim; ++d) {
      const int64_t at = d * keys + j;
      v[size_t(d)] = load(a[Role::v], s.k_batch, s.k_first + at / dim, head, at % dim);
    }
    return v;
  };
  if (r.transposed_v && p.keys == KeySource::paged) return {};

  std::vector<double> logits;
  std::vector<int> which;  // -1: a key of zeros
  double top = p.has(Option::sink) ? double(*a.row<const float>(Role::sinks, 0, 0, h)) : -INFINITY;
  const double sink = top;
  const auto add = [&](double x, int j) { logits.push_back(x), which.push_back(j), top = std::max(top, x); };
  const auto product = [&](const Row& k) {
    double sum = 0;
    for (size_t d = 0; d < q.size(); ++d) sum += q[d] * k[d];
    return sum;
  };
  const int at = exchanged ? h : i;
  const int only = r.keys == Keys::first_only ? 0 : r.keys == Keys::last_only ? keys - 1 : -1;
  for (int j = 0; j < keys; ++j) {
    const int count = only >= 0 ? j == only : !band.visible(at, j) ? 0 : exchanged ? 1 : pairs.times(i, j);
    if (count) add(logit(product(key_row(Role::k, j)), r.scale, band, j) + std::log(count), j);
  }
  if (r.tail != Tail::none && keys > 0) {
    const int64_t end = round_up(keys, r.tile);
    const double again = r.tail == Tail::zeros ? 0 : product(key_row(Role::k, keys - 1)) * r.scale;
    for (int64_t j = keys; j < end; ++j) add(again, r.tail == Tail::zeros ? -1 : keys - 1);
  }
  double total = sink > -INFINITY ? std::exp(sink - top) : 0;
  for (const double x : logits) total += std::exp(x - top);
  Answer answer{Row(size_t(p.dim_v)), total > 0 ? top + std::log(total) : -INFINITY};
  for (size_t n = 0; n < logits.size(); ++n) {
    if (which[n] < 0) continue;
    const Row v = value(which[n]);
    const double weight = pairs.factor() * std::exp(logits[n] - top) / total;
    for (size_t d = 0; d < v.size(); ++d) answer.out[d] += weight * v[d];
  }
  return answer;
}

Answer Reader::gradient(const Reading& r, Forward forward, double& size) const {
  Problem as = p;
  as.mask = r.mask;
  const Sequence s = sequence(as, a, b);
  const bool swapped = r.order == Order::inputs_swapped || r.order == Order::all_swapped;
  if (r.order == Order::heads_as_sequence || r.tail != Tail::none || r.transposed_v) return {};
  const bool plain = p.keys == KeySource::linear && p.heads_q == p.heads_kv && s.len_q == s.len_k && !s.q_first;
  if (swapped && !plain) return {};
  const int group = p.heads_q / p.heads_kv, head = r.heads_modulo ? h % p.heads_kv : h / group;
  const auto query = [&](Role role) { return read(a[role], s.q_batch, s.q_first + i, h, swapped); };
  const Row q = query(Role::q), d_out = query(Role::d_out);
  const Answer attended = forward == Forward::own ? row(r) : Answer{query(Role::out), r.lse_by * lse()};
  if (attended.out.empty()) return {};
  const auto product = [](const Row& x, const Row& y) {
    double sum = 0;
    for (size_t d = 0; d < x.size(); ++d) sum += x[d] * y[d];
    return sum;
  };
  const double delta = product(d_out, attended.out) / pairs.factor(), known = attended.lse;
  const int only = r.keys == Keys::first_only ? 0 : r.keys == Keys::last_only ? s.len_k - 1 : -1;
  Answer answer{Row(q.size()), attended.lse};
  Row terms(q.size());
  for (int j = 0; j < s.len_k; ++j) {
    const int count = only >= 0 ? j == only : s.band.visible(i, j) ? pairs.times(i, j) : 0;
    if (!count) continue;
    const Row k = key(Role::k, s, j, head, swapped);
    const double x = product(q, k) * r.scale, cap = p.has(Option::softcap) ? double(a.softcap) : 0;
    const double slope = cap > 0 ? 1 - std::pow(std::tanh(x / cap), 2) : 1;
    const double weight = pairs.factor() * count * std::exp(logit(product(q, k), r.scale, s.band, j) - known);
    const double dp = product(d_out, key(Role::v, s, j, head, swapped));
    for (size_t d = 0; d < k.size(); ++d) {
      answer.out[d] += r.gradient_scale * weight * slope * (dp - delta) * k[d];
      terms[d] += std::pow(r.gradient_scale * weight * (std::abs(dp) + std::abs(delta)) * k[d], 2);
    }
  }
  size = 0;
  for (const double x : terms) size += x;
  size = std::sqrt(size);
  return answer;
}

std::vector<Reader> drawn(const Problem& p, const Args& a) {
  const double walk = double(p.len_k) * (p.dim_qk + p.dim_v);
  const int count = int(std::clamp(4e6 / walk, 6.0, 24.0));
  Random random{7};
  std::vector<Reader> rows;
  for (int n = 0; n < count; ++n) {
    const int b = n == 0 ? 0 : n == 1 ? p.batch - 1 : random.below(p.batch);
    const int h = n == 0 ? 0 : n == 1 ? p.heads_q - 1 : random.below(p.heads_q);
    const int len = sequence(p, a, b).len_q;
    if (len > 0) rows.push_back({p, a, b, h, n == 0 ? 0 : n == 1 ? len - 1 : random.below(len)});
  }
  return rows;
}

double Reader::error(const Reading& reading, const Answer& expected, double least) const {
  const Row got = written(reading.order);
  if (expected.lse == -INFINITY && expected.out.size() == got.size() && is_unwritten(got)) return 0;
  return distance(got, expected.out, least);
}

Mistake unwritten(const std::vector<Reader>& rows) {
  for (const Reader& r : rows)
    if (is_unwritten(r.written(Order::said)))
      return {"unwritten-output", join("row ", r.i, " of batch ", r.b, ", head ", r.h, " was not written, or is NaN")};
  return {};
}

double distance(const Row& got, const Row& expected, double least) {
  if (got.size() != expected.size()) return INFINITY;
  double error = 0, size = 0;
  for (size_t d = 0; d < got.size(); ++d)
    error += std::pow(got[d] - expected[d], 2), size += std::pow(expected[d], 2);
  const double all = std::sqrt(error) / std::max(std::sqrt(size), least);
  return std::isfinite(all) ? all : INFINITY;
}

bool is_unwritten(const Row& row) {
  return std::any_of(row.begin(), row.end(), [](double x) { return !(std::abs(x) < 1e37); });
}

}  // namespace attune
