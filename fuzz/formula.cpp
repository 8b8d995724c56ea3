// SPDX-License-Identifier: Apache-2.0
// Reads arbitrary bytes as a mask and as a score. Reading terminates with a tree or a sentence. What reads prints to
// text that reads to the same nodes, and bounds of it over a box terminate.
#include <cstdint>
#include <string>

#include "core/formula/interval.h"
#include "fuzz/require.h"

using namespace attune;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const bool score : {false, true}) {
    const auto read = score ? read_score : read_mask;
    Formula f, again;
    FormulaPlace place;
    const Status s = read(text, f, place);
    require(s.ok() == s.message.empty(), "a tree or a sentence");
    require(place.at <= text.size() && place.length <= text.size() - place.at, "a mistake lies in the text");
    if (!s.ok()) continue;
    const std::string printed = text_of(f, score ? f.score : f.mask);
    require(read(printed, again, place).ok() && again.nodes == f.nodes, "a printed formula reads back");
    require(text_of(again, score ? again.score : again.mask) == printed, "and prints the same");
    NumberRange value[kMostNodes];
    const PairBox box{.q_first = 0, .q_last = 63, .k_first = 64, .k_last = 127, .h_first = 0, .h_last = 3, .b = 0,
                      .group = 2, .len_q = 128, .len_k = 128};
    (void)decide(f, box, [](int, const NumberRange*) { return formula::anything(); }, value);
  }
  return 0;
}
