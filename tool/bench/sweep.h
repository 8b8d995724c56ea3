// SPDX-License-Identifier: Apache-2.0
// Measures many rows, one after the other. Rows that the file already has are not measured again, every row is on disk
// before the next begins, and no failure of a row ends the run.
#pragma once
#include <functional>
#include <map>

#include "tool/bench/axes.h"
#include "tool/bench/row.h"
#include "tool/record/show.h"

namespace attune {

struct Sweep {
  std::vector<BenchRow> rows{};
  std::vector<Bench> benches{};   // each measures all rows
  RecordFile* file = nullptr;     // rows are appended here; null: nowhere
  RecordFile* session = nullptr;  // and here: what a process that is started again has measured before
  Progress* progress = nullptr;
  bool shows_kept = true;         // false: an earlier process has shown the kept rows
  std::function<void(const Record&)> each{};  // called in the order of the table, for kept records too
  std::string after{};            // seal of the record that this run continues; empty: none

  // Adds complete rows of earlier runs, as RecordFile::resume() returns them.
  void keep(std::vector<Record>);
  // Number of rows that are already complete, and the estimated seconds of the others.
  size_t done() const;
  // The sentence about complete rows that are measured again, because what they hold is not what is requested now:
  // "2 rows are measured again: their results were not checked"; "" if there is none.
  std::string not_answered() const;
  double seconds_left() const;
  // True if a kept row, or this build, comes from uncommitted changes: its sources cannot be compared then.
  bool changed_sources() const;
  // Returns all records in the order of the rows. Fails only if the file cannot be written.
  Status run(std::vector<Record>& out);

  std::map<std::string, std::vector<Record>> kept{};  // by resume_key(); records of the last run that has the row

 private:
  const std::vector<Record>* complete(const BenchRow&, const Bench&) const;  // null: none
  std::vector<Record> kept_of(const BenchRow&, const Bench&) const;
};

}  // namespace attune
