// SPDX-License-Identifier: Apache-2.0
#include "tool/record/show.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "core/status.h"
#include "tool/record/busy.h"
#include "tool/record/ranking.h"
#include "tool/table.h"
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
// The summary below a table says how busy; a line of a log stands alone.
enum class Detail { brief, full };
std::string remarks(const Record& r, Detail detail) {
  std::string all;
  const auto add = [&](const std::string& text) { all += (all.empty() ? "" : ", ") + text; };
  if (r.status == RecordStatus::refused) add("REFUSED");
  else if (r.status != RecordStatus::ok && detail == Detail::full) add(r.status.text());  // else it is the verdict
  if (r.parity.verdict == CheckVerdict::unchecked) add("unchecked");
  if (r.parity.verdict == CheckVerdict::empty)
    add(detail == Detail::full ? "EMPTY: nothing to compare" : "nothing to compare");
  if (r.distribution == "zeros") add("inputs are zeros");
  if (const std::string busy = busy_text(r); !busy.empty() && !r.samples_ns.empty())
    add(detail == Detail::full         ? "busy: " + busy
        : held_up_text(r).empty() ? "busy machine" : "busy machine: no verdict against a peer");
  if (const std::optional<double> spread = r.aa_spread; r.verdict == name(Speed::unclear) && spread > kSteadySpread)
    add(fmt::format("A/A spread {:.1f} %", 100 * *spread));
  if (r.near_floor) add(r.threads ? "near the floor of a call" : "launch-bound");
  if (r.modes > 1) add(fmt::format("{} modes", r.modes));
  if (!r.samples_ns.empty() && !r.interval.is_sure())
    add(fmt::format("only {} sample{}", r.samples_ns.size(), r.samples_ns.size() == 1 ? "" : "s"));
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

std::string verdict_cell(const Record& r) {
  if (r.status != RecordStatus::ok && r.status != RecordStatus::refused) return r.status.text();
  return r.verdict.empty() ? "-" : verdict_text(r);
}

std::string parity_cell(const Record& r) {
  return r.parity.verdict == CheckVerdict::none ? "-" : r.parity.verdict.text();
}

std::string coloured(const std::string& word, bool colour) {
  const std::string_view ink = word == "FASTER" || word == "PASS"                                          ? kGreen
                               : word == "SLOWER" || word == "FAIL" || word == "failed" || word == "wrong" ? kRed
                                                                                                           : "";
  return colour && !ink.empty() ? join(ink, word, kPlain) : word;
}

// One row of the live table, under its problem. What does not fit continues below the times.
std::string live_text(const Record& r, size_t subjects, int width) {
  const std::string verdict = verdict_cell(r);
  std::string text = fmt::format("  {}{}  {:<{}}  {:>15}", coloured(verdict, colour_wanted(width > 0)),
                                 std::string(verdict.size() < 8 ? 8 - verdict.size() : 0, ' '), r.subject, subjects,
                                 time_text(r));
  if (r.gflops > 0) text += fmt::format("  {:>6} GFLOP/s", digits_text(r.gflops));
  if (!r.baseline.empty()) text += "  " + ratio_text(r);
  std::string rest = parity_cell(r) == "-" ? "" : parity_cell(r);
  if (share_of(r).part > 0) rest += (rest.empty() ? "" : ", ") + share_sentence(r);
  if (!r.baseline.empty()) rest += (rest.empty() ? "" : ", ") + join("against ", r.baseline);
  if (const std::string more = remarks(r, Detail::brief); !more.empty()) rest += (rest.empty() ? "" : ", ") + more;
  text.erase(text.find_last_not_of(' ') + 1);
  return wrapped(text + (rest.empty() ? "" : "\n" + std::string(14 + subjects, ' ') + rest), width);
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

Progress::Progress(bool live, double total_weight, size_t rows)
    : live_(live), total_(total_weight), rows_(rows), width_(live ? terminal_width(STDERR_FILENO) : 0) {}

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
  const std::string left = all > 0.02 ? " " + duration_text(passed / all - passed) + " left" : "";
  const std::string head = fmt::format("[{:3.0f} %] {}/{} ", 100 * all, row_, rows_);
  // The last column stays free: a character there moves the cursor to the next line.
  const int room = width_ ? std::max(4, width_ - 1 - int(head.size() + left.size())) : 0;
  std::fputs(join(kErase, head, cut_to(name_, room), left).c_str(), stderr);
  std::fflush(stderr);
}

void Progress::end(const std::vector<Record>& records) {
  done_ += weight_;
  if (live_) return kept(records);
  for (const Record& r : records) std::fputs((row_text(r) + "\n").c_str(), stderr);
  std::fflush(stderr);
}

void Progress::kept(const std::vector<Record>& records) {
  if (!live_ || records.empty()) return;
  for (const Record& r : records) subjects_ = std::max(subjects_, r.subject.size());
  std::fputs((wrapped(what_text(records[0]), width_) + "\n").c_str(), stderr);
  for (const Record& r : records) std::fputs((live_text(r, subjects_, width_) + "\n").c_str(), stderr);
  std::fflush(stderr);
}

void Progress::clear() const {
  if (live_) std::fputs(std::string(kErase).c_str(), stderr), std::fflush(stderr);
}

std::string row_text(const Record& r) {
  std::string text = fmt::format("{} | {} | {} | {}", what_text(r), r.subject, timing_text(r), time_text(r));
  if (r.gflops > 0) text += fmt::format(" | {} GFLOP/s, {}", digits_text(r.gflops), share_sentence(r));
  if (!r.baseline.empty()) text += fmt::format(" | {} {} against {}", ratio_text(r), verdict_text(r), r.baseline);
  if (const std::string more = remarks(r, Detail::full); !more.empty()) text += " | " + more;
  return text;
}

std::string table(const std::vector<Record>& records, const TableLook& look) {
  using Shared = TextColumn::Shared;
  TextTable t;
  t.columns = {{"verdict"}, {"problem", Cells::text, Shared::line}, {"subject"}, {"median", Cells::number},
               {"against the baseline"}, {"GFLOP/s", Cells::number}, {"of ceiling", Cells::number},
               {"against its counterpart"}, {"", Cells::text, Shared::fact}, {"threads", Cells::text, Shared::fact},
               {"parity", Cells::text, Shared::fact}, {"remarks"}};
  t.group = 1;
  const std::vector<Counterpart> found = counterparts(records, look.base);
  for (size_t n = 0; n < records.size(); ++n) {
    const Record& r = records[n];
    t.rows.push_back({coloured(verdict_cell(r), look.colour), what_text(r), r.subject, time_text(r), ratio_text(r),
                      r.gflops > 0 ? digits_text(r.gflops) : "-", share_text(r), counterpart_text(found[n]),
                      timing_text(r), r.threads ? join(r.threads) : "-", coloured(parity_cell(r), look.colour),
                      remarks(r, Detail::brief)});
  }
  return to_text(std::move(t), look.width);
}

}  // namespace attune
