// SPDX-License-Identifier: Apache-2.0
// Turns live calls into rules. A process that runs with ATTUNE_LOG=1 logs its problems, and each of them is measured
// with the timer and the checks of `bench` in a separate process. The live calls themselves are not timed, because the
// time would include whatever else their process does.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/status.h"

namespace attune {

struct Watched {
  std::string log{}, records{};
  bool once = false;  // end at the end of the log, not at a signal
};

// One line of the log, as the library writes it.
struct LoggedCall { std::string problem{}, device{}; };
bool read_call(std::string_view line, LoggedCall& out);

// Calls `tune` after every batch of new problems. Ends at SIGINT or SIGTERM, after the measurement in progress.
Status watch(const Watched&, const std::function<void()>& tune);

}  // namespace attune
