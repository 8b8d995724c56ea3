// SPDX-License-Identifier: Apache-2.0
#include "tool/check/audit.h"

#include <map>

#include "tool/check/parts.h"
#include "tool/record/seal.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr const char* kNames[] = {
    "unreadable",     "newer-version",   "missing-field",  "unknown-status",    "unknown-word",     "no-reason",
    "no-samples",     "impossible-sample", "impossible-count", "impossible-time", "copied-samples", "forged-status",
    "forged-summary", "forged-end",      "forged-rate",    "forged-flops",      "forged-energy",    "above-roofline",
    "enqueue-only",   "missing-roofline", "forged-ceiling", "skipped-parity",   "forged-parity",    "cpu-on-gpu",
    "gpu-on-cpu",     "zero-inputs",     "missing-baseline", "slow-baseline",   "forged-ratio",     "forged-verdict",
    "throttled",      "late-launches",   "unknown-source", "dirty-source",      "bad-time",         "bad-problem",
    "unfinished-row", "few-samples",     "forged-density", "forged-memory",     "missing-kernels",  "unequal-run",
    "broken-seal",    "missing-seal",    "dropped-record", "moved-record",      "copied-record",    "forged-version",
    "unfinished-run", "forged-work",    "unsealed",       "extract",           "bad-signature",    "busy-machine",
    "impossible-load"};

struct Field {
  const char* name;
  int since;        // version
  bool in_extract;
};
constexpr Field kFields[] = {
    {"status", 1, true},       {"problem", 1, true},      {"subject", 1, true},   {"device", 1, true},
    {"mode", 1, true},         {"samples_ns", 1, false},  {"median_ns", 1, true}, {"interval_ns", 1, true},
    {"flops", 1, true},        {"bytes", 1, true},        {"parity", 1, true},    {"provenance", 1, true},
    {"run", 2, true},          {"row_records", 2, false}, {"input_rms", 2, false}, {"kernels", 2, false},
    {"precision", 3, false},   {"previous", 3, false},    {"planned_rows", 3, false}, {"closes", 3, false},
    {"mean_ns", 4, false},     {"deviation_ns", 4, false}, {"p95_ns", 4, false},  {"p99_ns", 4, false},
    {"most_samples", 4, false}, {"sequences", 4, false},  {"tokens", 4, false},   {"queries", 4, false},
    {"sequences_s", 4, false}, {"tokens_s", 4, false},    {"queries_s", 4, false},
    {"provenance.command", 4, false},  {"provenance.os", 4, false},  {"provenance.gpu_memory_bytes", 4, false},
    {"provenance.gpu_sms", 4, false},  {"provenance.gpu_bandwidth_gbs", 4, false}, {"provenance.cudnn", 4, false}};

bool has(std::string_view text, const char* field) { return first_missing(text, {&field, 1}) == 1; }

// A published record: results.py keeps the number of samples and adds the command.
bool is_extract(std::string_view text) {
  if (text.find("\"samples_ns\"") != text.npos) return false;
  return has(text, "samples") && has(text, "suite") && has(text, "command");
}

}  // namespace

std::string row_key(const Record& r) {
  return join(r.run, "|", r.problem, "|", r.pattern, "|", r.device, "|", timing_text(r), "|", r.threads, "|", r.layout,
              "|", r.distribution, "|", r.seed);
}

bool audit_line(std::string_view text, Line& out, std::vector<Finding>& found) {
  const auto no = [&](const char* name, std::string sentence) {
    found.push_back({out.number, name, true, std::move(sentence)});
    return false;
  };
  if (const Status s = from_json(text, out.record, &out.misread); !s.ok())
    return no(out.misread == Misread::newer ? "newer-version" : "unreadable", s.message);
  out.digest = seal_of(text);
  out.extract = is_extract(text);
  std::vector<const char*> names;
  std::vector<int> since;
  for (const Field& f : kFields) {
    if (out.record.version < f.since || (out.extract && !f.in_extract)) continue;
    names.push_back(f.name), since.push_back(f.since);
  }
  if (const size_t n = first_missing(text, names); n < names.size())
    return no("missing-field", join("record: field ", names[n], " is missing",
                                    since[n] == 1 ? "" : join(" in version ", out.record.version)));
  return true;
}

void audit(std::span<const Line> lines, std::vector<Finding>& found, int64_t now) {
  for (size_t first = 0; first < lines.size();) {
    const std::span<const Line> row = row_at(lines, first);
    for (const Line& l : row) {
      const Reporter a{l, l.record, found};
      audit_record(a), audit_words(a), audit_counts(a), audit_load(a);
    }
    audit_row(row, found);
    first += row.size();
  }
  audit_runs(lines, found);
  audit_times(lines, found, now);
  audit_seals(lines, found);
  audit_copies(lines, found);
  std::stable_sort(found.begin(), found.end(), [](const Finding& a, const Finding& b) { return a.line < b.line; });
}

void audit_text(std::string_view text, std::vector<Line>& lines, std::vector<Finding>& found, int64_t now) {
  std::map<std::string, size_t> newer;  // by sentence: its finding; a file of a newer version gets one sentence
  std::map<size_t, int> count;
  constexpr int kMostRefused = 100;  // of a file that is none of records, each line would be a finding
  int number = 0, refused = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view one = text.substr(at, end - at);
    const bool unfinished = end == text.size();
    at = end + 1, ++number;
    if (one.find_first_not_of(" \t\r") == one.npos) continue;
    Line line{.number = number};
    std::vector<Finding> of_line;
    if (audit_line(one, line, of_line)) { lines.push_back(std::move(line)); continue; }
    const Finding& f = of_line[0];
    if (line.misread == Misread::newer && newer.size() < size_t(kMostRefused)) {
      const auto [it, is_new] = newer.emplace(f.sentence, found.size());
      if (is_new) found.push_back(f);
      ++count[it->second];
    } else if (unfinished && line.misread == Misread::cut_short) {
      found.push_back({number, "unfinished-row", false, "the last line is incomplete"});
    } else if (++refused <= kMostRefused) {
      found.push_back(f);
    }
  }
  if (refused > kMostRefused)
    found.push_back({number, "unreadable", true, join("and ", counted(refused - kMostRefused, "more line"),
                                                      " cannot be read as records")});
  for (const auto& [n, lines_of_it] : count)
    if (lines_of_it > 1) found[n].sentence += join("; so are ", lines_of_it - 1, " more");
  audit(lines, found, now);
}

std::vector<std::string> finding_names() { return {std::begin(kNames), std::end(kNames)}; }

}  // namespace attune
