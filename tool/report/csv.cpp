// SPDX-License-Identifier: Apache-2.0
// Records as CSV (RFC 4180) for a spreadsheet: one line each, times in nanoseconds, without samples.
#include <fmt/format.h>

#include <optional>

#include "core/problem.h"
#include "tool/report/model.h"
#include "tool/terminal.h"

namespace attune {
namespace {

// A field that a spreadsheet would read as a formula gets an apostrophe in front.
std::string field(std::string_view given) {
  const std::string text = shown(given);
  std::string s = text.empty() || std::string_view("=+-@\t\r").find(text[0]) == std::string_view::npos
                      ? text : "'" + text;
  if (s.find_first_of(",\"\r\n") == s.npos) return s;
  std::string quoted = "\"";
  for (const char c : s) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

using Columns = std::vector<std::pair<const char*, std::string>>;

std::string text(double v) { return fmt::format("{}", v); }
std::string known_text(double v) { return v < 0 ? "" : text(v); }  // below 0: unknown
std::string text(const std::optional<double>& v) { return v ? text(*v) : ""; }

void add_problem(const Record& r, Columns& out) {
  Problem p;
  const bool known = parse(r.problem, p).ok();
  const auto number = [&](double v) { return known ? text(v) : std::string(); };
  out.insert(out.end(), {{"time", r.provenance.time}, {"problem", r.problem}, {"pass", known ? name(p.pass) : ""},
                         {"dtype", known ? name(p.dtype) : ""}, {"batch", number(p.batch)},
                         {"heads_q", number(p.heads_q)}, {"heads_kv", number(p.heads_kv)}, {"len_q", number(p.len_q)},
                         {"len_k", number(p.len_k)}, {"dim_qk", number(p.dim_qk)}, {"dim_v", number(p.dim_v)}});
}

void add_measurement(const Record& r, Columns& out) {
  const auto ratio = [&](double v) { return r.baseline.empty() ? std::string() : text(v); };
  const auto blocks = [&](double v) { return r.shown_blocks ? text(v) : std::string(); };
  out.insert(out.end(), {{"subject", r.subject}, {"device", r.device}, {"machine", machine_of(r)},
                         {"timing", timing_text(r)}, {"threads", text(r.threads)}, {"status", r.status.text()},
                         {"message", r.message}, {"samples", text(double(r.samples_ns.size()))},
                         {"median_ns", text(r.median_ns)}, {"low_ns", text(r.interval.low)},
                         {"high_ns", text(r.interval.high)}, {"flops", text(r.flops)}, {"bytes", text(r.bytes)},
                         {"gflops", text(r.gflops)}, {"gbs", text(r.gbs)}, {"ceiling_gflops", text(r.ceiling_gflops)},
                         {"copy_gbs", text(r.copy_gbs)}, {"workspace_bytes", text(double(r.workspace_bytes))},
                         {"taken_bytes", known_text(r.taken_bytes)}, {"mhz", text(r.mhz)}, {"watts", text(r.watts)},
                         {"celsius", text(r.celsius)}, {"slowed_by", r.slowed_by}, {"baseline", r.baseline},
                         {"times_as_fast", ratio(r.ratio.value)}, {"times_low", ratio(r.ratio.interval.low)},
                         {"times_high", ratio(r.ratio.interval.high)}, {"verdict", verdict_text(r)},
                         {"parity", r.parity.verdict.text()}, {"parity_error", text(r.parity.error)},
                         {"aa_spread", text(r.aa_spread)}, {"commit", r.provenance.commit},
                         {"dirty", r.provenance.dirty ? "yes" : "no"}, {"pattern", r.pattern},
                         {"density", blocks(r.density)}, {"active_blocks", blocks(double(r.active_blocks))},
                         {"shown_blocks", blocks(double(r.shown_blocks))}, {"waited", known_text(r.load.waited)},
                         {"others", known_text(r.load.others)}, {"steal", known_text(r.load.steal)},
                         {"cpu_mhz", known_text(r.load.cpu_mhz)}, {"gpu_others", known_text(r.load.gpu_others)}});
}

// The rest of a record's numbers, under their names there.
void add_details(const Record& r, Columns& out) {
  const Outliers& o = r.outliers;
  const std::string confidence = r.baseline.empty() ? "" : text(r.ratio.interval.confidence);
  out.insert(out.end(), {{"mean_ns", text(r.mean_ns)}, {"deviation_ns", text(r.deviation_ns)},
                         {"p95_ns", text(r.p95_ns)}, {"p99_ns", text(r.p99_ns)}, {"sequences", text(r.sequences)},
                         {"tokens", text(r.tokens)}, {"queries", text(r.queries)},
                         {"sequences_s", text(r.sequences_s)}, {"tokens_s", text(r.tokens_s)},
                         {"queries_s", text(r.queries_s)}, {"interval_ns_confidence", text(r.interval.confidence)},
                         {"ratio_confidence", confidence}, {"most_samples", text(r.most_samples)},
                         {"calls", text(r.calls)}, {"modes", text(r.modes)}, {"warm_up_s", text(r.warm_up_s)},
                         {"floor_ns", text(r.floor_ns)}, {"precision", text(r.precision)},
                         {"outliers_low_severe", text(o.low_severe)}, {"outliers_low_mild", text(o.low_mild)},
                         {"outliers_high_mild", text(o.high_mild)}, {"outliers_high_severe", text(o.high_severe)},
                         {"rest_s", text(r.rest_s)}, {"heat_s", text(r.heat_s)}, {"seed", fmt::format("{}", r.seed)},
                         {"sets", text(r.sets)}, {"input_rms", text(r.input_rms)},
                         {"tensor_bytes", text(r.tensor_bytes)}, {"scores_bytes", text(r.scores_bytes)},
                         {"cache_bytes", text(r.cache_bytes)}, {"late_batches", text(r.late_batches)},
                         {"sustained_ns", text(r.sustained_ns)}, {"joules", text(r.joules)},
                         {"sustained_watts", text(r.sustained_watts)}, {"parity_rows", text(r.parity.rows)},
                         {"row_records", text(r.row_records)}, {"planned_rows", text(r.planned_rows)},
                         {"load_seconds", known_text(r.load.seconds)}, {"load_cpus", known_text(r.load.cpus)},
                         {"load_used", known_text(r.load.used)}, {"load_average", known_text(r.load.average)},
                         {"load_runnable", known_text(r.load.runnable)},
                         {"load_gpu_processes", known_text(r.load.gpu_processes)}});
}

void add_machine(const Record& r, Columns& out) {
  const Provenance& p = r.provenance;
  out.insert(out.end(), {{"cores", text(p.cores)}, {"gpu_power_limit_w", text(p.gpu_power_limit_w)},
                         {"gpu_most_mhz", text(p.gpu_most_mhz)}, {"gpu_ecc", known_text(p.gpu_ecc)},
                         {"gpu_mig", known_text(p.gpu_mig)}, {"gpu_memory_bytes", text(p.gpu_memory_bytes)},
                         {"gpu_sms", text(p.gpu_sms)}, {"gpu_bandwidth_gbs", text(p.gpu_bandwidth_gbs)},
                         {"cudnn", p.cudnn.value_or("")}, {"os", p.os.value_or("")},
                         {"command", p.command.value_or("")}});
}

Columns columns_of(const Record& r) {
  Columns all;
  add_problem(r, all), add_measurement(r, all), add_details(r, all), add_machine(r, all);
  return all;
}

}  // namespace

std::string to_csv(const std::vector<Record>& records) {
  std::string csv;
  const auto line = [&](const Columns& columns, const auto& cell) {
    for (size_t n = 0; n < columns.size(); ++n) csv += (n ? "," : "") + cell(columns[n]);
    csv += "\r\n";
  };
  line(columns_of({}), [](const auto& c) { return std::string(c.first); });
  for (const Record& r : records) line(columns_of(r), [](const auto& c) { return field(c.second); });
  return csv;
}

}  // namespace attune
