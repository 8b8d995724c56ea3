// SPDX-License-Identifier: Apache-2.0
// What a mask hides, found by reading it once per call: one Part for each query and key tile.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/workspace.h"
#include "plugins/ggml/attention.h"

namespace attune::ggml {

enum class Sight : uint8_t {
  none,    // all keys are hidden (-inf)
  all,     // all numbers are 0
  range,   // 0 for keys [first, last), -inf elsewhere
  numbers  // anything else; keys outside [first, last) are hidden
};
struct Part {
  Sight sight;
  uint16_t first, last;  // keys of the tile
  uint16_t seen;         // number of keys that are not hidden
};

class MaskMap {
 public:
  MaskMap(const Attention& a, int tile, Workspace& memory)
      : a_(a),
        tile_(tile),
        tiles_((a.len_k + tile - 1) / tile),
        parts_(memory.take<Part>(a.mask.data ? size_t(queries()) * size_t(tiles_) : 0)) {}

  int queries() const { return a_.mask.data ? a_.mask.batches * a_.len_q : 0; }
  int tiles() const { return tiles_; }
  int keys(int t) const { return t + 1 < tiles_ ? tile_ : a_.len_k - t * tile_; }
  void read(int n);  // query n % len_q of mask n / len_q
  Part part(int b, int i, int t) const {
    if (!a_.mask.data) return {Sight::all, 0, uint16_t(keys(t)), uint16_t(keys(t))};
    return parts_[(int64_t(b % a_.mask.batches) * a_.len_q + i) * tiles_ + t];
  }
  // The mask's numbers for n keys from `first` on, in f32.
  void numbers(const CpuKernels& half, int b, int i, int first, int n, float* to) const;

 private:
  const char* row(int b, int i) const { return a_.mask.data + (b % a_.mask.batches) * a_.mask.batch + i * a_.mask.row; }

  const Attention& a_;
  const int tile_, tiles_;
  Part* const parts_;
};

}  // namespace attune::ggml
