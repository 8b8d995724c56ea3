// Many rows, one after the other: what is in the file already is not measured again, every row is on disk before the
// next begins, and nothing that happens to one of them ends the run.
#pragma once
#include <functional>
#include <map>

#include "tool/bench/axes.h"
#include "tool/bench/row.h"
#include "tool/record/show.h"

namespace attune {

struct Sweep {
  std::vector<BenchRow> rows{};
  std::vector<Bench> benches{};   // each goes over all rows
  RecordFile* file = nullptr;     // where rows are added; null: nowhere
  Progress* progress = nullptr;
  std::function<void(const Record&)> each{};  // in the order of the table, those that were kept as well

  // Rows of earlier runs, whole, as RecordFile::resume() gives them.
  void keep(std::vector<Record>);
  // How many of the rows are there already, and seconds that the others will take at a guess.
  size_t done() const;
  double seconds_left() const;
  // Whether a row that is there, or this build, is of changed files: then nothing says that they are the same sources.
  bool changed_sources() const;
  // All records in the order of the rows. A refusal only where the file cannot be written.
  Status run(std::vector<Record>& out);

  std::map<std::string, std::vector<Record>> kept{};  // by resume_key(); of the last run that has the row

 private:
  std::vector<Record> kept_of(const BenchRow&, const Bench&) const;
};

}  // namespace attune
