// SPDX-License-Identifier: Apache-2.0
// What a command line of `attune bench` asks for, and the rows and settings that follow from it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tool/bench/axes.h"
#include "tool/bench/row.h"
#include "tool/commands/commands.h"

namespace attune {

struct AskedBench {
  std::vector<std::string> lines{};
  std::string file{}, config{};
  Axes axes{};
  std::vector<std::string> backends{}, peers{}, modes{};
  std::string python{"python3"}, device{"cpu"}, threads{}, layout{"bhsd"}, distribution{"normal"}, out{}, baseline{};
  std::string base{};  // of rows across lines
  std::string sign{};  // a key
  std::string share{};  // "2/4": every fourth row, from the second on
  std::string lengths{}, suite{};
  std::vector<std::string> axes_given{};  // names on the command line: "--pass"
  bool cold = false, warm = false, dry_run = false, no_check = false, resume = false;
  bool plot = false, burst = false, sustained = false;
  double energy_seconds = 0;
  std::optional<double> max_seconds{}, rest_ms{}, heat_ms{};  // unset: the suite's value, or the engine's default
  TimingSettings timing{};
  int samples = 0;         // 0: until the precision is reached
  std::string warm_up{};   // "200", "2s", "50ms"
  uint32_t seed = 1;
};

// The rows of the lines, the file, the suite or the axes.
Status rows_asked(const AskedBench&, std::vector<BenchRow>& out);
// Settings shared by every row, and one Bench per mode, state and number of threads, because their ceilings differ.
// `code` is the exit code of a refusal.
Status benches_asked(const AskedBench&, std::vector<Bench>& out, Exit& code);
// --lengths needs at least one problem with ragged keys, and must fit all of them.
Status lengths_fit(const std::vector<BenchRow>& rows, const std::vector<int32_t>& lengths);

}  // namespace attune
