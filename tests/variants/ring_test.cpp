// Attention over ranks is attention: any number of them, every layout, both passes, equal to one rank and to the golden
// reference of the whole. Ranks are threads here; tests/transport has what they are joined by.
#include <gtest/gtest.h>

#include "machine/host.h"
#include "verify/ring.h"

namespace attune {
namespace {

constexpr int kRanks[] = {1, 2, 4, 8};

struct Counted { int runs = 0, refused = 0; };

// Every case, layout and number of ranks that the problem allows.
Counted run_all(const std::vector<Case>& cases, const std::vector<Cut>& cuts) {
  Counted counted;
  Device cpu = this_cpu();
  cpu.units = 1;  // ranks are the threads
  for (const Case& dense : cases) {
    Case whole;
    const Status made = whole_case(dense, whole);
    EXPECT_TRUE(made.ok()) << made.message;
    Trial trial(whole);
    const Status prepared = trial.prepare();
    EXPECT_TRUE(prepared.ok()) << name(dense) << ": " << prepared.message;
    if (!prepared.ok()) continue;
    for (const Cut cut : cuts)
      for (const int ranks : kRanks) {
        Problem p;
        if (!shard_problem(trial.world, {cut, ranks}, p).ok()) {
          ++counted.refused;
          continue;
        }
        std::vector<RankRun> each;
        const Outcome o = run_ranks(trial, {cut, ranks}, cpu, each, 20);
        ++counted.runs;
        EXPECT_NE(o.verdict, Verdict::fail) << name(dense) << ", " << name(cut) << ", " << ranks << " ranks: " << o.why;
      }
  }
  return counted;
}

TEST(ring, every_layout_and_number_of_ranks_is_the_golden_attention) {
  const Counted counted = run_all(ring_cases(false), all_cuts());
  EXPECT_GE(counted.runs, 400);
  std::cout << counted.runs << " runs, " << counted.refused << " refused\n";
}

}  // namespace
}  // namespace attune
