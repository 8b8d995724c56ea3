// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/room.h"

namespace attune {

const TooLong* no_room_for(const Problem& p, std::string_view subject, const std::vector<TooLong>& all) {
  for (const TooLong& t : all) {
    Problem as_long = p;
    as_long.len_q = t.problem.len_q, as_long.len_k = t.problem.len_k;
    if (t.subject == subject && name(as_long) == name(t.problem) && p.len_q >= t.problem.len_q &&
        p.len_k >= t.problem.len_k)
      return &t;
  }
  return nullptr;
}

}  // namespace attune
