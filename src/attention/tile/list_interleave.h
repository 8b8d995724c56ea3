// Two lists of key tiles, each walked from its end, as one stream: what both want next comes once, else the further of
// the two. Who wants a key tile keeps something of it until he finds his next, so neither waits for more than `most`
// key tiles of the other alone; out of order, if need be.
#pragma once
#include "core/tensor.h"

namespace attune {

struct ListInterleave {
  int most;
  int alone = 0;  // key tiles in a row that only the first list wanted; below zero: only the second

  struct Step { bool first, second; };
  // Of the next key tile of each; below zero: it has no more. One of them has.
  ATTUNE_HD Step next(int of_first, int of_second) {
    Step t{of_first >= of_second, of_second >= of_first};
    if (t.first != t.second && of_first >= 0 && of_second >= 0 && (t.first ? alone : -alone) >= most)
      t = {t.second, t.first};
    alone = t.first == t.second ? 0 : t.first ? (alone > 0 ? alone : 0) + 1 : (alone < 0 ? alone : 0) - 1;
    return t;
  }
};

}  // namespace attune
