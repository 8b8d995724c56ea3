// SPDX-License-Identifier: Apache-2.0
// Parameters of Native Sparse Attention (arXiv 2502.11089), for the words compress, select, selected, gate, reads and
// nsa. Also the index arithmetic that their kernels share on host and device. docs/nsa.md has the definition; the
// reference shares only the parameters with this file.
//
// Names follow the paper. l tokens form one compressed token, at stride d. Selection blocks have s tokens (the paper's
// l'), and a query selects n of them. The window has w tokens. d divides l and s, so a selection block is scored by a
// fixed short filter over compressed tokens.
#pragma once
#include "core/args.h"

namespace attune {

// The tensors of `nsa` by number. Each v follows its k; a compression has up to five weights.
inline constexpr int kNsaSelect = 0, kNsaWindow = 2, kNsaGates = 4, kNsaPhiK = 5, kNsaPhiV = 10, kNsaBranchOut = 15,
                     kNsaBranchLse = 16, kNsaBlocks = 17, kNsaReads = 18;

enum class Phi : int32_t { mean, conv, mlp, none };  // how l tokens become one; none: done by the caller
enum class GateOf : int32_t { sigmoid, softmax, none };
enum class Branch : int32_t { compressed, selected, window, all };

struct Nsa {
  int d = 1, l = 1, s = 1, n = 3, w = 0;
  int hidden = 0;  // width of the mlp; 0: that of a token
  Phi phi = Phi::mean;
  GateOf gate = GateOf::sigmoid;
  Branch only = Branch::all;  // a single branch: plain attention with out and lse, no gates

  ATTUNE_HD constexpr int width(int dim) const { return hidden ? hidden : dim; }
  // The number of compressed tokens from T raw tokens: only complete groups of l count.
  ATTUNE_HD constexpr int64_t compressed(int64_t tokens) const { return tokens < l ? 0 : (tokens - l) / d + 1; }
  // How many of them the query at position t sees: those that end at or before t.
  ATTUNE_HD constexpr int64_t visible(int64_t t) const { return t < 0 ? 0 : compressed(t + 1); }

  // Eq. 9: the score of selection block m is the sum over k = 0 ... taps() - 1 of tap(k) times the probability of
  // compressed token first_tap(m) + k; invisible tokens count as 0. A tap is the number of pairs (a, b), a < s / d, b <
  // l / d, with that difference: the overlap of the two intervals in units of d. The constant d / l is omitted.
  ATTUNE_HD constexpr int taps() const { return s / d + l / d - 1; }
  ATTUNE_HD constexpr int64_t first_tap(int64_t m) const { return m * (s / d) - (l / d - 1); }
  ATTUNE_HD constexpr int tap(int k) const {
    const int most = s < l ? s / d : l / d, up = k + 1, down = taps() - k;
    return up < down ? (up < most ? up : most) : (down < most ? down : most);
  }

