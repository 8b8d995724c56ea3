// Rows that belong together, by name: what `attune bench --suite` measures.
#pragma once
#include "tool/bench/axes.h"

namespace attune {

// A row of a suite of which one call is reckoned to take longer is not tried: hours for a number that nobody waits for.
inline constexpr double kMostCallSeconds = 200;

struct BenchSuite {
  std::string_view name{};
  std::vector<std::string> (*lines)() = nullptr;
  bool all_backends = false;  // side by side, where nobody names some
  int samples = 0, warm_up_calls = 0;  // at least; 0: as always
  double max_seconds = 0;     // of a subject, where nobody says; 0: as always
  int min_early = 0;                // samples are enough where the time is up; 0: as always
  bool (*beside)(const Problem&, std::string_view backend) = nullptr;  // also, where nobody names some
  double rest_ms = 0;         // of a GPU before every batch, where nobody says how it is to rest or to be heated
};
const BenchSuite* find_suite(std::string_view name);  // null: there is none

std::string suite_names();  // "sdpa-small, fa2-vs-sdpa, ..."
Status suite_rows(std::string_view name, std::vector<BenchRow>& out);

}  // namespace attune
