// SPDX-License-Identifier: Apache-2.0
// The number of (query, key) pairs that the words of Native Sparse Attention actually compute: from the lists if they
// are given, otherwise from a selection with the problem's sizes.
#include <algorithm>

#include "core/variant/nsa.h"

namespace attune {
namespace {

// For one query at position t and one head.
double chosen_tokens(const Nsa& nsa, int64_t t) {
  return t < 0 ? 0 : double(nsa.forced(t) + nsa.chosen(t) - 1) * nsa.s + double(t % nsa.s + 1);
}

double listed_tokens(const Problem& p, const Args& a, const Nsa& nsa, const Sequence& s) {
  double sum = 0;
  for (int i = 0; i < s.len_q; ++i)
    for (int g = 0; g < p.heads_kv; ++g) {
      const int32_t* list = a.row<const int32_t>(variant_tensor(0), s.q_batch, s.q_first + i, g);
      int32_t most = -1;
      for (int n = 0; n < nsa.n; ++n) {
        const Rows keys = block_keys(nsa, list[n], most, s.band.q_position(i), s.len_k);
        sum += std::max(0, keys.last - keys.first), most = std::max(most, list[n]);
      }
    }
  return sum * (p.heads_q / p.heads_kv);
}

}  // namespace

double nsa_pairs(const Problem& p, const Args* a, int b) {
  const Nsa nsa = nsa_of(p);
  const std::string_view what = word(p.variant);
  if (what == "selected" && a && a->given(variant_tensor(0))) return listed_tokens(p, *a, nsa, sequence(p, *a, b));
  const bool whole = what == "nsa", compressed = what == "select" || (whole && nsa.only != Branch::window);
  const bool selected = what == "selected" || (whole && (nsa.only == Branch::all || nsa.only == Branch::selected));
  const bool window = whole && (nsa.only == Branch::all || nsa.only == Branch::window);
  const SelectSequence s = a ? select_sequence(p, *a, nsa, b)
                             : SelectSequence{.len_q = p.len_q, .position = int64_t(p.len_k) - p.len_q};
  double sum = 0;
  for (int i = 0; i < s.len_q; ++i) {
    const int64_t t = s.position + i;
    if (compressed) sum += double(nsa.visible(t));
    if (selected) sum += chosen_tokens(nsa, t);
    if (window) sum += double(std::clamp<int64_t>(t + 1, 0, nsa.w));
  }
  return sum * p.heads_q;
}

}  // namespace attune
