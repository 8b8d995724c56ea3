// SPDX-License-Identifier: Apache-2.0
// A row: how many records it has, and every claim about a baseline.
#include <set>

#include "tool/check/parts.h"
#include "tool/text.h"

namespace attune {
namespace {

// Checks a claim about a baseline: the row has it, it was timed, it is the fastest peer, and the ratio follows from the
// samples of both.
void audit_ratio(const Reporter& a, std::span<const Line> row) {
  const Record& r = a.r;
  if (r.baseline.empty()) {
    if (!r.verdict.empty()) a.wrong("missing-baseline", "verdict ", r.verdict, " without a baseline");
    return;
  }
  const Record *base = nullptr, *best = nullptr;
  for (const Line& other : row) {
    const Record& o = other.record;
    if (!was_timed(o) || (o.samples_ns.empty() && !other.extract)) continue;
    if (o.subject == r.baseline) base = &o;
    if (o.peer && o.status == RecordStatus::ok && (!best || o.median_ns < best->median_ns)) best = &o;
  }
  if (!base) return a.wrong("missing-baseline", "the baseline ", r.baseline, " was not measured in the same row");
  if (base->parity.verdict == CheckVerdict::fail)
    a.wrong("slow-baseline", "the baseline ", r.baseline, " computed a wrong result");
  const bool resampled = r.version < 3;
  Ratio again = (resampled ? resampled_ratio : median_ratio)(base->samples_ns, r.samples_ns);
  if (a.line.extract) again = r.ratio, again.value = base->median_ns / r.median_ns;
  if (!near(r.ratio.value, again.value, 2e-3)) {
    a.wrong("forged-ratio", "recorded as ", r.ratio.value, " times as fast as ", r.baseline,
            ", but the samples of both give ", again.value);
  } else {
    const double room = 2e-3 + 0.25 * (again.interval.high - again.interval.low);  // stored samples are rounded
    if (!near(r.ratio.interval.low, again.interval.low, 0, room) ||
        !near(r.ratio.interval.high, again.interval.high, 0, room))
      a.wrong("forged-ratio", "the interval of the ratio is recorded as ", r.ratio.interval.low, " to ",
              r.ratio.interval.high, ", but the samples of both give ", again.interval.low, " to ",
              again.interval.high);
    else if (!resampled && !near(r.ratio.interval.confidence, again.interval.confidence, 1e-6))
      a.wrong("forged-ratio", "the confidence of the ratio is recorded as ", r.ratio.interval.confidence,
              ", but the samples of both give ", again.interval.confidence);
  }
  // Under load older builds wrote a verdict against a peer too; verdict_text() does not show it.
  const std::string is = name(verdict(r.ratio, 0.01, r.aa_spread, resampled ? 0 : kConfidence));
  if (is != r.verdict && (held_up_text(r).empty() || r.verdict != name(Speed::unclear)))
    a.wrong("forged-verdict", "recorded as ", r.verdict, ", but the ratio and the A/A spread give ", is);
  if (best && base->peer && best != base && best->median_ns < base->median_ns / (1.01 + r.aa_spread.value_or(0))) {
    const bool changes = r.verdict == "FASTER" && best->median_ns < r.median_ns && best != &r;
    if (changes)
      a.wrong("slow-baseline", "FASTER than ", r.baseline, ", but slower than ", best->subject, " in the same row");
    else
      a.caution("slow-baseline", "the baseline is ", r.baseline, ", but ", best->subject,
                " was the faster peer in the same row");
  }
}

// The interval is as narrow as a precise end asks for. A subject goes on until all of its row are done, so after an
// interrupt it may not be any more.
void audit_precision(const Reporter& a, std::span<const Line> row) {
  const Record& r = a.r;
  const auto is_cut = [](const Line& l) { return l.record.status == RecordStatus::interrupted; };
  if (r.version < 3 || a.line.extract || r.status != RecordStatus::ok || r.ended_by != "precision") return;
  const double width = half_width(r.interval, r.median_ns);
  if (width > 1.01 * r.precision + 1e-9 && std::none_of(row.begin(), row.end(), is_cut))
    a.wrong("forged-end", "sampling ended by precision, but half the interval is ", 100 * width,
            " % of the median, above ", 100 * r.precision, " %");
}

}  // namespace

// The records of one row are adjacent. Files may be concatenated, so a repeated subject begins another row.
std::span<const Line> row_at(std::span<const Line> lines, size_t first) {
  const std::string key = row_key(lines[first].record);
  std::set<std::string> subjects;
  size_t last = first;
  const auto is_next = [&](const Record& r) { return row_key(r) == key && subjects.insert(r.subject).second; };
  while (last < lines.size() && is_next(lines[last].record)) ++last;
  return lines.subspan(first, last - first);
}

void audit_row(std::span<const Line> row, std::vector<Finding>& found) {
  for (const Line& l : row) {
    const Reporter a{l, l.record, found};
    if (was_timed(l.record)) audit_ratio(a, row), audit_precision(a, row);
    if (l.record.row_records != row[0].record.row_records)
      a.wrong("unequal-run", "the row has ", counted(l.record.row_records, "record"), ", but its first one says ",
              row[0].record.row_records);
  }
  const Reporter first{row[0], row[0].record, found};
  const int says = first.r.row_records;
  if (int(row.size()) < says)
    first.caution("unfinished-row", "only ", row.size(), " of ", counted(says, "record"), " of the row are present");
  if (says > 0 && int(row.size()) > says)
    first.wrong("copied-record", counted(row.size(), "record"), " here for a row of ", says);
}

}  // namespace attune
