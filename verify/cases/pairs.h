// SPDX-License-Identifier: Apache-2.0
// Which visible (query, key) pairs count, and how often: for block lists, adaptive ones, and dilated attention that is
// one softmax over all its branches. For one head of one sequence, by the definition; it shares nothing with kernels.
#pragma once
#include "core/variant/dilated.h"
#include "core/mask.h"

namespace attune {

class Pairs {
 public:
  Pairs(const Problem&, const Args&, int b, int h);
  int times(int i, int j) const;      // 0: the pair does not count
  double score(int i, int j) const;   // the block's addition to the logits of its pairs; 0 if no block contains it
  double factor() const { return factor_; }  // factor of all weights

 private:
  int heads_, h_;
  Dilated dilated_{};              // branches 0: not dilated
  bool contiguous_ = false;        // offsets of heads
  Blocks blocks_{};                // q 0: no list
  BlockList list_{};
  const float* scores_ = nullptr;  // per entry of the list
  double factor_ = 1;

  int own_branch() const;
  int branches(int i, int j) const;
};

// Whether the branches of dilated attention are one softmax, with the exact gradient in a backward.
bool is_one_softmax(const Problem&);

}  // namespace attune
