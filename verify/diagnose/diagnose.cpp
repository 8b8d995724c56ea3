// SPDX-License-Identifier: Apache-2.0
#include "verify/diagnose/diagnose.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "verify/diagnose/gradient.h"
#include "verify/diagnose/nsa.h"
#include "verify/diagnose/reading.h"

namespace attune {
namespace {

constexpr double kLogOfTwo = 0.6931471805599453;

constexpr const char* kNames[] = {"swapped-layout", "missing-scale", "top-left-causal", "head-order", "transposed-v",
                                  "window-off-by-one", "log2-lse", "tail-unmasked", "one-key", "ignored-mask",
                                  "unwritten-output", "swapped-gradients", "missing-group-sum"};

bool is_askable(const Problem& p, const Args& a) {
  for (const Option o : {Option::accumulate, Option::append, Option::rotary, Option::rotary_half, Option::descale,
                         Option::dropout})
    if (p.has(o)) return false;
  const std::string_view variant = word(p.variant);
  const bool adaptive = variant == "adaptive" && p.pass == Pass::forward;
  if (!variant.empty() && !adaptive && !(variant == "dilated" && is_one_softmax(p))) return false;
  if (!a.given(Role::out)) return false;
  return p.pass == Pass::forward || (a.given(Role::lse) && a.given(Role::d_out) && a.given(Role::dq));
}

}  // namespace

Mistake diagnose(const Problem& p, const Args& a) {
  if (word(p.variant) == "nsa") return diagnose_nsa(p, a);
  if (!is_askable(p, a)) return {};
  const std::vector<Reader> rows = drawn(p, a);
  const bool exact = size_of(p.dtype.kv) >= 4 && size_of(p.dtype.out) >= 4 && p.precision != Precision::tf32;
  const double close = exact ? 1e-4 : 0.04;  // a mistake changes a row by a large fraction of its size
  const std::vector<Reading> all = readings(p, double(scale_of(p, a)));
  if (p.pass == Pass::backward) return diagnose_gradient(p, a, rows, all, close);
  std::vector<Answer> right;
  double worst = 0;
  for (const Reader& r : rows) {
    right.push_back(r.row(all[0]));
    worst = std::max(worst, distance(r.written(Order::said), right.back().out));
  }
  if (worst <= close) {
    if (!a.given(Role::lse)) return {};
    for (const auto& [factor, sentence] : {std::pair(1 / kLogOfTwo, "lse is in base 2 instead of natural"),
                                           {kLogOfTwo, "lse is multiplied by ln 2"}}) {
      bool fits = true, differs = false;
      for (size_t n = 0; n < rows.size() && fits; ++n) {
        const double expected = right[n].lse, got = rows[n].lse(), room = close * (1 + std::abs(expected));
        if (!std::isfinite(expected)) continue;
        fits = std::abs(got - factor * expected) <= room;
        differs = differs || std::abs(got - expected) > room;
      }
      if (fits && differs) return {"log2-lse", sentence};
    }
    return {};
  }
  const Reading* const best = explaining(rows, all, close, [](const Reader& row, const Reading& reading) {
    return row.error(reading, row.row(reading));
  });
  return best ? Mistake{best->name, best->sentence} : unwritten(rows);
}

std::string mistake_names() {
  std::string all;
  for (const char* name : kNames) all += join(all.empty() ? "" : ", ", name);
  return all;
}

}  // namespace attune
