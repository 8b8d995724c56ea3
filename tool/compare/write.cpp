// SPDX-License-Identifier: Apache-2.0
#include "tool/compare/write.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tool/table.h"
#include "tool/terminal.h"
#include "tool/text.h"

namespace attune {
namespace {

std::string ratio_text(const Ratio& r) {
  if (r.interval.confidence <= 0) return "-";
  return fmt::format("{} [{}, {}]{}", factor_text(r.value), digits_text(r.interval.low), digits_text(r.interval.high),
                     r.interval.is_sure() ? "" : fmt::format(" at {:.0f} %", 100 * r.interval.confidence));
}
std::string time_text(double ns) { return ns > 0 ? seconds_text(ns * 1e-9) : "-"; }

// One sentence about a row.
std::string told(const ChangedRow& r) {
  std::string s = fmt::format("{} {}", r.subject, name(r.change));
  if (r.ratio.interval.confidence > 0)
    s += fmt::format(": {} before, {} after, {} times as fast, margin {:.1f} %", time_text(r.before_ns),
                     time_text(r.after_ns), ratio_text(r.ratio), 100 * r.margin);
  if (r.cycles.interval.confidence > 0) s += fmt::format(", {} in cycles", ratio_text(r.cycles));
  return r.note.empty() ? s : s + "; " + r.note;
}

// XML 1.0 does not allow control characters, not even escaped.
std::string xml(std::string_view text) {
  std::string s;
  for (const char c : text) {
    if (c == '&') s += "&amp;";
    else if (c == '<') s += "&lt;";
    else if (c == '>') s += "&gt;";
    else if (c == '"') s += "&quot;";
    else if (c == '\n' || c == '\t') s += ' ';
    else if ((unsigned char)(c) < ' ' || c == 127) s += '?';
    else s += c;
  }
  return s;
}

// GitHub ends a message at a newline, and a property also at a comma or colon.
std::string annotation(std::string_view text, bool is_property) {
  std::string s;
  for (const char c : text) {
    if (c == '%' || c == '\n' || c == '\r' || (is_property && (c == ',' || c == ':')))
      s += fmt::format("%{:02X}", int((unsigned char)(c)));
    else s += c;
  }
  return s;
}

std::string cell(std::string_view text) {
  std::string s;
  for (const char c : text)
    s += c == '|' ? "\\|" : c == '\n' || c == '\r' ? " " : c == '<' ? "&lt;" : std::string(1, c);
  return s;
}

// Rows by importance, the most important first; those that do not count are the last.
std::vector<const ChangedRow*> by_weight(const Changes& changes) {
  constexpr Change kOrder[] = {Change::broken, Change::missing, Change::slower, Change::unclear,
                               Change::faster, Change::same, Change::added};
  std::vector<const ChangedRow*> all;
  for (const bool counts : {true, false})
    for (const Change c : kOrder)
      for (const ChangedRow& r : changes.rows)
        if (r.change == c && changes.counts(r) == counts) all.push_back(&r);
  return all;
}

std::string verdict_text(const Changes& changes, const ChangedRow& r) {
  return changes.counts(r) ? name(r.change) : name(r.change) + " (peer)";
}

std::string counts_text(const Changes& changes, int (Changes::*count)(Change) const) {
  std::string s;
  for (int c = 0; c <= int(Change::added); ++c)
    if (const int n = (changes.*count)(Change(c)))
      s += fmt::format("{}{} {}", s.empty() ? "" : ", ", n, name(Change(c)));
  return s;
}

}  // namespace

std::string summary(const Changes& changes) {
  std::string s = counts_text(changes, &Changes::count);
  if (s.empty()) s = "nothing to compare";
  const std::string apart = counts_text(changes, &Changes::apart);
  return apart.empty() ? s : s + "; peers, which decide nothing: " + apart;
}

std::string overall_text(const Overall& all) {
  std::string s = fmt::format("{} together: {} times as fast, {}", all.rows == 1 ? "The 1 row" :
                              fmt::format("All {} rows", all.rows), ratio_text(all.ratio), name(all.change));
  if (all.cycles.interval.confidence > 0) s += fmt::format("; {} in cycles", ratio_text(all.cycles));
  return s + (all.note.empty() ? "." : ": " + all.note + ".");
}

std::string to_text(const Agreement& a, double within) {
  std::string s;
  for (const auto& [row, apart] : a.apart)
    s += fmt::format("{:>9}  {}, {}, {}: {} and {}{}{}\n",
                     std::isinf(apart) ? "-" : fmt::format("{:.2f} %", 100 * apart), row->problem,
                     row->subject, row->setting, time_text(row->before_ns), time_text(row->after_ns),
                     row->note.empty() ? "" : ": ", row->note);
  return s + fmt::format("{} of {} within {:g} %, the farthest {:.2f} % apart\n", a.agreeing(), counted(a.rows, "row"),
                         100 * within, 100 * a.farthest);
}

std::string to_text(const Changes& changes, const ChangesLook& look) {
  using Shared = TextColumn::Shared;
  std::vector<const ChangedRow*> rows = by_weight(changes);
  const auto ratio = [](const ChangedRow* r) { return r->ratio.interval.confidence > 0 ? r->ratio.value : 0; };
  if (look.order == RowOrder::ratio)
    std::stable_sort(rows.begin(), rows.end(), [&](auto* a, auto* b) { return ratio(a) < ratio(b); });
  if (look.order == RowOrder::problem)
    std::stable_sort(rows.begin(), rows.end(), [](auto* a, auto* b) { return a->problem < b->problem; });
  TextTable t{.columns = {{"verdict"}, {"problem", Cells::text, Shared::line}, {"subject", Cells::text, Shared::fact},
                          {"", Cells::text, Shared::fact}, {"before", Cells::number}, {"after", Cells::number},
                          {"times as fast"}, {"note"}}};
  int same = 0, filtered = 0;
  for (const ChangedRow* r : rows) {
    const std::string verdict = verdict_text(changes, *r);
    const std::string text = join(r->problem, " ", r->subject, " ", r->setting, " ", verdict);
    if (text.find(look.filter) == text.npos) {
      ++filtered;
      continue;
    }
    if (!look.all && r->change == Change::same) {
      ++same;
      continue;
    }
    const bool bad = r->change == Change::slower || r->change == Change::broken || r->change == Change::missing;
    const bool plain = !look.colour || !changes.counts(*r);
    const std::string_view ink = plain ? "" : bad ? kRed : r->change == Change::faster ? kGreen : "";
    t.rows.push_back({join(ink, verdict, ink.empty() ? "" : kPlain), r->problem, r->subject, r->setting,
                      time_text(r->before_ns), time_text(r->after_ns), ratio_text(r->ratio), r->note});
  }
  std::string s = to_text(std::move(t), look.width);
  if (same) s += fmt::format("{} row{} SAME, not shown; --all shows {}\n", same, same == 1 ? " is" : "s are",
                             same == 1 ? "it" : "them");
  if (filtered) s += fmt::format("{} row{} left out by --filter\n", filtered, filtered == 1 ? "" : "s");
  s += summary(changes) + "\n";
  if (changes.overall.rows) s += overall_text(changes.overall) + "\n";
  for (const std::string& c : changes.caveats) s += "Note: " + c + ".\n";
  return s;
}

std::string to_markdown(const Changes& changes) {
  const std::string together = changes.overall.rows ? cell(overall_text(changes.overall)) + "\n\n" : "";
  std::string s = fmt::format("**{}**\n\n{}| verdict | problem | subject | timing | before | after | times as fast | "
                              "in cycles | note |\n|---|---|---|---|---:|---:|---|---|---|\n", summary(changes),
                              together);
  for (const ChangedRow* r : by_weight(changes))
    s += fmt::format("| {} | `{}` | {} | {} | {} | {} | {} | {} | {} |\n", verdict_text(changes, *r), cell(r->problem),
                     cell(r->subject), cell(r->setting), time_text(r->before_ns), time_text(r->after_ns),
                     ratio_text(r->ratio), ratio_text(r->cycles), cell(r->note));
  for (const std::string& c : changes.caveats) s += "\n- " + cell(c) + "\n";
  return shown(s);
}

std::string to_junit(const Changes& changes, const CompareSettings& settings) {
  const Overall& all = changes.overall;
  const int bad = changes.regressions(settings) + (all.change == Change::slower);
  const int unclear = (settings.strict ? 0 : changes.count(Change::unclear)) + (all.change == Change::unclear);
  std::string s = fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"attune "
                              "compare\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n",
                              changes.rows.size() + 1, bad, unclear);
  for (const ChangedRow& r : changes.rows) {
    s += fmt::format("<testcase classname=\"{}\" name=\"{}\" time=\"{:.9f}\">", xml(r.subject),
                     xml(r.problem + ", " + r.setting), r.after_ns * 1e-9);
    const std::string text = xml(told(r));
    if (changes.is_regression(r, settings)) s += fmt::format("<failure message=\"{}\"/>", text);
    else if (r.change == Change::unclear && changes.counts(r)) s += fmt::format("<skipped message=\"{}\"/>", text);
    else s += fmt::format("<system-out>{}</system-out>", text);
    s += "</testcase>\n";
  }
  const std::string text = xml(overall_text(all));
  s += fmt::format("<testcase classname=\"attune\" name=\"all rows together\">{}</testcase>\n",
                   all.change == Change::slower    ? fmt::format("<failure message=\"{}\"/>", text)
                   : all.change == Change::unclear ? fmt::format("<skipped message=\"{}\"/>", text)
                                                   : fmt::format("<system-out>{}</system-out>", text));
  return shown(s + "</testsuite>\n</testsuites>\n");
}

std::string to_annotations(const Changes& changes, const CompareSettings& settings) {
  std::string s;
  for (const ChangedRow* r : by_weight(changes)) {
    if (!changes.counts(*r)) continue;
    const bool bad = changes.is_regression(*r, settings);
    const char* const level = bad ? "error" : r->change == Change::unclear ? "warning"
                                            : r->change == Change::faster  ? "notice"
                                                                           : nullptr;
    if (level)
      s += fmt::format("{}{} title={}::{}\n", kCommand, level, annotation(name(r->change) + " " + r->problem, true),
                       annotation(told(*r), false));
  }
  if (changes.overall.change == Change::slower)
    s += fmt::format("{}error title=SLOWER all rows together::{}\n", kCommand,
                     annotation(overall_text(changes.overall), false));
  return s;
}

}  // namespace attune
