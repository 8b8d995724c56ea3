// SPDX-License-Identifier: Apache-2.0
// What changed between two sets of records, as a pure function of them. Rows of the same problem, subject and setting
// are compared. A set may hold several runs of a row; the interval then includes their spread. A missing or broken row
// is a regression; an unclear row is neither a regression nor a gain. Rows of peers are listed, but their change is not
// ours: they decide nothing, unless nothing else was compared.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tool/record/record.h"

namespace attune {

enum class Change {
  faster, slower, same, unclear,
  broken,   // failed, refused or wrong now; or correct before and not checked now
  missing,  // measured before, not now
  added,    // measured now, not before
};
std::string name(Change);  // "FASTER"

struct CompareSettings {
  double margin = 0.01;        // smallest difference that matters; the A/A spread if that is larger
  bool strict = false;         // unclear rows are regressions too
  bool missing_is_fine = false;
};

struct ChangedRow {
  std::string problem{}, subject{};
  bool peer = false;
  std::string setting{};  // "cold, cuda:0", "warm, 2 threads"
  double before_ns = 0, after_ns = 0;
  int runs_before = 0, runs_after = 0;
  Ratio ratio{};          // time before divided by time after: above 1 is faster
  Ratio cycles{};         // the same in clock cycles; confidence 0 if a record lacks clocks
  double margin = 0;      // margin applied to this row
  Change change = Change::unclear;
  std::string note{};     // why it is unclear or broken
};

// All rows that count, with a time on both sides, taken together; see overall.h.
struct Overall {
  int rows = 0;
  Ratio ratio{};          // trimmed geometric mean of their ratios
  Ratio cycles{};         // confidence 0 if a row lacks clocks
  Change change = Change::unclear;
  std::string note{};
};

struct Changes {
  std::vector<ChangedRow> rows{};        // in the order of the first set, then the added ones
  Overall overall{};
  std::vector<std::string> caveats{};    // other differences between the two sets
  bool only_peers() const;               // no row of ours was measured before
  bool counts(const ChangedRow& r) const { return !r.peer || only_peers(); }
  int counted() const;                   // rows that count
  int count(Change) const;               // of the rows that count
  int apart(Change) const;               // of the others
  bool is_regression(const ChangedRow&, const CompareSettings&) const;
  int regressions(const CompareSettings&) const;                            // rows
  bool regressed(const CompareSettings& s) const { return regressions(s) > 0 || overall.change == Change::slower; }
  int compared() const;  // rows that count and that both sets have
  // Rows were compared, but all of them are unclear, and so are all together: nothing is known.
  bool told_nothing() const;
};

Changes compare(const std::vector<Record>& before, const std::vector<Record>& after, const CompareSettings&);

// The agreement of two runs: how far apart the times of each row are, and how many rows are within a limit. A row that
// failed or that only one set has does not agree; with missing_is_fine the latter does not count.
struct Agreement {
  struct Row { const ChangedRow* row; double apart; };  // longer time / shorter time - 1; infinite: only one time
  int rows = 0;
  std::vector<Row> apart{};  // rows beyond the limit, farthest first
  double farthest = 0;       // largest distance of a row with two times
  int agreeing() const { return rows - int(apart.size()); }
};
Agreement agreement(const Changes&, double within, const CompareSettings&);

// Estimates median(before) / median(after), where each side is one or several runs. With one run per side: that of
// their samples. With more: the median over all pairs of runs with its rank interval (Hodges and Lehmann), or the
// uncertainty within the runs if that is wider. Processes differ by more than their samples show (memory is placed
// elsewhere), so only several runs can measure it. Ranks reach 95 % with four runs per side, and seven tolerate one
// outlier; with fewer the interval is Student's t over the logarithms of the medians.
using Samples = std::span<const double>;
Ratio ratio_of_runs(const std::vector<Samples>& before, const std::vector<Samples>& after);

// Judges the ratio of times. If clocks are known, a difference counts only if the cycles show it too, so a card at
// another clock is not mistaken for a change of the code. `why` explains why a difference did not count.
Change judge(const Ratio& time, const Ratio& cycles, double margin, std::optional<double> aa_spread, std::string& why);

}  // namespace attune
