// SPDX-License-Identifier: Apache-2.0
// A sparse problem as a bias on dense attention: 0 for a visible pair, -inf for a masked pair, log n for a pair in n
// branches of dilated attention, and the block's value with block_bias. Each row of the bias is a task, shared by
// lanes: the threads of a CTA on a GPU, one lane on a CPU.
#pragma once
#include <cmath>

#include "core/args.h"
#include "core/variant/dilated.h"
#include "core/variant/nsa.h"

namespace attune {

enum class MaskedBy : int32_t { blocks, dilated, selected, band };

struct MaskedRows {
  Problem problem{};   // the original sparse problem
  DenseArgs args{};
  MaskedBy by = MaskedBy::blocks;
  Tensor selected{};   // each token's block list
  int32_t selected_size = 1;
  int32_t branches = 0, groups = 0, segment[32] = {}, rate[32] = {};  // dilated; groups: head groups
  float *bias = nullptr, *d_bias = nullptr;  // [batch, len_q, heads_q, len_k]; d_bias for gradients of block_bias

  ATTUNE_HD int64_t tasks() const { return int64_t(problem.batch) * problem.len_q * problem.heads_q; }
  ATTUNE_HD float* row(int64_t task) const { return bias + task * problem.len_k; }
  ATTUNE_HD BlockList list(int b, int h) const {
    return {problem.mask.blocks, args.row<const int32_t>(Role::block_begin, b, 0, h),
            args.row<const int32_t>(Role::block_column)};
  }

  // Whether dilated branch n keeps row i of head h. Its segment is `i / segment[n]`.
  ATTUNE_HD bool has(int n, int h, int i) const {
    if (groups) {
      const Rows heads = group_heads(problem.heads_q, groups, n);
      return h >= heads.first && h < heads.last && i % segment[n] % rate[n] == n % rate[n];
    }
    return i % segment[n] % rate[n] == h % rate[n];
  }

  // sync() separates writes of different lanes to the same element.
  template <class Sync>
  ATTUNE_HD void run(int64_t task, int lane, int lanes, Sync sync) const {
    const int h = int(task % problem.heads_q), i = int(task / problem.heads_q % problem.len_q);
    const int b = int(task / problem.heads_q / problem.len_q), len_k = problem.len_k;
    float* to = row(task);
    if (by == MaskedBy::dilated) {
      for (int j = lane; j < len_k; j += lanes) {
        int count = 0;
        for (int n = 0; n < branches; ++n) count += i / segment[n] == j / segment[n] && has(n, h, i) && has(n, h, j);
        to[j] = count ? logf(float(count)) : -INFINITY;
      }
      return;
    }
    const Sequence s = sequence(problem, args, b);
    if (by == MaskedBy::band) {
      for (int j = lane; j < len_k; j += lanes) to[j] = j < s.len_k && s.band.visible(i, j) ? 0.f : -INFINITY;
      return;
    }
    for (int j = lane; j < len_k; j += lanes) to[j] = -INFINITY;
    sync();
    const auto show = [&](int block, int size, float value = 0) {
      const int64_t first = int64_t(block) * size, last = first + size < len_k ? first + size : len_k;
      for (int64_t j = first + lane; j < last; j += lanes) to[j] = value;
    };
    if (by == MaskedBy::blocks) {
      const Blocks size = problem.mask.blocks;
      const BlockList all = list(b, h);
      const float* value = problem.has(Option::block_bias) ? args.row<const float>(Role::bias) : nullptr;
      for (int n = 0; n < all.count(i / size.q); ++n)
        if (const int block = all.key_block(i / size.q, n); block >= 0)
          show(block, size.k, value ? value[all.entry(i / size.q) + n] : 0);
      return;
    }
    if (i >= s.len_q) return;
    const int group = h / (problem.heads_q / problem.heads_kv);
    const int32_t* blocks = view<const int32_t>(selected).row(s.q_batch, s.q_first + i, group);
    for (int n = 0, last = -1; n < selected.extent.dim; ++n)
      if (blocks[n] > last) show(last = blocks[n], selected_size);
  }

  // One lane's part of the gradient of block_bias entry `e`: sums over all pairs of its block, in all lists that
  // contain it.
  ATTUNE_HD double entry_gradient(int e, int lane, int lanes) const {
    const Blocks size = problem.mask.blocks;
    double sum = 0;
    for (int b = 0; b < problem.batch; ++b) {
      const Sequence s = sequence(problem, args, b);
      for (int h = 0; h < problem.heads_q; ++h) {
        const BlockList all = list(b, h);
        for (int row = 0; row * int64_t(size.q) < s.len_q; ++row) {
          if (e < all.entry(row) || e - all.entry(row) >= all.count(row) || all.column[e] < 0) continue;
          const int64_t key = int64_t(all.column[e]) * size.k;
          const int first = clamp(key, 0, s.len_k), width = clamp(key + size.k, first, s.len_k) - first;
          const int top = row * size.q, rows = clamp(int64_t(top) + size.q, 0, s.len_q) - top;
          for (int64_t n = lane; n < int64_t(rows) * width; n += lanes) {
            const int64_t i = top + n / width, task = (int64_t(b) * problem.len_q + i) * problem.heads_q + h;
            sum += double(d_bias[task * problem.len_k + first + n % width]);
          }
        }
      }
    }
    return sum;
  }
};

}  // namespace attune
