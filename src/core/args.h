// SPDX-License-Identifier: Apache-2.0
// The arguments of one call: tensors by role, and numbers. Nothing here is part of the plan key. Small integer tensors
// reside on the device of the data, so a captured graph replays with new lengths.
#pragma once
#include "core/problem.h"

namespace attune {

inline constexpr int kVariantTensors = 24;

enum class Role : int32_t {
  q, k, v, out,             // [batch, seq, head, dim]; ragged: batch 1, all tokens; paged k, v: [page, slot, head, dim]
  lse,                      // [batch, seq, head] f32, natural log; optional unless accumulating
  cu_q, cu_k,               // [batch + 1] i32: first token of each sequence; cu_q works with any key source
  used_q, used_k,           // [batch] i32: queries and keys present (with append: before it)
  left_pad,                 // [batch] i32: number of leading keys that are padding
  cache_index,              // [batch] i32: batch row of k and v to use; linear keys only
  page_table,               // [batch, pages] i32
  positions,                // [batch, 2] i64: positions of query 0 and key 0; absolute masks
  block_begin,              // [batch, head, query blocks + 1] i32: offsets into block_column
  block_column,             // [entries] i32
  block_begin_k,            // the same list by key block, for backwards that use it: [batch, head, key blocks + 1]
  block_row_k,              // [entries] i32
  slopes, sinks,            // [head] f32
  bias,                     // [batch, seq, head, key]; an axis of extent 1 is broadcast. With block_bias: [entries]
                            // f32, in the order of block_column
  seed,                     // [2] i64: dropout seed and offset
  k_new, v_new,             // [batch, seq, head, dim]: appended to the cache
  rotary_cos, rotary_sin,   // [position, rotated dims / 2] f32
  descale_q, descale_k, descale_v,            // [batch, KV head] f32
  d_out, d_lse, dq, dk, dv, d_bias, d_sinks,  // backward; d_bias is f32 and broadcasts like bias
  variant,                                    // kVariantTensors weights and streams, defined by the variant
  d_variant = variant + kVariantTensors,      // their gradients
  count = d_variant + kVariantTensors
};

constexpr Role variant_tensor(int n) { return Role(int(Role::variant) + n); }
constexpr Role d_variant_tensor(int n) { return Role(int(Role::d_variant) + n); }

// Arguments for the first `Roles` roles. A kernel takes the dense roles by value as one parameter; a call has all.
template <int Roles>
struct ArgsOf {
  Tensor tensor[Roles];
  // The scale is not part of the plan key: no code and no choice depends on it. The same holds for the values of
  // softcap and dropout. Their presence does change code and is recorded in Problem::options.
  float scale = 0.f;             // 0: 1 / sqrt(dim_qk)
  float softcap = 0.f, dropout = 0.f;
  void* communicator = nullptr;  // for variants that span ranks

