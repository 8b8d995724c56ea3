// SPDX-License-Identifier: Apache-2.0
#include "core/variant/adaptive.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace attune {
namespace {

Status no(const auto&... why) { return Status::no("adaptive: ", why...); }

Status number(const Problem& p, std::string_view name, int32_t least, int32_t most, int32_t& out) {
  const std::string_view text = value(p.variant, name);
  if (text.empty()) return Status::good();
  const Numbers all = numbers(p.variant, name);
  if (all.count != 1 || all[0] < least || all[0] > most)
    return no(name, "=", text, " is not in ", least, " ... ", most);
  return out = all[0], Status::good();
}

}  // namespace

Status read_adaptive(const Problem& p, Adaptive& out) {
  out = {};
  for (std::string_view rest = p.variant.text; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(' ')), key = one.substr(0, one.find('='));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    constexpr std::string_view kKeys[] = {"adaptive", "block", "density", "hidden", "noise", "per_head"};
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys))
      return no("unknown parameter '", key, "'; accepted: block, density, hidden, noise, per_head");
  }
  if (Status s = number(p, "block", 1, 1 << 20, out.block); !s.ok()) return s;
  if (Status s = number(p, "hidden", 1, 1024, out.hidden); !s.ok()) return s;
  if (Status s = number(p, "per_head", 0, 1, out.per_head); !s.ok()) return s;
  const std::string_view density = value(p.variant, "density"), noise = value(p.variant, "noise");
  if (!density.empty() && !parse_millionths(density, out.density))
    return no("density=", density, " is not in 0 ... 1 with at most six decimals");
  if (!noise.empty() && noise != "gumbel" && noise != "none") return no("noise=", noise, " is not gumbel or none");
  out.gumbel = noise == "gumbel";
  return Status::good();
}

Status valid_adaptive(const Problem& p) {
  Adaptive a;
  if (Status s = read_adaptive(p, a); !s.ok()) return s;
  if (p.mask.blocks.q) return no("mask ", name(p.mask), " has blocks; adaptive attention selects its own");
  if (p.keys == KeySource::paged) return no("keys must be linear or ragged, not paged");
  for (const Option o : {Option::bias, Option::accumulate, Option::append, Option::descale})
    if (p.has(o)) return no("cannot be combined with option ", name(o));
  if (adaptive_bound(p, a) > INT32_MAX) return no("up to ", adaptive_bound(p, a), " list entries, over 2^31 - 1");
  return Status::good();
}

void declare_adaptive(const Problem& p, const Args&, Declared& d) {
  const Adaptive a = adaptive_of(p);
  const int32_t dim = p.dim_qk, nets = a.per_head ? p.heads_q : 1;
  const auto set = [&](AdaptiveTensor n, std::string_view name, Use use, DType dtype, Extents e, double inputs = 1) {
    d.tensor[int(n)] = {.name = name, .use = use, .dtype = dtype, .extent = e, .inputs = inputs};
  };
  using T = AdaptiveTensor;
  set(T::wq, "wq", Use::input, DType::f32, {1, dim, 1, dim}, dim);
  set(T::wk, "wk", Use::input, DType::f32, {1, dim, 1, dim}, dim);
  set(T::bq, "bq", Use::input, DType::f32, {1, 1, 1, dim}), set(T::bk, "bk", Use::input, DType::f32, {1, 1, 1, dim});
  set(T::w1, "w1", Use::input, DType::f32, {1, a.hidden, nets, 2 * dim}, dim);
  set(T::b1, "b1", Use::input, DType::f32, {1, 1, nets, a.hidden});
  set(T::w2, "w2", Use::input, DType::f32, {1, 1, nets, a.hidden}, a.hidden);
  set(T::b2, "b2", Use::input, DType::f32, {1, 1, nets, 1});
  set(T::log_temperature, "log_temperature", Use::input, DType::f32, {1, 1, 1, 1});
  if (a.gumbel) set(T::noise, "noise", Use::list, DType::i64, {1, 1, 1, 2});
  const int32_t rows = int32_t(ceil_div(p.len_q, a.block)), bound = int32_t(adaptive_bound(p, a));
  set(T::begin, "begin", Use::saved, DType::i32, {p.batch, 1, p.heads_q, rows + 1});
  set(T::column, "column", Use::saved, DType::i32, {1, 1, 1, bound});
  set(T::scores, "scores", Use::saved, DType::f32, {1, 1, 1, bound});
}

int64_t adaptive_bound(const Problem& p, const Adaptive& a) {
  const int64_t rows = ceil_div(p.len_q, a.block), columns = ceil_div(p.len_k, a.block);
  const bool falls = p.mask.kind == MaskKind::causal && p.mask.align == Align::bottom_right && p.mask.k_step == 1;
  constexpr int64_t kMost = 1 << 16;  // limit for counting row by row
  int64_t all = falls && rows <= kMost ? 0 : rows * a.kept(int(columns));
  // Causal: the n-th row from the end sees n blocks fewer than the last row, or n - 1 fewer where it straddles a
  // boundary.
  for (int64_t n = 0; falls && rows <= kMost && n < rows; ++n)
    all += a.kept(int(std::clamp<int64_t>(columns - n + 1, 0, columns)));
  constexpr double kTooMany = 0x1p62;  // beyond any list, and no product overflows
  const double lists = double(p.batch) * p.heads_q;
  return double(all) * lists > kTooMany ? int64_t(kTooMany) : std::max<int64_t>(1, all * int64_t(lists));
}

}  // namespace attune
