// SPDX-License-Identifier: Apache-2.0
// What the parts of the audit share; see audit.h.
#pragma once
#include <algorithm>
#include <cmath>
#include <string_view>

#include "tool/check/audit.h"

namespace attune {

inline bool near(double a, double b, double relative, double absolute = 0) {
  return std::abs(a - b) <= absolute + relative * std::max(std::abs(a), std::abs(b));
}
inline bool is_gpu(const Record& r) { return r.device.starts_with("cuda"); }
// An interrupted record counts as far as it got: others of its row are compared with it.
inline bool was_timed(const Record& r) {
  return r.status == RecordStatus::ok || r.status == RecordStatus::refused ||
         (r.status == RecordStatus::interrupted && !r.samples_ns.empty());
}

// Appends findings about one record.
struct Reporter {
  const Line& line;
  const Record& r;
  std::vector<Finding>& found;

  template <class... T>
  void wrong(const char* name, const T&... sentence) const {
    found.push_back({line.number, name, true, join(r.subject, ": ", sentence...)});
  }
  template <class... T>
  void caution(const char* name, const T&... sentence) const {
    found.push_back({line.number, name, false, join(r.subject, ": ", sentence...)});
  }
};

// Seconds since 1970 of "2026-01-31T12:00:00Z", or of the head of a run's id, "20260131T120000Z-7"; -1 if that is not a
// time of the calendar.
int64_t seconds_of_time(std::string_view);
int64_t seconds_of_run(std::string_view);

// One record alone: its status, summary, work, rates, check, place and clock; words, counts and load.
void audit_record(const Reporter&);
void audit_words(const Reporter&);
void audit_counts(const Reporter&);
void audit_load(const Reporter&);
// A row: how many records it has, and every claim about a baseline.
void audit_row(std::span<const Line> row, std::vector<Finding>& found);
// A run: what is equal in all its records, and its times.
void audit_runs(std::span<const Line>, std::vector<Finding>& found);
void audit_times(std::span<const Line>, std::vector<Finding>& found, int64_t now);
// Seals, and the chain that they form.
void audit_seals(std::span<const Line>, std::vector<Finding>& found);
// Samples that were taken over from another record.
void audit_copies(std::span<const Line>, std::vector<Finding>& found);

// The records of one row are adjacent. Files may be concatenated, so a repeated subject begins another row.
std::span<const Line> row_at(std::span<const Line>, size_t first);

}  // namespace attune
