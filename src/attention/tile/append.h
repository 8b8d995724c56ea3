// SPDX-License-Identifier: Apache-2.0
// Appending to a KV cache, as every backend does it before it attends. New keys and values go behind the used ones;
// keys are rotated by rotary embedding, and rotated queries go to a workspace that replaces q. All new rows are written
// before any of them is read. Rotation is computed in f32 and rounded to the dtype, so kernels read the result like any
// other row.
#pragma once
#include "core/args.h"
#include "core/workspace.h"

namespace attune {

// Rotated queries, compact, for as many tokens as q can have. Null if the problem does not rotate.
inline std::byte* carve_rotated(Workspace& ws, const Problem& p) {
  if (!p.rotates()) return nullptr;
  constexpr double kMost = 0x1p60;  // beyond any machine, and small enough that no byte count overflows
  const double bytes = double(p.batch) * p.len_q * p.heads_q * p.dim_qk * size_of(p.dtype.q);
  return ws.take<std::byte>(size_t(bytes < kMost ? bytes : kMost));
}

// The tensor that replaces q: the extents of q, in the workspace.
inline Tensor rotated_queries(const Tensor& q, std::byte* place) {
  Tensor t = q;
  const auto [batch, seq, head, dim] = q.extent;
  t.data = place;
  t.stride = {batch > 1 ? int64_t(seq) * head * dim : 0, seq > 1 ? int64_t(head) * dim : 0, head > 1 ? dim : 0};
  return t;
}

// Address of new row `n` of sequence b in k or v; null if it lies outside the cache. Nothing is clamped here: a wrong
// length or page must not overwrite a row of another sequence.
template <int Roles>
ATTUNE_HD char* appended_row(const Problem& p, const ArgsOf<Roles>& a, Role r, int b, int n, int head) {
  const Tensor& t = a[r];
  const bool paged = p.keys == KeySource::paged;
  const int added = a[Role::k_new].extent.seq;
  const int room = paged ? clamp(int64_t(a[Role::page_table].extent.dim) * p.page, 0, INT32_MAX) : t.extent.seq;
  const int64_t used = a.integer(Role::used_k, b, room - added), at = used + n;
  if (used < 0 || at >= room) return nullptr;
  const int64_t place = paged ? a.template row<const int32_t>(Role::page_table, b)[at / p.page]
                              : a.integer(Role::cache_index, b, b);
  if (place < 0 || place >= t.extent.batch) return nullptr;
  return row_address(t, place, paged ? at % p.page : at, head);
}

// Row of the cos and sin tables for `position`; null if there is no table.
template <int Roles>
ATTUNE_HD const float* rotary_row(const ArgsOf<Roles>& a, Role r, int64_t position) {
  const int rows = a[r].extent.seq;
  return rows ? a.template row<const float>(r, 0, clamp(position, 0, rows - 1)) : nullptr;
}

template <int Roles>
ATTUNE_HD int64_t new_key_position(const Problem& p, const ArgsOf<Roles>& a, const Sequence& s, int n) {
  return rotary_base(p, s) + s.band.k_position(int64_t(s.len_k) - a[Role::k_new].extent.seq + n);
}
ATTUNE_HD inline int64_t query_position(const Problem& p, const Sequence& s, int i) {
  return rotary_base(p, s) + s.band.q_position(i);
}

}  // namespace attune
