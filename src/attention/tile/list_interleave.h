// SPDX-License-Identifier: Apache-2.0
// Merges two lists of key tiles, each walked from its end, into one stream. A key tile that both lists need next comes
// once; otherwise the one with the higher number comes. A consumer holds on to its key tile until it finds its next
// one. So neither list waits for more than `most` consecutive key tiles of the other, out of order if necessary.
#pragma once
#include "core/tensor.h"

namespace attune {

struct ListInterleave {
  int most;
  int alone = 0;  // consecutive key tiles for the first list only; negative: for the second only

  struct Step { bool first, second; };
  // Takes the next key tile of each list; negative if the list has ended. At least one has not.
  ATTUNE_HD Step next(int of_first, int of_second) {
    Step t{of_first >= of_second, of_second >= of_first};
    if (t.first != t.second && of_first >= 0 && of_second >= 0 && (t.first ? alone : -alone) >= most)
      t = {t.second, t.first};
    alone = t.first == t.second ? 0 : t.first ? (alone > 0 ? alone : 0) + 1 : (alone < 0 ? alone : 0) - 1;
    return t;
  }
};

}  // namespace attune
