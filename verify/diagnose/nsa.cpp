// SPDX-License-Identifier: Apache-2.0
// Readings of Native Sparse Attention. Its branches share one scale, one head order and one query position, so a
// mistake affects all of them at once.
#include "verify/diagnose/nsa.h"

#include <algorithm>
#include <cmath>

#include "verify/diagnose/nsa_branches.h"

namespace attune {
namespace {

struct NsaReading {
  const char* name;
  const char* sentence;
  void (*change)(NsaBranches&);
};

constexpr NsaReading kReadings[] = {
    {"", "", [](NsaBranches&) {}},
    {"swapped-layout", "q, k and v are read with head and sequence axes swapped",
     [](NsaBranches& r) { r.swapped = true; }},
    {"missing-scale", "scores are not multiplied by the scale", [](NsaBranches& r) { r.scale = 1; }},
    {"missing-scale", "scores are multiplied by the scale twice", [](NsaBranches& r) { r.scale *= r.scale; }},
    {"top-left-causal", "the mask is aligned to the first query and key, not to the last",
     [](NsaBranches& r) { r.top_left = true; }},
    {"head-order", "query head h reads KV head h % heads_kv instead of h / group",
     [](NsaBranches& r) { r.kv_head = r.h % r.p.heads_kv; }},
    {"window-off-by-one", "the window has a token too many", [](NsaBranches& r) { ++r.window; }},
    {"window-off-by-one", "the window has a token too few", [](NsaBranches& r) { --r.window; }},
    {"tail-unmasked", "a selected block is read to its end, past the query", [](NsaBranches& r) { r.tail = true; }},
    {"one-key", "only the first key of each branch is read", [](NsaBranches& r) { r.only_key = 1; }},
    {"one-key", "only the last key of each branch is read", [](NsaBranches& r) { r.only_key = -1; }},
};

Row row_of(const NsaBranches& one, int i) {
  const Row q = one.query(i);
  Row out(size_t(one.p.dim_v));
  double gate[3];
  one.gates(i, gate);
  for (int n = 0; n < 3; ++n) {
    if (!one.wants(Branch(n)) || (n == 2 && one.nsa.w == 0)) continue;
    const std::vector<int64_t> keys = one.keys(n, i);
    Row x;
    double top = -INFINITY, total = 0;
    for (const int64_t j : keys) x.push_back(one.scale * dot(q, one.key(n, j, false))), top = std::max(top, x.back());
    for (const double y : x) total += std::exp(y - top);
    for (size_t m = 0; m < keys.size(); ++m) {
      const Row v = one.key(n, keys[m], true);
      for (size_t d = 0; d < v.size(); ++d) out[d] += gate[n] * std::exp(x[m] - top) / total * v[d];
    }
  }
  return out;
}

double distance(const Row& got, const Row& expected) {
  double error = 0;
  for (size_t d = 0; d < got.size(); ++d) error += std::pow(got[d] - expected[d], 2);
  const double all = std::sqrt(error) / std::max(std::sqrt(dot(expected, expected)), 1e-6);
  return std::isfinite(all) ? all : INFINITY;
}

// Rows are read by their index in a tensor, so every sequence must be complete and in place.
bool is_askable(const Problem& p, const Args& a) {
  if (a.given(Role::used_q) || a.given(Role::cu_q) || a.given(Role::cache_index)) return false;
  const Nsa nsa = nsa_of(p);
  const bool chooses = nsa.only == Branch::all || nsa.only == Branch::selected;
  return p.pass == Pass::forward && p.keys == KeySource::linear && (nsa.phi == Phi::mean || nsa.phi == Phi::none) &&
         a.given(Role::out) && (!chooses || a.given(variant_tensor(kNsaBlocks)));
}

}  // namespace

Mistake diagnose_nsa(const Problem& p, const Args& a) {
  if (!is_askable(p, a)) return {};
  const int len_q = a[Role::q].extent.seq;
  struct Place { int b, h, i; };
  std::vector<Place> places;
  Random random{7};
  for (int n = 0; n < 12 && len_q > 0; ++n)  // both ends, and some in between
    places.push_back({n == 0 ? 0 : n == 1 ? p.batch - 1 : random.below(p.batch),
                      n == 0 ? 0 : n == 1 ? p.heads_q - 1 : random.below(p.heads_q),
                      n == 0 ? 0 : n == 1 ? len_q - 1 : random.below(len_q)});
  std::vector<Row> got;
  for (const auto& [b, h, i] : places) {
    got.push_back(read_row(a[Role::out], b, i, h));
    if (std::any_of(got.back().begin(), got.back().end(), [](double x) { return !(std::abs(x) < 1e37); }))
      return {"unwritten-output", join("row ", i, " of batch ", b, ", head ", h, " was not written, or is NaN")};
  }
  const double close = size_of(p.dtype.kv) >= 4 && size_of(p.dtype.out) >= 4 ? 1e-4 : 0.04;
  const auto worst = [&](const NsaReading& reading, double limit) {
    double error = 0;
    for (size_t n = 0; n < places.size() && error <= limit; ++n) {
      NsaBranches one(p, a, places[n].b, places[n].h);
      reading.change(one);
      error = std::max(error, distance(got[n], row_of(one, places[n].i)));
    }
    return error;
  };
  if (places.empty() || worst(kReadings[0], INFINITY) <= close) return {};
  const NsaReading* best = nullptr;
  double least = close;
  for (const NsaReading& reading : kReadings) {
    if (!*reading.name) continue;
    if (const double error = worst(reading, least); error < least || (!best && error <= least))
      best = &reading, least = error;
  }
  return best ? Mistake{best->name, best->sentence} : Mistake{};
}

}  // namespace attune
