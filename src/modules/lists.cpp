// SPDX-License-Identifier: Apache-2.0
#include "modules/lists.h"

#include "core/variant/ring.h"
#include "variants/blocks/blocks.h"

namespace attune {

Status add_block_lists(Graph& g, const Problem& asked, const Pattern& pattern, std::vector<Source>& sources) {
  const Problem p = word(asked.variant) == "ring" ? whole_of(asked, ring_of(asked)) : asked;
  const int heads = pattern.by_head() ? p.heads_q : 1, entries = p.mask.blocks.bound;
  const int rows = int(ceil_div(p.len_q, p.mask.blocks.q)), columns = int(ceil_div(p.len_k, p.mask.blocks.k));
  const struct { Role role; const char* name; Extents extent; } lists[] = {
      {Role::block_begin, "block_begin", {1, 1, heads, rows + 1}},
      {Role::block_column, "block_column", {1, 1, 1, entries}},
      {Role::block_begin_k, "block_begin_k", {1, 1, heads, columns + 1}},
      {Role::block_row_k, "block_row_k", {1, 1, 1, entries}}};
  Args a;
  std::vector<std::vector<int32_t>> memory;
  for (const auto& [role, name, e] : lists) {
    memory.emplace_back(size_t(e.head) * size_t(e.dim));
    a[role] = {.data = memory.back().data(), .dtype = DType::i32, .extent = e, .stride = compact(e)};
  }
  a[Role::q].extent = {p.batch, p.len_q, p.heads_q, p.dim_qk};
  a[Role::k].extent = {p.batch, p.len_k, p.heads_kv, p.dim_qk};
  if (Status s = build_blocks(p, a, {.pattern = pattern}, nullptr); !s.ok()) return s.after("module: ");
  for (size_t n = 0; n < memory.size(); ++n)
    sources.push_back({.name = lists[n].name, .constant = g.constant(DType::i32, lists[n].extent, memory[n].data())});
  return Status::good();
}

}  // namespace attune
