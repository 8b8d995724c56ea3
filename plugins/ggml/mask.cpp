// SPDX-License-Identifier: Apache-2.0
#include "plugins/ggml/mask.h"

#include <algorithm>

#include "core/number.h"

namespace attune::ggml {
namespace {

// Bits of 0 and of -inf; shifting the sign out makes -0 a 0.
template <class Bits>
struct Format;
template <>
struct Format<uint16_t> {
  static constexpr uint16_t kHidden = 0xFC00;
};
template <>
struct Format<uint32_t> {
  static constexpr uint32_t kHidden = 0xFF800000;
};

template <class Bits>
Part classify(const Bits* x, int n) {
  constexpr Bits hidden = Format<Bits>::kHidden;
  Bits zeros = 0, gone = 0;  // n is at most 512; one width for all lanes, so that the loop vectorizes
  for (int j = 0; j < n; ++j) {
    zeros = Bits(zeros + (Bits(x[j] << 1) == 0));
    gone = Bits(gone + (x[j] == hidden));
  }
  if (int(gone) == n) return {Sight::none, 0, 0, 0};
  if (int(zeros) == n) return {Sight::all, 0, uint16_t(n), uint16_t(n)};
  int first = 0, last = n;
  while (x[first] == hidden) ++first;
  while (x[last - 1] == hidden) --last;
  const bool range = int(zeros) == last - first;
  return {range ? Sight::range : Sight::numbers, uint16_t(first), uint16_t(last), uint16_t(n - int(gone))};
}

}  // namespace

void MaskMap::read(int n) {
  const char* x = row(n / a_.len_q, n % a_.len_q);
  for (int t = 0; t < tiles_; ++t)
    parts_[int64_t(n) * tiles_ + t] =
        a_.mask.f16 ? classify(reinterpret_cast<const uint16_t*>(x) + int64_t(t) * tile_, keys(t))
                    : classify(reinterpret_cast<const uint32_t*>(x) + int64_t(t) * tile_, keys(t));
}

void MaskMap::numbers(const CpuKernels& half, int b, int i, int first, int n, float* to) const {
  if (a_.mask.f16)
    half.widen(reinterpret_cast<const F16*>(row(b, i)) + first, n, to);
  else
    std::copy_n(reinterpret_cast<const float*>(row(b, i)) + first, n, to);
}

}  // namespace attune::ggml
