// SPDX-License-Identifier: Apache-2.0
// Code shared by both passes of selected attention on the CPU: the transposed lists (tokens that chose each block), and
// the panel size for a group. If the heads of a group fill whole panels, a token has its own panels: its operands are
// packed once and its sums stay in them. Otherwise its heads would leave most of a panel empty, and the heads of all
// tokens that chose a block fill panels together.
#pragma once
#include <algorithm>
#include <cstring>

#include "attention/cpu/unit.h"
#include "attention/cpu/row_io.h"
#include "core/variant/nsa.h"

namespace attune::cpu {

inline constexpr int kSelectedMaxRows = 64;  // per panel, for all instruction sets

// The choosers among tokens [first, last) of one sequence and group, for blocks [low, high).
struct Choosers {
  int32_t* begin;  // [high - low + 1] offsets into
  int32_t* token;  // ascending for each block

  static Choosers carve(Workspace& ws, int64_t tokens, int64_t blocks, int n) {
    return {ws.take<int32_t>(size_t(blocks + 1)), ws.take<int32_t>(size_t(tokens) * size_t(n))};
  }

  template <class F>
  static void each(const Args& a, const Nsa& nsa, const Sequence& seq, int g, Rows tokens, Rows blocks, F f) {
    for (int i = tokens.first; i < tokens.last; ++i) {
      const int32_t* list = a.row<const int32_t>(variant_tensor(0), seq.q_batch, seq.q_first + i, g);
      int32_t most = -1;
      for (int n = 0; n < nsa.n; ++n) {
        const int32_t block = list[n];
        const Rows keys = block_keys(nsa, block, most, seq.band.q_position(i), seq.len_k);
        most = std::max(most, block);
        if (keys.first < keys.last && block >= blocks.first && block < blocks.last) f(i, block - blocks.first);
      }
    }
  }

  void fill(const Args& a, const Nsa& nsa, const Sequence& seq, int g, Rows tokens, Rows blocks) const {
    const int many = std::max(0, blocks.last - blocks.first);
    std::fill_n(begin, many + 1, 0);
    each(a, nsa, seq, g, tokens, blocks, [&](int, int block) { ++begin[block + 1]; });
    for (int m = 0; m < many; ++m) begin[m + 1] += begin[m];
    each(a, nsa, seq, g, tokens, blocks, [&](int i, int block) { token[begin[block]++] = i; });
    for (int m = many; m > 0; --m) begin[m] = begin[m - 1];  // they had advanced to the next block's
    begin[0] = 0;
  }
  int count(int block) const { return begin[block + 1] - begin[block]; }
};

// The panels of a token's heads: two sizes that fill them, or the smallest if it alone does.
inline Panels token_panels(const CpuKernels& m, int heads) {
  if (Panels(m, heads).rows() == heads) return {m, heads};
  const CpuKernels* least = &m;
  while (const CpuKernels* next = smaller_panels(*least)) least = next;
  return {*least, heads, false};
}
inline bool own_panels(const Problem& p, const CpuKernels& m) { return token_panels(m, group(p)).rows() == group(p); }

inline int64_t blocks_of(const Problem& p, const Nsa& nsa) { return ceil_div(p.len_k, nsa.s); }

// Checks common to both passes.
inline Status selected_supports(std::string_view who, Pass pass, const Problem& p, const Device& d) {
  if (word(p.variant) != "selected") return Status::unsupported(who, ": is for the variant selected");
  Problem dense = p;
  dense.variant = {};
  return supports(who, pass, dense, d);
}

}  // namespace attune::cpu
