// SPDX-License-Identifier: Apache-2.0
#include "verify/cases/kernels.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/score.h"
#include "verify/compare.h"

namespace attune {
namespace {

// Kernels are compiled for head dims up to one of these.
int dim_class(const Problem& p) {
  const int dim = std::max(p.dim_qk, p.dim_v);
  for (const int most : {64, 96, 128, 192})
    if (dim <= most) return most;
  return 256;
}

// Everything that makes a plan run different code: the kernel, and each of its code paths separately.
std::vector<std::string> codes_of(const Plan& plan) {
  const Problem& p = plan.problem;
  const std::string_view who = plan.backend->name;
  return {join(who, " kernel ", plan.kernel, " ", plan.tile_q, "x", plan.tile_k, " d", dim_class(p), " ",
               name(p.dtype.q), needs_general(p) ? " general" : "", plan.splits > 1 ? " split" : ""),
          join(who, " ", name(p.pass), " ", name(p.keys), p.reproducible != Reproducible::no ? " repro" : ""),
          join(who, " ", name(p.pass), p.mask.blocks.q ? " blocks" : "", p.has(Option::append) ? " append" : "")};
}

double work(const Problem& p) {
  return double(p.batch) * p.heads_q * p.len_q * p.len_k * (p.dim_qk + p.dim_v);
}

// Rows that are not 16-byte aligned come last: a backend may refuse them at run time, and its kernel would then have no
// case at all.
bool before(const Case& a, const Case& b) {
  const auto order = [](const Case& c) { return std::pair(c.variation.pad % 8 != 0, work(c.problem)); };
  return order(a) < order(b);
}

}  // namespace

std::vector<Case> case_of_each_kernel(const std::vector<Case>& all, std::span<const Backend* const> backends,
                                      const Device& device) {
  std::map<std::string, size_t> smallest;
  for (size_t n = 0; n < all.size(); ++n)
    for (const Backend* b : backends) {
      Plan plan;
      if (!golden_supports(all[n].problem).ok() || !plan_on(*b, all[n].problem, device, plan).ok()) continue;
      for (const std::string& code : codes_of(plan)) {
        const auto [at, is_new] = smallest.try_emplace(code, n);
        if (!is_new && before(all[n], all[at->second])) at->second = n;
      }
    }
  std::set<size_t> chosen;
  for (const auto& [code, n] : smallest) chosen.insert(n);
  std::vector<Case> out;
  for (const size_t n : chosen) out.push_back(all[n]);
  return out;
}

}  // namespace attune
