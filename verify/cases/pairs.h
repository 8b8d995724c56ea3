// Which pairs of a query and a key count beside what the band shows, and how often: lists of blocks, adaptive ones, and
// dilated attention where it is one softmax over all its branches. For one head of one sequence, by the definition: it
// shares nothing with kernels.
#pragma once
#include "core/variant/dilated.h"
#include "core/mask.h"

namespace attune {

class Pairs {
 public:
  Pairs(const Problem&, const Args&, int b, int h);
  int times(int i, int j) const;      // 0: the pair does not count
  double score(int i, int j) const;   // what a block adds to the logits of its pairs; 0 where none has it
  double factor() const { return factor_; }  // of all weights

 private:
  int heads_, h_;
  Dilated dilated_{};              // branches 0: it is not
  Blocks blocks_{};                // q 0: no list
  BlockList list_{};
  const float* scores_ = nullptr;  // of every entry of the list
  double factor_ = 1;

  int own_branch() const;
  int branches(int i, int j) const;
};

// Whether branches of dilated attention are one softmax, of which a backward gets the whole gradient.
bool is_one_softmax(const Problem&);

}  // namespace attune
