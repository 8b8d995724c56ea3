// SPDX-License-Identifier: Apache-2.0
// The CPU build of block lists, and the dispatch between CPU and GPU. The passes are those of
// attention/gpu/block_lists.cu: count the rows, place them, write them, and transpose the list.
#include "variants/blocks/blocks.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "core/check.h"
#include "core/overlap.h"
#include "machine/cpu/each.h"
#include "attention/gpu/block_lists.h"

namespace attune {
namespace {

void count_rows(const BlockBuild& x) {
  std::atomic<int64_t> shown{0};
  each_task(int64_t(x.lists()) * x.rows, 16, [&](int64_t n) {
    const int list = int(n / x.rows), row = int(n % x.rows);
    const BlockRow r(x, x.grid(list), list, row);
    const Rows seen = r.shown();
    shown += seen.last - seen.first;
    int found = x.counted(seen.last - seen.first);
    if (!x.by_count(list)) {
      found = 0;
      for (int j = seen.first; j < seen.last; ++j) found += r.active(j);
    }
    x.begin(Role::block_begin, list)[row + 1] = found;
  });
  if (x.counts) x.counts[int(BlockCount::shown)] = shown;
}

void place_rows(const BlockBuild& x) {
  int64_t all = 0, longest = 0;
  for (int list = 0; list < x.lists(); ++list) {
    int32_t* begin = x.begin(Role::block_begin, list);
    int64_t sum = 0, end = all;
    begin[0] = x.limit(all);
    for (int row = 0; row < x.rows; ++row) {
      sum += begin[row + 1];
      end = all + (x.draws(list) ? x.pattern.drawn(sum) : sum);
      begin[row + 1] = x.limit(end);
      longest = std::max<int64_t>(longest, begin[row + 1] - begin[row]);
    }
    all = end;
  }
  if (!x.counts) return;
  x.counts[int(BlockCount::active)] = x.limit(all);
  x.counts[int(BlockCount::dropped)] = all - x.limit(all);
  x.counts[int(BlockCount::longest)] = longest;
}

void write_rows(const BlockBuild& x) {
  each_task(int64_t(x.lists()) * x.rows, 16, [&](int64_t n) {
    const int list = int(n / x.rows), row = int(n % x.rows);
    const int32_t* begin = x.begin(Role::block_begin, list);
    int32_t* column = x.entries(Role::block_column);
    int to = begin[row];
    const BlockRow r(x, x.grid(list), list, row, begin[row + 1] - to);
    for (int j = r.shown().first; j < r.shown().last && to < begin[row + 1]; ++j)
      if (r.active(j)) column[to++] = j;
  });
}

// For the caller's lists: entries that are masked, or that are not a block, may be present and are not counted.
void count_lists(const BlockBuild& x) {
  std::fill_n(x.counts, int(BlockCount::count), 0);
  const auto count = [&](BlockCount which) -> int64_t& { return x.counts[int(which)]; };
  const int32_t* column = x.entries(Role::block_column);
  for (int list = 0; list < x.lists(); ++list) {
    const BlockGrid grid = x.grid(list);
    const int32_t* begin = x.begin(Role::block_begin, list);
    for (int row = 0; row < x.rows; ++row) {
      const Rows seen = grid.shown(row);
      const int from = x.limit(begin[row]), to = x.limit(begin[row + 1]);
      for (int n = from; n < to; ++n) count(BlockCount::active) += column[n] >= seen.first && column[n] < seen.last;
      count(BlockCount::shown) += seen.last - seen.first;
      count(BlockCount::longest) = std::max<int64_t>(count(BlockCount::longest), to - from);
      count(BlockCount::dropped) += std::max<int64_t>(0, int64_t(begin[row + 1]) - begin[row] - std::max(0, to - from));
    }
  }
}

void transpose(const BlockBuild& x) {
  each_task(x.lists(), 1, [&](int64_t list) {
    const int32_t* begin = x.begin(Role::block_begin, int(list));
    const int32_t* column = x.entries(Role::block_column);
    int32_t *begin_k = x.begin(Role::block_begin_k, int(list)), *row_k = x.entries(Role::block_row_k);
    const int first = x.limit(begin[0]), last = x.limit(begin[x.rows]);
    const auto there = [&](int j) { return j >= 0 && j < x.columns; };
    std::fill_n(begin_k, x.columns + 1, 0);
    for (int n = first; n < last; ++n)
      if (there(column[n])) ++begin_k[column[n] + 1];
    begin_k[0] = first;
    // begin_k[j + 1] is the position of the next entry of block j, and so ends as the start of the following block.
    for (int j = 0, start = first; j < x.columns; ++j) {
      const int mine = begin_k[j + 1];
      begin_k[j + 1] = start;
      start += mine;
    }
    for (int row = 0; row < x.rows; ++row)
      for (int n = x.limit(begin[row]); n < x.limit(begin[row + 1]); ++n)
        if (there(column[n]) && begin_k[column[n] + 1] < last) row_k[begin_k[column[n] + 1]++] = row;
  });
}

Status no(const auto&... why) { return Status::no("blocks: ", why...); }

// Checks that the tensors of a list fit the problem and those of the list by query block, `like`.
Status check_list(const Problem& p, const Args& a, Role begin, Role entry, int64_t rows, const Tensor& like) {
  const std::string_view side = begin == Role::block_begin ? " by query block" : " by key block";
  for (const Role r : {begin, entry}) {
    if (!a.given(r)) return no("the list", side, " has no tensor for its ", r == begin ? "rows" : "entries");
    if (a[r].dtype != DType::i32) return no("the list", side, " is not i32");
    if (a[r].device != like.device || a[r].device_index != like.device_index)
      return no("the list", side, " is not on the device of the other tensors");
  }
  const auto [batch, seq, head, dim] = a[begin].extent;
  if ((batch != 1 && batch != p.batch) || (head != 1 && head != p.heads_q) || seq != 1 || dim < rows + 1)
    return no("the list", side, " has rows of [", batch, ", ", head, ", ", dim, "], not [", p.batch, " or 1, ",
              p.heads_q, " or 1, at least ", rows + 1, "], in: ", name(p));
  if (batch != like.extent.batch || head != like.extent.head)
    return no("the list", side, " has other batch rows or heads than the list by query block");
  if (a[entry].extent.dim < p.mask.blocks.bound)
    return no("the list", side, " has room for ", a[entry].extent.dim, " entries, but the bound is ",
              p.mask.blocks.bound);
  return Status::good();
}

Status check_source(const Problem& p, const Args& a, const BlockSource& from, bool by_key) {
  if (from.origin == BlockOrigin::lists && !by_key && !from.counts)
    return no("a list by query block given, but neither a list by key block nor counts");
  if (from.origin == BlockOrigin::pattern && from.pattern.by_head() && a[Role::block_begin].extent.head != p.heads_q)
    return no(name(from.pattern.kind), " differs by head; it requires a list for each of the ", p.heads_q, " heads");
  if (from.origin == BlockOrigin::mask && !from.mask.data) return no("mask not given");
  if (p.keys == KeySource::ragged && (!a.given(Role::cu_q) || !a.given(Role::cu_k)) &&
      a[Role::block_begin].extent.batch > 1)
    return no("ragged keys require cu_q and cu_k, in: ", name(p));
  return Status::good();
}

// Checks the values of existing lists as the attention would. Entries beyond the bound are allowed if only counts are
// requested, because the counts report them.
Status check_lists(const Problem& p, const Args& a, bool by_key) {
  Problem plain = p;
  Args lists;
  plain.options = 0, plain.variant = {};
  lists[Role::block_begin] = a[Role::block_begin], lists[Role::block_column] = a[Role::block_column];
  if (!by_key) plain.mask.blocks.bound = a[Role::block_column].extent.dim;
  return check_values(plain, lists);
}

// Checks that nothing overlaps the outputs of a build.
Status check_memory(const Args& a, const BlockSource& from, int64_t rows, int64_t columns) {
  const Extents lists = a[Role::block_begin].extent;
  std::vector<Placed> parts;
  for (const Role r : {Role::block_begin, Role::block_column, Role::block_begin_k, Role::block_row_k})
    if (a.given(r)) {
      const bool by_query = r == Role::block_begin || r == Role::block_column;
      parts.push_back({name(r), a[r], !by_query || from.origin != BlockOrigin::lists});
    }
  if (from.counts)
    parts.push_back({"counts", {.data = from.counts, .dtype = DType::i64, .extent = {1, 1, 1, int(BlockCount::count)}},
                     true});
  if (from.origin == BlockOrigin::mask)
    parts.push_back({"mask", {.data = const_cast<uint8_t*>(from.mask.data), .dtype = DType::e4m3,
                              .extent = {lists.batch, int32_t(rows), lists.head, int32_t(columns)},
                              .stride = {from.mask.batch, from.mask.row, from.mask.head}}, false});  // bytes
  for (const Role r : {Role::cu_q, Role::cu_k, Role::used_q, Role::used_k, Role::left_pad, Role::positions})
    if (a.given(r)) parts.push_back({name(r), a[r], false});
  return check_places(parts);
}

// Without q and k, sequence lengths follow from the length tensors or the problem's bounds.
void complete(const Problem& p, DenseArgs& a) {
  for (const Role r : {Role::q, Role::k})
    if (!a.given(r)) a[r].extent = {p.batch, INT32_MAX, 1, 1};
  if (p.keys == KeySource::paged && !a.given(Role::page_table))
    a[Role::page_table].extent.dim = int32_t(ceil_div(p.len_k, p.page));
}

}  // namespace

Status build_blocks(const Problem& p, const Args& a, const BlockSource& from, Stream stream) {
  if (p.mask.blocks.q < 1 || p.mask.blocks.k < 1 || p.mask.blocks.bound < 1)
    return no("the problem has no block sizes or no bound, in: ", name(p));
  const int64_t rows = ceil_div(p.len_q, p.mask.blocks.q), columns = ceil_div(p.len_k, p.mask.blocks.k);
  const Tensor& begin = a[Role::block_begin];
  if (Status s = check_list(p, a, Role::block_begin, Role::block_column, rows, begin); !s.ok()) return s;
  const bool by_key = a.given(Role::block_begin_k) || a.given(Role::block_row_k);
  if (by_key)
    if (Status s = check_list(p, a, Role::block_begin_k, Role::block_row_k, columns, begin); !s.ok()) return s;
  if (Status s = check_source(p, a, from, by_key); !s.ok()) return s;
  if (from.checked && begin.device == DeviceKind::cpu) {
    if (Status s = check_memory(a, from, rows, columns); !s.ok()) return s;
    if (from.origin == BlockOrigin::lists)
      if (Status s = check_lists(p, a, by_key); !s.ok()) return s;
  }
  BlockBuild x{.problem = p, .args = dense(a), .origin = from.origin, .pattern = from.pattern, .mask = from.mask,
               .counts = from.counts, .batch = begin.extent.batch, .heads = begin.extent.head, .rows = int32_t(rows),
               .columns = int32_t(columns)};
  complete(p, x.args);
  if (begin.device == DeviceKind::cuda) return cuda::build_blocks(x, begin.device_index, stream);
  if (x.origin == BlockOrigin::lists && x.counts) count_lists(x);
  if (x.origin != BlockOrigin::lists) {
    count_rows(x);
    place_rows(x);
  }
  if (x.origin == BlockOrigin::best) return Status::good();
  if (x.origin != BlockOrigin::lists) write_rows(x);
  if (by_key) transpose(x);
  return Status::good();
}

}  // namespace attune
