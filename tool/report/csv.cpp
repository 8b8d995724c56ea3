// SPDX-License-Identifier: Apache-2.0
// Records as CSV (RFC 4180) for a spreadsheet: one line each, times in nanoseconds, without samples.
#include <fmt/format.h>

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

}  // namespace

std::string to_csv(const std::vector<Record>& records) {
  std::string csv =
      "time,problem,pass,dtype,batch,heads_q,heads_kv,len_q,len_k,dim_qk,dim_v,subject,device,machine,timing,threads,"
      "status,message,samples,median_ns,low_ns,high_ns,flops,bytes,gflops,gbs,ceiling_gflops,copy_gbs,workspace_bytes,"
      "taken_bytes,"
      "mhz,watts,celsius,slowed_by,baseline,times_as_fast,times_low,times_high,verdict,parity,parity_error,aa_spread,"
      "commit,dirty,pattern,density,active_blocks,shown_blocks,waited,others,steal,cpu_mhz,gpu_others\r\n";
  for (const Record& r : records) {
    Problem p;
    const bool known = parse(r.problem, p).ok();
    const auto number = [&](double v) { return known ? fmt::format("{}", v) : std::string(); };
    const auto blocks = [&](double v) { return r.shown_blocks ? fmt::format("{}", v) : std::string(); };
    const auto known_number = [](double v) { return v < 0 ? std::string() : fmt::format("{}", v); };
    const bool compared = !r.baseline.empty();
    const auto ratio = [&](double v) { return compared ? fmt::format("{}", v) : std::string(); };
    const std::vector<std::string> fields = {
        r.provenance.time, r.problem, known ? name(p.pass) : "", known ? name(p.dtype) : "", number(p.batch),
        number(p.heads_q), number(p.heads_kv), number(p.len_q), number(p.len_k), number(p.dim_qk), number(p.dim_v),
        r.subject, r.device, machine_of(r), timing_text(r),
        fmt::format("{}", r.threads), r.status.text(), r.message, fmt::format("{}", r.samples_ns.size()),
        fmt::format("{}", r.median_ns), fmt::format("{}", r.interval.low), fmt::format("{}", r.interval.high),
        fmt::format("{}", r.flops), fmt::format("{}", r.bytes), fmt::format("{}", r.gflops), fmt::format("{}", r.gbs),
        fmt::format("{}", r.ceiling_gflops), fmt::format("{}", r.copy_gbs), fmt::format("{}", r.workspace_bytes),
        known_number(r.taken_bytes),
        fmt::format("{}", r.mhz), fmt::format("{}", r.watts), fmt::format("{}", r.celsius), r.slowed_by, r.baseline,
        ratio(r.ratio.value), ratio(r.ratio.interval.low), ratio(r.ratio.interval.high), verdict_text(r),
        r.parity.verdict.text(), fmt::format("{}", r.parity.error),
        r.aa_spread ? fmt::format("{}", *r.aa_spread) : "", r.provenance.commit,
        r.provenance.dirty ? "yes" : "no", r.pattern, blocks(r.density), blocks(double(r.active_blocks)),
        blocks(double(r.shown_blocks)), known_number(r.load.waited), known_number(r.load.others),
        known_number(r.load.steal), known_number(r.load.cpu_mhz), known_number(r.load.gpu_others)};
    for (size_t n = 0; n < fields.size(); ++n) csv += (n ? "," : "") + field(fields[n]);
    csv += "\r\n";
  }
  return csv;
}

}  // namespace attune
