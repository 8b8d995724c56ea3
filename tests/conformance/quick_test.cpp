// The short list of cases, for the inner loop, the sanitizers and scripts/mutate.py. It runs a few at a time and stops
// at the first failure; `attune parity --levels` runs all. ThreadSanitizer is ten times slower and the CPU's
// instruction sets add nothing for it, so it runs only the configuration with many threads.
#include <gtest/gtest.h>

#include "plan/plan.h"
#include "verify/suite.h"

namespace attune {
namespace {

TEST(quick, every_backend_agrees_with_the_reference) {
  constexpr size_t kAtATime = 16;
  Suite suite{.cases = {}, .backends = {}, .places = cpu_places(), .progress = {}};
  for (const Backend* b : backends())
    if (!b->only_by_name) suite.backends.push_back(b);
#ifdef __SANITIZE_THREAD__
  suite.places.clear();
#endif
  suite.places.push_back(busy_cpu());

  const std::vector<Case> all = cases(true);
  size_t runs = 0;
  for (size_t first = 0; first < all.size() && !HasFailure(); first += kAtATime) {
    const size_t last = std::min(first + kAtATime, all.size());
    suite.cases.assign(all.begin() + int64_t(first), all.begin() + int64_t(last));
    for (const Attempt& a : suite.run()) {
      EXPECT_NE(a.outcome.verdict, Verdict::fail) << command(suite, a) << "\n  " << a.outcome.why;
      EXPECT_NE(a.outcome.verdict, Verdict::empty) << command(suite, a);
      ++runs;
    }
  }
  EXPECT_GT(runs, 100u);
}

}  // namespace
}  // namespace attune
