// SPDX-License-Identifier: Apache-2.0
// Checks the contents of the small integer tensors on the CPU. Kernels clamp the values they read and so stay inside
// their buffers. A wrong value would therefore produce a wrong result; here it produces an error message.
#include <algorithm>
#include <vector>

#include "core/check.h"
#include "core/variant/nsa.h"
#include "core/variant/variants.h"

namespace attune {
namespace {

Status bad(Role r, int b, int64_t x, const auto&... why) {
  return Status::no(name(r), " of sequence ", b, ": ", x, " ", why...);
}

// Sorts the row and returns a value that occurs twice, or -1. The buffer is reused by the thread.
int32_t twice(std::vector<int32_t>& row) {
  std::sort(row.begin(), row.end());
  const auto at = std::adjacent_find(row.begin(), row.end());
  return at == row.end() ? -1 : *at;
}

std::vector<int32_t>& scratch() {
  thread_local std::vector<int32_t> numbers;
  numbers.clear();
  return numbers;
}

// First token of each sequence: starts at 0, never decreases, no sequence over the bound or past the end.
Status check_starts(const Args& a, int b, Role role, Role data, int bound) {
  const int32_t* cu = a.row<const int32_t>(role);
  if (!cu) return Status::good();
  const int64_t first = cu[b], last = cu[b + 1];
  if (first < 0) return bad(role, b, first, "is below 0");
  if (last < first) return bad(role, b, last, "is before its start ", first);
  if (const int64_t rows = a[data].extent.seq; last > rows)
    return bad(role, b, last, "exceeds the ", rows, " tokens of ", name(data));
  if (last - first > bound) return bad(role, b, last - first, "tokens exceed the bound ", bound);
  return Status::good();
}

Status check_queries(const Problem& p, const Args& a, int b) {
  if (Status s = check_starts(a, b, Role::cu_q, Role::q, p.len_q); !s.ok()) return s;
  const int32_t* cu = a.row<const int32_t>(Role::cu_q);
  const int room = cu ? cu[b + 1] - cu[b] : a[Role::q].extent.seq;
  if (const int used = a.integer(Role::used_q, b, room); used < 0 || used > room)
    return bad(Role::used_q, b, used, "is not in 0 ... ", room);
  return Status::good();
}

Status check_keys(const Problem& p, const Args& a, int b) {
  const bool paged = p.keys == KeySource::paged;
  if (Status s = check_starts(a, b, Role::cu_k, Role::k, p.len_k); !s.ok()) return s;
  const int32_t* cu = a.row<const int32_t>(Role::cu_k);
  const int64_t rows = a[Role::k].extent.batch, added = p.has(Option::append) ? a[Role::k_new].extent.seq : 0;
  const int64_t room = cu      ? cu[b + 1] - cu[b]
                       : paged ? std::min<int64_t>(int64_t(a[Role::page_table].extent.dim) * p.page, INT32_MAX)
                               : a[Role::k].extent.seq;
  if (added > room) return bad(Role::k_new, b, added, "new keys do not fit in a cache of ", room);
  const int64_t used = a.integer(Role::used_k, b, int32_t(room - added)), pad = a.integer(Role::left_pad, b, 0);
  if (used < 0 || used > room) return bad(Role::used_k, b, used, "is not in 0 ... ", room);
  if (used + added > room)
    return bad(Role::used_k, b, used, "keys and ", added, " new keys do not fit in a cache of ", room);
  if (pad < 0 || pad > used) return bad(Role::left_pad, b, pad, "is not in 0 ... ", used);
  if (used + added - pad > p.len_k)
    return bad(Role::used_k, b, used + added - pad, "keys exceed the bound ", p.len_k);
  if (const int at = a.integer(Role::cache_index, b, 0); a.given(Role::cache_index) && (at < 0 || at >= rows))
    return bad(Role::cache_index, b, at, "is not one of the ", rows, " rows of k");
  if (paged) {
    const int32_t* table = a.row<const int32_t>(Role::page_table, b);
    for (int64_t n = 0; n < ceil_div(used + added, p.page); ++n)
      if (table[n] < 0 || table[n] >= rows) return bad(Role::page_table, b, table[n], "is not one of ", rows, " pages");
  }
  return Status::good();
}

// Keys that the caller has compressed, and whose lengths count tokens.
Status check_compressed(const Problem& p, const Args& a, int b) {
  const bool nsa_word = word(p.variant) == "nsa";
  if (!a.given(Role::k) || !(nsa_word || word(p.variant) == "select")) return Status::good();
  const Nsa nsa = nsa_of(p);
  if (nsa_word && nsa.phi != Phi::none) return Status::good();
  const Extents k = a[Role::k].extent;
  if (a.given(Role::used_k)) {
    const int used = a.integer(Role::used_k, b, 0);
    if (used < 0 || used > p.len_k) return bad(Role::used_k, b, used, "is not in 0 ... ", p.len_k);
    if (const int64_t keys = nsa.compressed(used); keys > k.seq)
      return bad(Role::used_k, b, used, "tokens give ", keys, " compressed keys, and k has room for ", k.seq);
  }
  if (const int at = a.integer(Role::cache_index, b, 0); a.given(Role::cache_index) && (at < 0 || at >= k.batch))
    return bad(Role::cache_index, b, at, "is not one of the ", k.batch, " rows of k");
  return Status::good();
}

// Two sequences may read the same keys but must not append to the same place.
Status check_append(const Problem& p, const Args& a) {
  const bool paged = p.keys == KeySource::paged;
  if (!p.has(Option::append) || !a[Role::k_new].extent.seq || (!paged && !a.given(Role::cache_index)))
    return Status::good();
  std::vector<int32_t>& written = scratch();
  for (int b = 0; b < p.batch; ++b) {
    if (!paged) {
      written.push_back(a.integer(Role::cache_index, b, b));
      continue;
    }
    const int64_t room = int64_t(a[Role::page_table].extent.dim) * p.page, added = a[Role::k_new].extent.seq;
    const int64_t used = a.integer(Role::used_k, b, int32_t(std::min<int64_t>(room, INT32_MAX) - added));
    const int32_t* table = a.row<const int32_t>(Role::page_table, b);
    for (int64_t n = used / p.page; n < ceil_div(used + added, p.page); ++n) written.push_back(table[n]);
  }
  const int32_t place = twice(written);
  if (place < 0) return Status::good();
  return paged ? Status::no("page_table: page ", place, " is appended to twice")
               : Status::no("cache_index: row ", place, " is appended to twice");
}

Status check_positions(const Problem& p, const Args& a, int b) {
  if (const int64_t* at = a.row<const int64_t>(Role::positions, b))
    for (int n = 0; n < 2; ++n)
      if (at[n] < -kMaxPosition || at[n] > kMaxPosition)
        return bad(Role::positions, b, at[n], "is not in -2^40 ... 2^40");
  if (!a.given(Role::rotary_cos)) return Status::good();
  const Sequence s = sequence(p, a, b);
  const int64_t rows = a[Role::rotary_cos].extent.seq, added = std::min(s.len_k, a[Role::k_new].extent.seq);
  const auto outside = [&](int64_t position) { return position < 0 || position >= rows; };
  const auto no = [&](int64_t first, int64_t last) {
    return Status::no("rotary_cos: ", rows, " positions do not cover ", first, " ... ", last, " of sequence ", b);
  };
  const int64_t base = rotary_base(p, s);
  const int64_t q_first = base + s.band.q_position(0), q_last = base + s.band.q_position(s.len_q - 1);
  if (s.len_q && (outside(q_first) || outside(q_last))) return no(q_first, q_last);
  const int64_t k_first = base + s.band.k_position(s.len_k - added), k_last = base + s.band.k_position(s.len_k - 1);
  if (added && (outside(k_first) || outside(k_last))) return no(k_first, k_last);
  return Status::good();
}

// One block list. `sum` is an order-independent sum over its entries, so the list by query block and the list by key
// block can be compared without sorting.
struct List {
  Role begin, entry;
  int64_t rows, columns, bound;
  bool by_key;
  uint64_t sum = 0;

