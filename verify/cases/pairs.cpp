// SPDX-License-Identifier: Apache-2.0
#include "verify/cases/pairs.h"

#include "core/variant/adaptive.h"
#include "core/args.h"
#include "verify/rows.h"

namespace attune {

Pairs::Pairs(const Problem& p, const Args& a, int b, int h) : heads_(p.heads_q), h_(h), blocks_(p.mask.blocks) {
  Role begin = Role::block_begin, column = Role::block_column;
  if (p.has(Option::block_bias)) scores_ = a.row<const float>(Role::bias);
  if (word(p.variant) == "adaptive") {
    const int size = adaptive_of(p).block;
    begin = role(AdaptiveTensor::begin), column = role(AdaptiveTensor::column);
    blocks_ = {size, size, a[column].extent.dim}, scores_ = a.row<const float>(role(AdaptiveTensor::scores));
  }
  if (blocks_.q) list_ = {blocks_, a.row<const int32_t>(begin, b, 0, h), a.row<const int32_t>(column)};
  if (word(p.variant) == "dilated") {
    dilated_ = dilated_of(p), factor_ = double(dilated_.factor());
    contiguous_ = value(p.variant, "offsets") == "contiguous";
  }
}

// The branch of a head, in mode headgroup: the first branches have one head more.
int Pairs::own_branch() const {
  int n = 0;
  for (int first = 0; n < dilated_.branches; ++n) {
    first += heads_ / dilated_.branches + (n < heads_ % dilated_.branches);
    if (h_ < first) break;
  }
  return n;
}

int Pairs::branches(int i, int j) const {
  const bool dealt = dilated_.mode == Dilated::Mode::headgroup;
  int count = 0;
  for (int n = dealt ? own_branch() : 0; n < dilated_.branches; ++n) {
    const int segment = dilated_.segment[n], rate = dilated_.rate[n], each = (heads_ + rate - 1) / rate;
    const int kept = dealt ? n % rate : contiguous_ ? h_ / each : h_ % rate;
    count += i / segment == j / segment && i % segment % rate == kept && j % segment % rate == kept;
    if (dealt) break;
  }
  return count;
}

int Pairs::times(int i, int j) const {
  if (dilated_.branches) return branches(i, j);
  return !blocks_.q || list_.find(i / blocks_.q, j / blocks_.k) >= 0;
}

double Pairs::score(int i, int j) const {
  const int entry = scores_ ? list_.find(i / blocks_.q, j / blocks_.k) : -1;
  return entry >= 0 ? double(scores_[entry]) : 0;
}

bool is_one_softmax(const Problem& p) {
  const Dilated d = dilated_of(p);
  return (d.norm == Dilated::Norm::lse && !(d.detached && p.pass == Pass::backward)) || !d.sums();
}

void swap_axes(const Tensor& t, int64_t& seq, int64_t& head) {
  const int64_t seqs = t.extent.seq, heads = t.extent.head;
  const bool bshd = t.stride.seq >= t.stride.head;
  const int64_t at = bshd ? head * seqs + seq : seq * heads + head;
  seq = bshd ? at / heads : at % seqs;
  head = bshd ? at % heads : at / seqs;
}

}  // namespace attune