  // Selection at position t: blocks 0, own(t) - 1 and own(t) are always selected. The other complete blocks, 1 ...
  // own(t) - 2, are candidates. (Block own(t) may be complete too; it is selected anyway.)
  ATTUNE_HD constexpr int own(int64_t t) const { return int(t / s); }
  ATTUNE_HD constexpr int forced(int64_t t) const { return t < 0 ? 0 : own(t) < 2 ? own(t) + 1 : 3; }
  ATTUNE_HD constexpr int candidates(int64_t t) const { return t < 0 || own(t) < 3 ? 0 : own(t) - 2; }
  ATTUNE_HD constexpr int chosen(int64_t t) const {  // from the candidates
    const int room = n - forced(t);
    return candidates(t) < room ? candidates(t) : room;
  }
};

inline constexpr int kMostSelected = 4096;  // limit of n

bool is_nsa(std::string_view word);  // compress, select, selected, gate, reads or nsa
// Reads the parameters of any of these words, or explains what is wrong with them or with the problem's sizes.
// Allocates nothing on success: backends call it in `run`.
Status read_nsa(const Problem&, Nsa& out);
inline Nsa nsa_of(const Problem& p) {  // requires a valid problem
  Nsa n;
  (void)read_nsa(p, n);
  return n;
}

double nsa_pairs(const Problem&, const Args*, int b);  // (query, key) pairs of one sequence; for core/work.h

struct Declared;
Status valid_nsa(const Problem&);                            // this and the next: for core/variant/variants.cpp
void declare_nsa(const Problem&, const Args&, Declared&);

// One sequence of `compress`: raw rows of q (or dq) and compressed rows of out (or d_out). With cu_q both are packed in
// batch row 0, and the compressed rows of sequence b start at floor(cu_q[b] / d). Because l >= d, they end before those
// of the next sequence start.
struct CompressSequence { int batch = 0, first = 0, tokens = 0, out_first = 0, count = 0; };
template <int Roles>
ATTUNE_HD CompressSequence compress_sequence(const Problem& p, const ArgsOf<Roles>& a, const Nsa& nsa, int b,
                                             int room) {
  CompressSequence s{.batch = b};
  int rows = a[Role::q].extent.seq;
  if (const int32_t* cu = a.template row<const int32_t>(Role::cu_q)) {
    s.batch = 0;
    s.first = clamp(cu[b], 0, rows);
    rows = clamp(cu[b + 1], s.first, rows);
    s.out_first = s.first / nsa.d;
  }
  const int most = rows - s.first;
  s.tokens = clamp(a.integer(Role::used_q, b, most), 0, most < p.len_q ? most : p.len_q);
  s.count = clamp(nsa.compressed(s.tokens), 0, room > s.out_first ? room - s.out_first : 0);  // room: rows of out
  return s;
}

// One sequence of `select`: its queries, the position of the first among the raw tokens, and its compressed keys.
// Without used_k the queries are all tokens; with it they are the last of used_k raw tokens.
struct SelectSequence {
  int batch = 0, first = 0, len_q = 0, k_batch = 0, k_first = 0, keys = 0;
  int64_t position = 0;
};
template <int Roles>
ATTUNE_HD SelectSequence select_sequence(const Problem& p, const ArgsOf<Roles>& a, const Nsa& nsa, int b) {
  SelectSequence s{.batch = b, .k_batch = b};
  int rows = a[Role::q].extent.seq;
  const int rows_k = a[Role::k].extent.seq;
  if (const int32_t* cu = a.template row<const int32_t>(Role::cu_q)) {
    s.batch = 0;
    s.first = clamp(cu[b], 0, rows);
    rows = clamp(cu[b + 1], s.first, rows);
    if (p.keys == KeySource::ragged) s.k_batch = 0, s.k_first = clamp(s.first / nsa.d, 0, rows_k);
  }
  if (p.keys == KeySource::linear)
    s.k_batch = clamp(a.integer(Role::cache_index, b, b), 0, a[Role::k].extent.batch - 1);
  const int most = rows - s.first;
  s.len_q = clamp(a.integer(Role::used_q, b, most), 0, most < p.len_q ? most : p.len_q);
  const int tokens = clamp(a.integer(Role::used_k, b, s.len_q), 0, p.len_k);
  s.position = int64_t(tokens) - s.len_q;
  s.keys = clamp(nsa.compressed(tokens), 0, rows_k - s.k_first);
  return s;
}

// The keys of list entry `block` for a query at position t: [first, last), empty if the entry is skipped. `before` is
// the largest entry so far, or -1. Entries ascend, so an entry that does not is a repetition or padding.
ATTUNE_HD constexpr Rows block_keys(const Nsa& nsa, int32_t block, int32_t before, int64_t t, int len_k) {
  if (block < 0 || block <= before || int64_t(block) * nsa.s >= len_k) return {0, 0};
  const int64_t last = int64_t(block) * nsa.s + nsa.s, seen = t + 1 < len_k ? t + 1 : len_k;
  const int first = block * nsa.s;
  return {first, clamp(last < seen ? last : seen, first, len_k)};
}

// Moves the valid entries of a list to its front, for a sequence with `blocks` blocks, and returns their number. The
// rest of the list is not preserved.
ATTUNE_HD constexpr int compact_blocks(int32_t* list, int n, int blocks) {
  int kept = 0, before = -1;
  for (int i = 0; i < n; ++i) {
    const int m = list[i];
    if (m <= before) continue;
    before = m;
    if (m < blocks) list[kept++] = m;
  }
  return kept;
}

}  // namespace attune
