// Live calls become rules: a process that runs with ATTUNE_LOG=1 says which problems it has, and this measures each of
// them, with the timer and the checks of `bench`, in a process of its own. Nothing is timed inside the live calls: what
// else their process does would be in the time.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/status.h"

namespace attune {

struct Watched {
  std::string log{}, records{};
  bool once = false;  // end where the log ends, not at a signal
};

// One line of a log, as the library writes it.
struct LoggedCall { std::string problem{}, device{}; };
bool read_call(std::string_view line, LoggedCall& out);

// Calls `tune` after every batch of new problems. Ends at SIGINT or SIGTERM, after what is being measured.
Status watch(const Watched&, const std::function<void()>& tune);

}  // namespace attune
