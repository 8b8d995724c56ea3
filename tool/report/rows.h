// SPDX-License-Identifier: Apache-2.0
// Records prepared for the sections of a report: with their parsed lines, grouped into families that differ only in
// length, and with one look (colour, marker, dash) per subject throughout the page.
#pragma once
#include <map>
#include <optional>

#include "core/problem.h"
#include "tool/compare/changes.h"
#include "tool/timing/fit.h"
#include "tool/report/model.h"

namespace attune {

// Lines that cannot be parsed, such as those of a newer grammar, appear in the tables but not in the plots.
struct Measurement {
  const Record* record = nullptr;
  std::string subject{};  // with its machine, if the report has several
  std::string series{};   // subject with everything else that distinguishes it within this report
  std::string family{};   // the line without what varies with the length, and the pattern of its block lists
  Problem problem{};      // valid if `length` is not 0
  Problem whole{};        // problem of all ranks of a ring; else the same
  int length = 0;         // keys over all ranks; 0: unknown
  bool ok() const { return record->status == RecordStatus::ok && record->median_ns > 0; }
  // Its result counts. A wrong one has failed and has no time.
  bool judged() const { return ok() || record->parity.verdict == CheckVerdict::fail; }
  bool peer() const { return record->peer || record->subject.find(':') != std::string::npos; }
  double tokens() const { return double(whole.batch) * std::max(whole.len_q, whole.len_k); }
};

struct Measurements {
  std::vector<Measurement> all{};
  std::map<std::string, int> looks{};  // by series, for those with a measured row
  double rate_scale = 1;               // GFLOP/s in one `rate_unit`
  std::string rate_unit{"GFLOP/s"};
  std::string rate(double gflops) const;  // "612", in `rate_unit`
};
Measurements rows_of(const std::vector<Record>&);

// Families in order of first appearance, each sorted by length.
std::vector<std::pair<std::string, std::vector<Measurement>>> families_of(const Measurements&);

std::string length_text(double keys);          // "16K"
std::string nanoseconds_text(double ns);
std::string nanoseconds_tick(double ns);
std::string kind_text(const Measurement&);     // "bf16 d128 causal": what a tuned rule is about
TableCell number_cell(double value, std::string text, Tone = Tone::plain);
TableCell empty_cell();
TableCell verdict_cell(const std::string& verdict);
std::string confidence_text(const Interval&);  // " at 75 %"; "" from 95 % on
// Heads of columns, true for every row under them: "95 % interval", or "interval" where a row has less confidence and
// says so. ratio_head() is about the ratios to the baseline.
std::string interval_head(const std::vector<Measurement>&);
std::string ratio_head(const std::vector<Measurement>&);
std::string checked_text(const Word<CheckVerdict>&);  // "UNCHECKED" where a record has no verdict

// How time and memory of one subject grow with the length in one family.
struct Growth {
  std::string family{}, series{};
  Fit time{}, time_a_token{}, memory{};  // over the number of keys; points is 0 if unknown
};
std::vector<Growth> growth_of(const Measurements&);  // only series with at least three lengths

// Bytes of tensors and workspace; 0 if the workspace is unknown.
double memory_bytes(const Measurement&);

// The cost of one row with one offer.
struct RowCost {
  const Measurement* row = nullptr;
  const Offer* offer = nullptr;
  double usd_a_million = 0;     // per million calls
  double tokens_a_usd = 0, flops_a_usd = 0;
};
std::vector<RowCost> costs_of(const Measurements&, const std::vector<Offer>&);
double measured_seconds(const Measurements&, const Offer&);  // samples and warm-up on its device: a lower bound

// The sections of the page. An empty section is left out.
Section comparison_section(const Measurements&, const std::vector<Rule>&);
Section length_section(const Measurements&);
Section ranking_section(const std::vector<Record>&, const std::string& base);
Section samples_section(const Measurements&);
Section roofline_section(const Measurements&);
Section scaling_section(const Measurements&);
Section memory_section(const Measurements&);
Section cost_section(const Measurements&, const std::vector<Offer>&);
Section parity_section(const Measurements&);
Section trace_section(const Measurements&);
Section regression_section(const Changes&, const std::string& name);
Section every_row_section(const Measurements&);

// The first fact of a report where something became slower, broke or is missing since the run `name`.
std::optional<Fact> regression_fact(const Changes&, const std::string& name);

std::vector<Advice> advice_of(const Measurements&);

}  // namespace attune
