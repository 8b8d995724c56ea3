#include "tool/measure/sweep.h"

#include <algorithm>

namespace attune {
namespace {

double seconds_now() {
  static const Clock clock = host_clock();
  return double(clock.now()) * 1e-9;
}

// A row that was asked for with these words has a record for each of them, or none at all: it did not fit, or nobody
// takes it.
bool has_all_subjects(const std::vector<Record>& row, const Bench& b) {
  const auto has = [&](std::string_view name) {
    return std::any_of(row.begin(), row.end(), [&](const Record& r) { return r.subject == name; });
  };
  if (row.size() == 1 && row[0].status != "ok") return true;
  for (const std::string& word : b.backends)
    if (word != "all" && !has(word)) return false;
  return std::all_of(b.peers.begin(), b.peers.end(), [&](const attune_peer* p) { return has(p->name); });
}

double seconds_of(const BenchRow& row, const Bench& b) {
  return row.label.empty() ? estimated_seconds(row.problem, b) : 0;
}

std::vector<Record> not_built(const BenchRow& row, const Bench& b) {
  Record r = blank_record(row, b);
  r.subject = "attune", r.status = "unsupported", r.message = join("not built: ", row.not_built);
  r.row_records = 1, r.tensor_bytes = r.scores_bytes = 0;
  return {std::move(r)};
}

}  // namespace

void Sweep::keep(std::vector<Record> records) {
  for (Record& r : records) {
    std::vector<Record>& row = kept[resume_key(r)];
    if (!row.empty() && row[0].run != r.run) row.clear();
    row.push_back(std::move(r));
  }
}

std::vector<Record> Sweep::kept_of(const BenchRow& row, const Bench& b) const {
  if (kept.empty()) return {};
  const auto it = kept.find(resume_key(blank_record(row, b)));
  return it != kept.end() && has_all_subjects(it->second, b) ? it->second : std::vector<Record>{};
}

size_t Sweep::done() const {
  size_t count = 0;
  for (const Bench& b : benches)
    for (const BenchRow& row : rows) count += !kept_of(row, b).empty();
  return count;
}

double Sweep::seconds_left() const {
  double seconds = 0;
  for (const Bench& b : benches)
    for (const BenchRow& row : rows)
      if (kept_of(row, b).empty()) seconds += seconds_of(row, b);
  return seconds;
}

Status Sweep::run(std::vector<Record>& out) {
  for (Bench& b : benches) {
    if (progress) {
      b.timing.progress = [](void* p, double share) { static_cast<Progress*>(p)->share(share, seconds_now()); };
      b.timing.progress_context = progress;
    }
    for (const BenchRow& row : rows) {
      std::vector<Record> made = kept_of(row, b);
      if (made.empty()) {
        if (b.timing.stop && *b.timing.stop) continue;  // rows that were kept are still part of the table
        if (progress) progress->begin(name(row), seconds_of(row, b), seconds_now());
        b.pattern = row.pattern;
        made = row.label.empty() ? measure_row(row.problem, b) : not_built(row, b);
        if (file)
          if (Status s = file->write(made); !s.ok()) return s;
        if (progress) progress->clear(), progress->end(made);
      }
      for (Record& r : made) {
        if (each) each(r);
        out.push_back(std::move(r));
      }
    }
  }
  return Status::good();
}

}  // namespace attune
