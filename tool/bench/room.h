// What did not fit into memory, so that longer sequences of the same are not tried: each would take the time of its
// tensors to say so again.
#pragma once
#include <string>
#include <vector>

#include "core/problem.h"

namespace attune {

struct TooLong {
  Problem problem{};
  std::string subject{};  // a backend; "attune": the tensors themselves
};

// The one of them that says so of this problem: the same but for lengths, none of which is longer. Null: none does.
const TooLong* no_room_for(const Problem&, std::string_view subject, const std::vector<TooLong>&);

}  // namespace attune
