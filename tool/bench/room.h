// SPDX-License-Identifier: Apache-2.0
// Rows that did not fit into memory. Longer sequences of the same problem are then skipped, which saves the time of
// making their tensors.
#pragma once
#include <string>
#include <vector>

#include "core/problem.h"

namespace attune {

struct TooLong {
  Problem problem{};
  std::string subject{};  // a backend or peer; "attune": the tensors themselves
};

// Finds a row that rules this problem out: the same but for its lengths, neither of which is longer. Null if none.
const TooLong* no_room_for(const Problem&, std::string_view subject, const std::vector<TooLong>&);

}  // namespace attune