  static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
    return x ^ x >> 29;
  }
  Status check(const Args& a, int b, int h) {
    const int32_t* at = a.row<const int32_t>(begin, b, 0, h);
    const int32_t* column = a.row<const int32_t>(entry);
    sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const int32_t first = at[row], last = at[row + 1];
      if (first < 0) return bad(begin, b, first, "is below 0");
      if (last < first) return bad(begin, b, last, "is before its start ", first);
      if (last > bound) return bad(begin, b, last, "exceeds the bound ", bound);
      bool rising = true;
      for (int32_t n = first; n < last; ++n) {
        if (column[n] < 0 || column[n] >= columns)
          return bad(entry, b, column[n], "is not one of ", columns, by_key ? " query blocks" : " key blocks");
        rising &= n == first || column[n - 1] < column[n];
        const uint64_t q = uint64_t(by_key ? column[n] : row), k = uint64_t(by_key ? row : column[n]);
        sum += mix((q << 32 | k) + 1);
      }
      if (rising) continue;
      std::vector<int32_t>& sorted = scratch();
      sorted.assign(column + first, column + last);
      if (const int32_t again = twice(sorted); again >= 0)
        return bad(entry, b, again, "occurs twice in row ", row);
    }
    return Status::good();
  }
};

Status check_blocks(const Problem& p, const Args& a) {
  if (!p.mask.blocks.q) return Status::good();
  const int listed = p.variant.text[0] ? declared(p, a).listed : 0;
  const int64_t rows_q = ceil_div(listed ? listed : p.len_q, p.mask.blocks.q);
  const int64_t rows_k = ceil_div(listed ? listed : p.len_k, p.mask.blocks.k);
  List by_query{Role::block_begin, Role::block_column, rows_q, rows_k, p.mask.blocks.bound, false};
  List by_key{Role::block_begin_k, Role::block_row_k, rows_k, rows_q, p.mask.blocks.bound, true};
  const bool both = a.given(Role::block_begin_k);
  const Extents one = a[Role::block_begin].extent, other = a[Role::block_begin_k].extent;
  const int batches = both ? std::max(one.batch, other.batch) : one.batch;
  const int heads = both ? std::max(one.head, other.head) : one.head;
  for (int b = 0; b < batches; ++b)
    for (int h = 0; h < heads; ++h) {
      if (Status s = by_query.check(a, b, h); !s.ok()) return s;
      if (!both) continue;
      if (Status s = by_key.check(a, b, h); !s.ok()) return s;
      if (by_query.sum != by_key.sum)
        return Status::no("block_begin_k of sequence ", b, ": does not list the same blocks as block_begin");
    }
  return Status::good();
}

}  // namespace

