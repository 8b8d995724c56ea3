// What changed between two sets of records: a pure function of them. Rows that asked the same are compared; a set may
// hold several runs of a row, and then their spread is in the interval. What is missing or broken is a regression, what
// is unclear is neither.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "tool/record/record.h"

namespace attune {

enum class Change {
  faster, slower, same, unclear,
  broken,   // it failed, was refused or was wrong, whatever it was before; or it was right and nobody looked now
  missing,  // it was measured before
  added,    // it was not
};
std::string name(Change);  // "FASTER"

struct CompareSettings {
  double margin = 0.01;        // smallest difference that matters; the A/A spread where that is larger
  bool strict = false;         // unclear is a regression too
  bool missing_is_fine = false;
};

struct ChangedRow {
  std::string problem{}, subject{};
  std::string setting{};  // "cold, cuda:0", "warm, 2 threads"
  double before_ns = 0, after_ns = 0;
  int runs_before = 0, runs_after = 0;
  Ratio ratio{};          // time before by time after: above 1 is faster
  Ratio cycles{};         // the same in cycles of the clock; a confidence of 0: not every record has clocks
  double margin = 0;      // that was asked of this row
  Change change = Change::unclear;
  std::string note{};     // why it is unclear or broken
};

struct Changes {
  std::vector<ChangedRow> rows{};        // in the order of the first set, then what was added
  std::vector<std::string> caveats{};    // what the two sets differ in beside their times
  int count(Change) const;
  bool is_regression(const ChangedRow&, const CompareSettings&) const;
  int regressions(const CompareSettings&) const;
};

Changes compare(const std::vector<Record>& before, const std::vector<Record>& after, const CompareSettings&);

// Whether two sets are of the same: how far apart the times of each row are, and at how many that is within a share. A
// row that only one set has, or that went wrong, is apart, however far; with missing_is_fine the former does not count.
struct Agreement {
  struct Row { const ChangedRow* row; double apart; };  // the longer time by the shorter, less 1; infinite: only one
  int rows = 0;
  std::vector<Row> apart{};  // beyond the share, the farthest first
  double farthest = 0;       // of the rows with two times
  int agreeing() const { return rows - int(apart.size()); }
};
Agreement agreement(const Changes&, double within, const CompareSettings&);

// Of median(before) / median(after) where each side is one or several runs. Of one run a side, the bootstrap of its
// samples; of more, the median of all pairs of runs with its interval by ranks (Hodges and Lehmann), or what is unsure
// within the runs where that is wider: processes differ by more than their samples show (memory lands elsewhere), so
// only runs can say by how much. Four a side reach 95 %, seven bear one that went astray.
using Samples = std::span<const double>;
Ratio ratio_of_runs(const std::vector<Samples>& before, const std::vector<Samples>& after);

// `time` is what was seen; where there are clocks a difference counts only if cycles show it as well, so that a card
// that ran at another clock is no change of the code. `why` says what kept a difference from being one.
Change judge(const Ratio& time, const Ratio& cycles, double margin, double aa_spread, std::string& why);

}  // namespace attune
