// SPDX-License-Identifier: Apache-2.0
// Named sets of rows: what `attune bench --suite` measures.
#pragma once
#include "tool/bench/axes.h"

namespace attune {

// A suite skips a row if one call is estimated to take longer than this: the row would take hours.
inline constexpr double kMostCallSeconds = 200;

struct BenchSuite {
  std::string_view name{};
  std::vector<std::string> (*lines)() = nullptr;
  bool all_backends = false;           // measure every backend, unless --backend is given
  int samples = 0, warm_up_calls = 0;  // minimum counts; 0: the default
  double max_seconds = 0;              // per subject, unless --max-seconds is given; 0: the default
  int min_early = 0;                   // samples that suffice when the time is up; 0: the default
  bool (*beside)(const Problem&, std::string_view backend) = nullptr;  // backends to add, unless --backend is given
  double rest_ms = 0;                  // rest of a GPU before every batch, unless --rest or --hot is given
};
const BenchSuite* find_suite(std::string_view name);  // null if there is none

std::string suite_names();  // "sdpa-small, fa2-vs-sdpa, ..."
Status suite_rows(std::string_view name, std::vector<BenchRow>& out);

}  // namespace attune