Status check_values(const Problem& p, const Args& a) {
  bool any = false;
  for (const Role r : {Role::cu_q, Role::cu_k, Role::used_q, Role::used_k, Role::left_pad, Role::cache_index,
                       Role::page_table, Role::positions, Role::k_new})
    any |= a.given(r);
  const bool plain = !p.variant.text[0], count_keys = plain || declared(p, a).lengths_of_k;
  const bool same = !plain && declared(p, a).self && a.given(Role::cu_q) && a.given(Role::cu_k);
  for (int b = 0; any && b < p.batch; ++b) {
    if (Status s = check_queries(p, a, b); !s.ok()) return s;
    for (int n = b; same && n <= b + 1; ++n)
      if (const int32_t* cu = a.row<const int32_t>(Role::cu_q); cu[n] != a.row<const int32_t>(Role::cu_k)[n])
        return bad(Role::cu_k, b, a.row<const int32_t>(Role::cu_k)[n], "is not ", cu[n], ", the value in cu_q");
    if (Status s = check_compressed(p, a, b); !s.ok()) return s;
    if (!count_keys) continue;
    if (Status s = check_keys(p, a, b); !s.ok()) return s;
    if (Status s = check_positions(p, a, b); !s.ok()) return s;
  }
  if (Status s = check_append(p, a); !s.ok()) return s;
  return check_blocks(p, a);
}

}  // namespace attune
