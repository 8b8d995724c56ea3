// Records as the sections of a report see them: with what their line says, grouped into families that differ in their
// length only, and with one look (colour, marker, dash) for each subject throughout the page.
#pragma once
#include <map>

#include "core/problem.h"
#include "tool/timing/fit.h"
#include "tool/report/model.h"

namespace attune {

// Lines of a newer grammar, or nonsense, stay in the tables and out of the plots.
struct Measurement {
  const Record* record = nullptr;
  std::string subject{};  // and its machine, where the report has several
  std::string series{};   // and what else sets it apart from others of the same name in this report
  std::string family{};   // the line without what varies with the length, and the pattern of its lists
  Problem problem{};      // where `length` is not 0
  Problem whole{};        // of all ranks of a ring; else the same
  int length = 0;         // of keys, of all ranks; 0: unknown
  bool ok() const { return record->status == "ok" && record->median_ns > 0; }
  // Its result counts. One that was wrong ended as 'failed' and has no time.
  bool judged() const { return ok() || record->parity.verdict == "FAIL"; }
  bool peer() const { return record->why.starts_with("a peer") || record->subject.find(':') != std::string::npos; }
  double tokens() const { return double(whole.batch) * std::max(whole.len_q, whole.len_k); }
};

struct Measurements {
  std::vector<Measurement> all{};
  std::map<std::string, int> looks{};  // by series, of those with a row that was measured
  double rate_scale = 1;               // GFLOP/s in one `rate_unit`
  std::string rate_unit{"GFLOP/s"};
  std::string rate(double gflops) const;  // "612", in `rate_unit`
};
Measurements rows_of(const std::vector<Record>&);

// In the order they first appear, each sorted by length.
std::vector<std::pair<std::string, std::vector<Measurement>>> families_of(const Measurements&);

std::string length_text(double keys);          // "16K"
std::string nanoseconds_text(double ns);
std::string nanoseconds_tick(double ns);
std::string kind_text(const Measurement&);     // "bf16 d128 causal": what a tuned rule is about
TableCell number_cell(double value, std::string text, Tone = Tone::plain);
TableCell empty_cell();
TableCell verdict_cell(const std::string& verdict);
std::string counted(size_t count, std::string_view what);  // "1 problem", "2 problems"

// How time or memory grows with the length, of one subject in one family.
struct Growth {
  std::string family{}, series{};
  Fit time{}, time_a_token{}, memory{};  // by the number of keys; points = 0: not known
};
std::vector<Growth> growth_of(const Measurements&);  // those with three lengths or more

// Bytes of tensors and workspace, of a row whose workspace is known; 0: it is not.
double memory_bytes(const Measurement&);

// What one row costs with one offer.
struct RowCost {
  const Measurement* row = nullptr;
  const Offer* offer = nullptr;
  double usd_a_million = 0;     // of calls
  double tokens_a_usd = 0, flops_a_usd = 0;
};
std::vector<RowCost> costs_of(const Measurements&, const std::vector<Offer>&);
double measured_seconds(const Measurements&, const Offer&);  // in samples and warm-up on what it is for: at least that

// The sections, in the order of the page. One without figures is left out.
Section comparison_section(const Measurements&, const std::vector<Rule>&);
Section length_section(const Measurements&);
Section roofline_section(const Measurements&);
Section scaling_section(const Measurements&);
Section memory_section(const Measurements&);
Section cost_section(const Measurements&, const std::vector<Offer>&);
Section parity_section(const Measurements&);
Section trace_section(const Measurements&);
Section regression_section(const std::vector<Record>& before, const std::vector<Record>& now, const std::string& name);
Section every_row_section(const Measurements&);

std::vector<Advice> advice_of(const Measurements&);

}  // namespace attune
