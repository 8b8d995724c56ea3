// SPDX-License-Identifier: Apache-2.0
// How time and memory grow with the length: fitted exponents, and memory per token by length.
#include <fmt/format.h>

#include <set>

#include "tool/subjects/workload.h"
#include "tool/report/rows.h"
#include "tool/text.h"

namespace attune {
namespace {

// Powers of 1000, like the MB per token.
std::string bytes_tick(double bytes) {
  const std::string s = count_text(bytes, "B");
  const size_t space = s.find(' ');
  return without_zeros(s.substr(0, space)) + s.substr(space);
}

TableCell exponent_cell(const Fit& f) {
  if (!f.points) return empty_cell();
  return number_cell(f.exponent, fmt::format("{:.2f}", f.exponent));
}
TableCell interval_cell(const Fit& f) {
  if (!f.points) return empty_cell();
  return number_cell(f.high - f.low, fmt::format("{:.2f} ... {:.2f}", f.low, f.high));
}

// Records of version 1 lack the field.
double scores_of(const Measurement& row) {
  return row.record->scores_bytes > 0 ? row.record->scores_bytes : scores_bytes(row.whole);
}
// For records that lack the field, the bytes that must move.
double tensor_bytes(const Record& r) { return r.tensor_bytes > 0 ? r.tensor_bytes : r.bytes; }

}  // namespace

double memory_bytes(const Measurement& row) {
  if (!row.ok() || !row.length || tensor_bytes(*row.record) <= 0) return 0;
  const double taken = row.record->taken_bytes;
  if (row.peer()) return taken < 0 ? 0 : tensor_bytes(*row.record) + taken;
  return tensor_bytes(*row.record) + double(row.record->workspace_bytes);
}

std::vector<Growth> growth_of(const Measurements& rows) {
  std::vector<Growth> all;
  for (const auto& [family, some] : families_of(rows)) {
    std::vector<std::string> order;
    std::map<std::string, std::map<int, const Measurement*>> newest;  // by length
    for (const Measurement& row : some) {
      if (!row.ok() || !row.length) continue;
      if (!newest.count(row.series)) order.push_back(row.series);
      newest[row.series][row.length] = &row;
    }
    for (const std::string& name : order) {
      if (newest[name].size() < 3) continue;
      std::vector<std::pair<double, double>> time, a_token, memory;
      for (const auto& [length, row] : newest[name]) {
        time.push_back({length, row->record->median_ns});
        a_token.push_back({length, row->record->median_ns / row->tokens()});
        if (const double bytes = memory_bytes(*row); bytes > 0) memory.push_back({length, bytes});
      }
      all.push_back({family, name, fit_power(time), fit_power(a_token),
                     memory.size() == time.size() ? fit_power(memory) : Fit{}});
    }
  }
  return all;
}

Section scaling_section(const Measurements& rows) {
  Section section{.id = "scaling", .title = "Scaling"};
  Table t{.caption = "Exponents of the length",
          .head = {"problems", "subject", "lengths", "time", "95 % interval", "time per token", "memory",
                   "worst point"},
          .facets = {1}};
  for (const Growth& g : growth_of(rows))
    t.rows.push_back({{g.family},
                      {g.series},
                      number_cell(g.time.points, fmt::format("{}", g.time.points)),
                      exponent_cell(g.time),
                      interval_cell(g.time),
                      exponent_cell(g.time_a_token),
                      exponent_cell(g.memory),
                      number_cell(g.time.worst, factor_text(g.time.worst))});
  if (t.rows.empty()) return section;
  section.notes.push_back(
      "Time grows as length to the power of the exponent: 2 for attention over all pairs, 1 if each token sees a "
      "constant number of keys. Fitted to the logarithms; the worst point is the largest distance from the line.");
  section.figures.push_back({"", {}, std::move(t)});
  return section;
}

Section memory_section(const Measurements& rows) {
  constexpr int kMostPlots = 12;  // they look alike, and hundreds make a slow page
  Section section{.id = "memory", .title = "Memory per token"};
  int families = 0;
  Figure f;
  f.table = {.caption = "Memory of one call",
             .head = {"problem", "length", "subject", "tensors", "workspace", "measured", "MB per token",
                      "scores, not stored", "keys and values"},
             .facets = {2}};
  for (const auto& [family, some] : families_of(rows)) {
    Chart c{.title = "Memory per token by length: " + family,
            .x_label = "length (keys)",
            .y_label = "bytes per token",
            .log_y = true,
            .x_text = length_text,
            .y_text = bytes_tick};
    std::map<std::string, std::map<int, Point>> subjects;  // the timing mode does not matter here
    std::map<std::string, int> looks;
    std::map<int, Point> stored;
    std::vector<std::vector<TableCell>> lines;
    for (const Measurement& row : some) {
      const double bytes = memory_bytes(row);
      const Record& r = *row.record;
      if (bytes <= 0 || subjects[row.subject].count(row.length)) continue;
      const double a_token = bytes / row.tokens(), scores = scores_of(row);
      looks.emplace(row.subject, rows.looks.at(row.series));
      subjects[row.subject][row.length] = {double(row.length), a_token, a_token, a_token,
                                         fmt::format("{}\n{}: {} per token, {} of it besides the tensors", line_text(r),
                                                     row.subject, count_text(a_token, "B"),
                                                     count_text((bytes - tensor_bytes(r)) / row.tokens(), "B"))};
      const double whole = (tensor_bytes(r) + scores) / row.tokens();
      stored[row.length] = {double(row.length), whole, whole, whole, ""};
      lines.push_back({{line_text(r)},
                       number_cell(row.length, fmt::format("{}", row.length)),
                       {row.subject},
                       number_cell(tensor_bytes(r), bytes_text(tensor_bytes(r))),
                       row.peer() ? TableCell{"-"}
                                  : number_cell(double(r.workspace_bytes), bytes_text(double(r.workspace_bytes))),
                       r.taken_bytes < 0 ? TableCell{"-"} : number_cell(r.taken_bytes, bytes_text(r.taken_bytes)),
                       number_cell(a_token, digits_text(a_token * 1e-6)),
                       number_cell(scores, bytes_text(scores)),
                       r.cache_bytes > 0 ? number_cell(r.cache_bytes, bytes_text(r.cache_bytes)) : empty_cell()});
    }
    f.table.rows.insert(f.table.rows.end(), lines.begin(), lines.end());
    if (stored.size() < 2 || ++families > kMostPlots) continue;
    for (const auto& [name, points] : subjects) {
      Series s{.name = name, .look = looks[name]};
      for (const auto& [length, point] : points) s.points.push_back(point);
      c.series.push_back(std::move(s));
    }
    Bound b{.name = "if scores were stored"};
    for (const auto& [length, point] : stored) b.points.push_back(point), c.x_ticks.push_back(length);
    c.bounds.push_back(std::move(b));
    f.plots.push_back({family, std::move(c)});
  }
  if (f.table.rows.empty()) return section;
  section.figures.push_back(std::move(f));
  if (families > kMostPlots)
    section.notes.push_back(fmt::format("{} of {} families are drawn; the table has all.", kMostPlots, families));
  section.notes.push_back("Inputs and outputs once, and the exact workspace of the plan; for peers what a first call "
                          "was measured to take, if it was. Measured is what a first call took besides its tensors: "
                          "pages of the process, or on a GPU memory that was no longer free, loaded code included.");
  return section;
}

}  // namespace attune