  ATTUNE_HD Tensor& operator[](Role r) { return tensor[int(r)]; }
  ATTUNE_HD const Tensor& operator[](Role r) const { return tensor[int(r)]; }
  ATTUNE_HD bool given(Role r) const { return tensor[int(r)].data != nullptr; }
  template <class T>
  ATTUNE_HD T* row(Role r, int64_t b = 0, int64_t s = 0, int64_t h = 0) const {
    return given(r) ? view<T>(tensor[int(r)]).row(b, s, h) : nullptr;
  }
  ATTUNE_HD int32_t integer(Role r, int b, int32_t otherwise) const {
    return given(r) ? *row<const int32_t>(r, b) : otherwise;
  }
};
using Args = ArgsOf<int(Role::count)>;
using DenseArgs = ArgsOf<int(Role::variant)>;

inline DenseArgs dense(const Args& a) {
  DenseArgs d{
      .tensor = {}, .scale = a.scale, .softcap = a.softcap, .dropout = a.dropout, .communicator = a.communicator};
  for (int r = 0; r < int(Role::variant); ++r) d.tensor[r] = a.tensor[r];
  return d;
}

// What a run writes, for every backend:
//   forward   Rows of out and lse for the queries of each sequence. Rows beyond used_q, or outside every sequence of
//             cu_q, are left untouched. A row that sees no key is written as 0 and -inf. With append, also the rows of
//             k and v for the new keys and values, and no other row of the cache.
//   backward  The same rows of dq, and no others. dk, dv, d_bias and d_sinks have the shapes of k, v, bias and sinks
//             (k and v with their whole cache or page pool). They are written completely and need not be cleared first:
//             0 where no query sees a key, a sum where sequences share a cache row or page, or where bias is broadcast.
//             A gradient that is not given is not computed. With accumulate, every gradient is added to the existing
//             values: all of dk, dv, d_bias and d_sinks is then read, and the rows of dq that are written.

// One sequence of the batch: the location of its rows and the band of its queries.
struct Sequence {
  int q_batch = 0, k_batch = 0;  // index on the batch axis
  int q_first = 0, k_first = 0;  // first row there; for paged keys, within the sequence's own page list
  int len_q = 0, len_k = 0;
  Band band{};
};

// The roles whose tensors sequence() reads. Without any of them, all sequences are alike and the host describes them.
inline constexpr Role kSequenceRoles[] = {Role::cu_q,     Role::cu_k,        Role::used_q,     Role::used_k,
                                          Role::left_pad, Role::cache_index, Role::page_table, Role::positions};
template <int Roles>
bool has_sequence_tensors(const ArgsOf<Roles>& a) {
  for (const Role r : kSequenceRoles)
    if (a.given(r)) return true;
  return false;
}

// Clamps every value read from a tensor to the buffer it indexes: values on a GPU are not checked beforehand.
template <int Roles>
ATTUNE_HD Sequence sequence(const Problem& p, const ArgsOf<Roles>& a, int b) {
  Sequence s{.q_batch = b, .k_batch = b};
  int rows_q = a[Role::q].extent.seq, rows_k = a[Role::k].extent.seq;
  if (const int32_t* cu = a.template row<const int32_t>(Role::cu_q)) {
    s.q_batch = 0;
    s.q_first = clamp(cu[b], 0, rows_q);
    rows_q = clamp(cu[b + 1], s.q_first, rows_q);
  }
  if (p.keys == KeySource::ragged) {
    const int32_t* cu = a.template row<const int32_t>(Role::cu_k);
    s.k_batch = 0;
    s.k_first = clamp(cu[b], 0, rows_k);
    rows_k = clamp(cu[b + 1], s.k_first, rows_k);
  } else if (p.keys == KeySource::paged) {
    rows_k = clamp(int64_t(a[Role::page_table].extent.dim) * p.page, 0, INT32_MAX);
  } else {
    s.k_batch = clamp(a.integer(Role::cache_index, b, b), 0, a[Role::k].extent.batch - 1);
  }
  const int room_q = rows_q - s.q_first, room_k = rows_k - s.k_first;
  const int new_k = p.has(Option::append) ? a[Role::k_new].extent.seq : 0;
  const int used_q = clamp(a.integer(Role::used_q, b, room_q), 0, room_q);
  const int used_k = clamp(int64_t(a.integer(Role::used_k, b, room_k - new_k)) + new_k, 0, room_k);
  const int pad = clamp(a.integer(Role::left_pad, b, 0), 0, used_k);
  s.k_first += pad;
  s.len_k = clamp(used_k - pad, 0, p.len_k);
  s.len_q = clamp(used_q, 0, p.len_q);
  const int64_t* at = a.template row<const int64_t>(Role::positions, b);
  s.band = band_of(p.mask, s.len_q, s.len_k, at ? clamp_position(at[0]) : 0, at ? clamp_position(at[1]) : 0);
  return s;
}

// Offset of rotary positions: a token is rotated at its Band position plus `rotary_base`. A key's position is its cache
// row, padding included, as in FlashAttention. Absolute positions are used as given.
ATTUNE_HD inline int64_t rotary_base(const Problem& p, const Sequence& s) {
  return p.mask.align == Align::absolute ? 0 : int64_t(s.k_first) * p.mask.k_step;
}

// Key sources: the load policy of a kernel. `row(j)` points to key (or value) j of the sequence. Ragged keys are linear
// keys with a different start, so two policies serve three sources.
template <class T>
struct LinearRows {
  T* first;
  int64_t stride;
  template <int Roles>
  ATTUNE_HD LinearRows(const Problem&, const ArgsOf<Roles>& a, Role r, const Sequence& s, int, int head)
      : first(a.template row<T>(r, s.k_batch, s.k_first, head)), stride(a[r].stride.seq) {}
  ATTUNE_HD T* row(int64_t j) const { return first + j * stride; }
};

template <class T>
struct PagedRows {
  View<T> pool;
  const int32_t* table;
  int page, first, head;
  template <int Roles>
  ATTUNE_HD PagedRows(const Problem& p, const ArgsOf<Roles>& a, Role r, const Sequence& s, int b, int kv_head)
      : pool(view<T>(a[r])), table(a.template row<const int32_t>(Role::page_table, b)), page(p.page), first(s.k_first),
        head(kv_head) {}
  ATTUNE_HD T* row(int64_t j) const {
    const int64_t at = first + j;
    return pool.row(clamp(table[at / page], 0, pool.extent.batch - 1), at % page, head);
  }
};

}  // namespace attune
