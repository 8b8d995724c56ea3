// SPDX-License-Identifier: Apache-2.0
// Builds the block list by key block from the list by query block. A backward with only the latter would search every
// row of it for every key block.
#pragma once
#include "attention/cpu/unit.h"

namespace attune::cpu {

struct ListByKey {
  int32_t *begin = nullptr, *row = nullptr;  // [list][key blocks + 1], [entries]
};

inline ListByKey carve_list(Workspace& ws, const Problem& p) {
  if (!by_head(p)) return {};
  const size_t lists = size_t(p.batch) * size_t(p.heads_q), columns = size_t(ceil_div(p.len_k, p.mask.blocks.k));
  return {ws.take<int32_t>(lists * (columns + 1)), ws.take<int32_t>(size_t(p.mask.blocks.bound))};
}

// True if the lists are stored one after another. Lists that share entries have no room for both by key block.
inline bool lists_apart(const Problem& p, const Args& a, int rows) {
  const Extents e = a[Role::block_begin].extent;
  for (int n = 0; n + 1 < e.batch * e.head; ++n) {
    const int next = n + 1;
    if (list_of(p, a, n / e.head, n % e.head).entry(rows) > list_of(p, a, next / e.head, next % e.head).entry(0))
      return false;
  }
  return true;
}

// Adds the list to the arguments, unless it is given or cannot be built.
inline void add_list_by_key(const Problem& p, const ListByKey& to, Args& a) {
  if (!to.begin || a.given(Role::block_begin_k)) return;  // the block size is 0 without a list
  const int rows = int(ceil_div(p.len_q, p.mask.blocks.q)), columns = int(ceil_div(p.len_k, p.mask.blocks.k));
  if (!lists_apart(p, a, rows)) return;
  const Extents e = a[Role::block_begin].extent;
  for (int n = 0; n < e.batch * e.head; ++n) {
    const BlockList list = list_of(p, a, n / e.head, n % e.head);
    int32_t* begin = to.begin + int64_t(n) * (columns + 1);
    const auto each = [&](auto f) {
      for (int row = 0; row < rows; ++row)
        for (int m = 0; m < list.count(row); ++m)
          if (const int block = list.key_block(row, m); block >= 0 && block < columns) f(row, block);
    };
    // begin[j + 1] first counts block j, then is the position of its next entry, and so ends as the start of the next
    // block.
    std::fill_n(begin, columns + 1, 0);
    each([&](int, int block) { ++begin[block + 1]; });
    begin[0] = list.entry(0);
    for (int j = 0, start = begin[0]; j < columns; ++j) {
      const int count = begin[j + 1];
      begin[j + 1] = start, start += count;
    }
    each([&](int row, int block) { to.row[begin[block + 1]++] = row; });
  }
  const int64_t step = columns + 1;
  a[Role::block_begin_k] = {.data = to.begin, .dtype = DType::i32, .extent = {e.batch, 1, e.head, columns + 1},
                            .stride = {e.batch > 1 ? e.head * step : 0, 0, e.head > 1 ? step : 0}};
  a[Role::block_row_k] = {.data = to.row, .dtype = DType::i32, .extent = {1, 1, 1, p.mask.blocks.bound}, .stride = {}};
}

}  // namespace attune::cpu
