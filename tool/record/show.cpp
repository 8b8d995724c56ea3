// SPDX-License-Identifier: Apache-2.0
#include "tool/record/show.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "core/status.h"
#include "tool/record/busy.h"
#include "tool/record/ranking.h"
#include "tool/terminal.h"
#include "tool/text.h"

namespace attune {
namespace {

// The problem and, for block lists of a pattern, the pattern and the resulting density.
std::string what_text(const Record& r) {
  if (r.pattern.empty()) return r.problem;
  return fmt::format("{}: {} blocks, density {:.4g}", line_text(r), r.active_blocks, r.density);
}

// "1.23 ms ± 0.4 %", "1.23 ms ± 8.1 % at 75 %" below 95 % confidence
std::string time_text(const Record& r) {
  if (r.samples_ns.empty() || r.status == RecordStatus::failed) return "-";
  const std::string text =
      fmt::format("{} ± {:.1f} %", seconds_text(r.median_ns * 1e-9), 100 * half_width(r.interval, r.median_ns));
  return r.interval.is_sure() ? text : text + fmt::format(" at {:.0f} %", 100 * r.interval.confidence);
}
// Share of the nearer ceiling: arithmetic, or copying if the row is not warm.
struct Share {
  double part = 0;  // 0: no ceiling is known
  bool copy = false;
  std::string text() const { return part > 0 ? fmt::format("{:.1f} %", 100 * part) : "-"; }
};
Share share_of(const Record& r) {
  const double rate = r.ceiling_gflops > 0 ? r.gflops / r.ceiling_gflops : 0;
  const double traffic = r.copy_gbs > 0 && r.mode != "warm" ? r.gbs / r.copy_gbs : 0;
  return traffic > rate ? Share{traffic, true} : Share{rate, false};
}
std::string share_text(const Record& r) { return share_of(r).text() + (share_of(r).copy ? " copy" : ""); }
// "44.0 % of cuBLASLt bf16", "91.0 % of copy"
std::string share_sentence(const Record& r) {
  const Share share = share_of(r);
  return join(share.text(), " of ", share.copy ? "copy" : r.ceiling);
}
std::string ratio_text(const Record& r) {
  if (r.baseline.empty()) return "-";
  return fmt::format("{} [{}, {}]", factor_text(r.ratio.value), digits_text(r.ratio.interval.low),
                     digits_text(r.ratio.interval.high));
}

// "4.00x sm90_forward": how much faster than the row of the same sizes.
std::string counterpart_text(const Counterpart& c) {
  return c.base ? join(factor_text(c.ratio.value), " ", c.base->subject) : "-";
}

// Everything a reader must know before trusting the row.
std::string remarks(const Record& r) {
  std::string all;
  const auto add = [&](const std::string& text) { all += (all.empty() ? "" : ", ") + text; };
  if (r.status == RecordStatus::refused) add("REFUSED");
  else if (r.status != RecordStatus::ok) add(r.status.text());
  if (r.parity.verdict == CheckVerdict::unchecked) add("unchecked");
  if (r.distribution == "zeros") add("inputs are zeros");
  if (const std::string busy = busy_text(r); !busy.empty() && !r.samples_ns.empty()) add("busy: " + busy);
  if (const std::optional<double> spread = r.aa_spread; r.verdict == "UNCLEAR" && spread > kSteadySpread)
    add(fmt::format("A/A spread {:.1f} %", 100 * *spread));
  if (r.near_floor) add(r.threads ? "near the floor of a call" : "launch-bound");
  if (r.modes > 1) add(fmt::format("{} modes", r.modes));
  if (!r.samples_ns.empty() && !r.interval.is_sure())
    add(fmt::format("only {} sample{}", r.samples_ns.size(), r.samples_ns.size() == 1 ? "" : "s"));
  if (r.verdict == name(Speed::unclear) && r.aa_spread > kMostSpread)
    add(fmt::format("A/A spread {:.0f} %", 100 * *r.aa_spread));
  if (!r.slowed_by.empty()) add("slowed by " + r.slowed_by);
  if (r.tokens_read.size() == 4)
    add(fmt::format("reads {} compressed, {} tokens", digits_text(r.tokens_read[0]), digits_text(r.tokens_read[3])));
  if (r.late_batches) add("some times include launches");
  if (r.mhz > 0) add(fmt::format("{:.0f} MHz", r.mhz));
  if (r.watts > 0) add(fmt::format("{:.0f} W", r.watts));
  if (r.joules > 0)
    add(fmt::format("{} mJ per call, {:.0f} W and {} sustained", digits_text(1e3 * r.joules), r.sustained_watts,
                    seconds_text(r.sustained_ns * 1e-9)));
  if (!r.note.empty()) add(r.note);
  if (!r.message.empty()) add(r.message);
  return all;
}

// One line of the live table, in columns under its problem.
std::string live_text(const Record& r) {
  std::string text = fmt::format("  {:<18} {:>18} {:>9} {:<10}", r.subject, time_text(r),
                                 r.gflops > 0 ? digits_text(r.gflops) : "-", r.gflops > 0 ? "GFLOP/s" : "");
  if (!r.baseline.empty()) text += fmt::format(" {} {}", factor_text(r.ratio.value), verdict_text(r));
  if (r.status != RecordStatus::ok)
    text += fmt::format(" {}{}{}", r.status.text(), r.message.empty() ? "" : ": ", r.message);
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

// Width in characters, not bytes: "±" has two bytes.
size_t width(const std::string& text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

bool colour_wanted(bool terminal) {
  const char* no = std::getenv("NO_COLOR");
  return terminal && !(no && *no);
}

std::string duration_text(double seconds) {
  const int s = std::max(0, int(std::lround(std::min(seconds, 1e8))));
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

void Progress::begin(const std::string& row, double weight, double now_s) {
  if (start_s_ < 0) start_s_ = now_s;
  name_ = row, weight_ = weight, ++row_;
  shown_s_ = -1;
  share(0, now_s);
}

void Progress::share(double part, double now_s) {
  if (!live_ || (shown_s_ >= 0 && now_s - shown_s_ < 0.1)) return;
  shown_s_ = now_s;
  const double all = std::clamp((done_ + part * weight_) / std::max(total_, 1e-9), 0.0, 1.0), passed = now_s - start_s_;
  const std::string left = all > 0.02 ? duration_text(passed / all - passed) + " left" : "";
  std::fputs(fmt::format("{}[{:3.0f} %] {}/{} {} {}", kErase, 100 * all, row_, rows_, name_, left).c_str(), stderr);
  std::fflush(stderr);
}

void Progress::end(const std::vector<Record>& records) {
  done_ += weight_;
  if (!records.empty() && live_) std::fputs((what_text(records[0]) + "\n").c_str(), stderr);
  for (const Record& r : records) std::fputs(((live_ ? live_text(r) : row_text(r)) + "\n").c_str(), stderr);
  std::fflush(stderr);
}

void Progress::clear() const {
  if (live_) std::fputs(std::string(kErase).c_str(), stderr), std::fflush(stderr);
}

std::string row_text(const Record& r) {
  std::string text = fmt::format("{} | {} | {} | {}", what_text(r), r.subject, timing_text(r), time_text(r));
  if (r.gflops > 0) text += fmt::format(" | {} GFLOP/s, {}", digits_text(r.gflops), share_sentence(r));
  if (!r.baseline.empty()) text += fmt::format(" | {} {} against {}", ratio_text(r), verdict_text(r), r.baseline);
  if (const std::string more = remarks(r); !more.empty()) text += " | " + more;
  return text;
}

std::string table(const std::vector<Record>& records, bool colour, const std::string& base) {
  std::vector<std::vector<std::string>> rows = {{"problem", "mode", "threads", "subject", "median", "GFLOP/s",
                                                 "of ceiling", "against the baseline", "verdict", "parity", ""}};
  const std::vector<Counterpart> found = counterparts(records, base);
  const bool across = std::any_of(found.begin(), found.end(), [](const Counterpart& c) { return c.base; });
  if (across) rows[0].insert(rows[0].end() - 1, "against its counterpart");
  std::string before;
  for (size_t n = 0; n < records.size(); ++n) {
    const Record& r = records[n];
    const std::string timing = timing_text(r), key = what_text(r) + timing + join(r.threads);
    rows.push_back({key == before ? "" : what_text(r), key == before ? "" : timing,
                    key == before ? "" : r.threads ? join(r.threads) : "-",
                    r.subject, time_text(r), r.gflops > 0 ? digits_text(r.gflops) : "-", share_text(r), ratio_text(r),
                    r.verdict.empty() ? "-" : verdict_text(r),
                    r.parity.verdict == CheckVerdict::none ? "-" : r.parity.verdict.text(),
                    remarks(r)});
    if (across) rows.back().insert(rows.back().end() - 1, counterpart_text(found[n]));
    before = key;
  }
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (size_t n = 0; n < row.size(); ++n) widths[n] = std::max(widths[n], width(row[n]));
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t n = 0; n < row.size(); ++n) {
      const bool right = n == 2 || (n >= 4 && n <= 7);  // numbers
      const std::string blank(widths[n] - width(row[n]), ' ');
      std::string cell = right ? blank + row[n] : row[n] + blank;
      if (colour && (row[n] == "FASTER" || row[n] == "PASS")) cell = join(kGreen, cell, kPlain);
      if (colour && (row[n] == "SLOWER" || row[n] == "FAIL")) cell = join(kRed, cell, kPlain);
      line += (n ? "  " : "") + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace attune
