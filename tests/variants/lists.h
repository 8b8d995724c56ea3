// SPDX-License-Identifier: Apache-2.0
// Block lists in plain memory, for tests: built for a pattern with the bound it requires, and read back row by row.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "variants/blocks/blocks.h"

namespace attune {

struct Lists {
  Problem problem;
  BlockSource source{};
  Args args{};
  std::vector<int32_t> begin, column, begin_k, row_of_key;
  std::vector<int64_t> numbers = std::vector<int64_t>(size_t(BlockCount::count), -1);

  Lists(const Problem& p, std::string_view text, bool full = true) : problem(p) {
    EXPECT_EQ(parse(text, p, source.pattern).message, "");
    problem.mask.blocks.bound =
        int32_t(std::max<int64_t>(1, bound(source.pattern, p, p.batch, p.heads_q, full)));
    begin.assign(size_t(count() * (rows() + 1)), -7), begin_k.assign(size_t(count() * (columns() + 1)), -7);
    column.assign(size_t(problem.mask.blocks.bound), -7), row_of_key = column;
  }
  int count() const { return problem.batch * problem.heads_q; }
  int rows() const { return int(ceil_div(problem.len_q, problem.mask.blocks.q)); }
  int columns() const { return int(ceil_div(problem.len_k, problem.mask.blocks.k)); }
  void place() {
    const auto list = [&](std::vector<int32_t>& v, int n) {
      return Tensor{.data = v.data(), .dtype = DType::i32, .extent = {problem.batch, 1, problem.heads_q, n},
                    .stride = {int64_t(problem.heads_q) * n, 0, n}};
    };
    const auto entries = [](std::vector<int32_t>& v) {
      return Tensor{.data = v.data(), .dtype = DType::i32, .extent = {1, 1, 1, int32_t(v.size())}};
    };
    args[Role::block_begin] = list(begin, rows() + 1), args[Role::block_column] = entries(column);
    args[Role::block_begin_k] = list(begin_k, columns() + 1), args[Role::block_row_k] = entries(row_of_key);
    source.counts = numbers.data();
  }
  Status build() {
    place();
    return build_blocks(problem, args, source, nullptr);
  }
  static std::vector<int> piece(const std::vector<int32_t>& v, int first, int last) {
    return {v.begin() + first, v.begin() + last};
  }
  std::vector<int> row(int list, int i) const {
    const size_t at = size_t(list * (rows() + 1) + i);
    return piece(column, begin[at], begin[at + 1]);
  }
  std::vector<int> row_k(int list, int j) const {
    const size_t at = size_t(list * (columns() + 1) + j);
    return piece(row_of_key, begin_k[at], begin_k[at + 1]);
  }
  const std::vector<int64_t>& counts() const { return numbers; }
};

}  // namespace attune
