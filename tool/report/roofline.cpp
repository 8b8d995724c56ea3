// SPDX-License-Identifier: Apache-2.0
// The roofline: rate against operations per byte, under the two ceilings measured in the same process. A row near the
// slope is bound by memory, a row near the level by arithmetic.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tool/report/rows.h"
#include "tool/text.h"

namespace attune {
namespace {

struct Machine {
  std::string name{};
  std::vector<const Measurement*> rows{};
  double gflops = 0, gbs = 0;  // highest measured ceilings
};

std::vector<Machine> machines_of(const Measurements& rows) {
  std::vector<Machine> all;
  for (const Measurement& row : rows.all) {
    const Record& r = *row.record;
    if (!row.ok() || r.ceiling_gflops <= 0 || r.copy_gbs <= 0 || r.bytes <= 0 || r.flops <= 0) continue;
    const std::string name = fmt::format("{}{}, {}", device_of(r),
                                         r.threads ? ", " + counted(size_t(r.threads), "thread") : "", r.ceiling);
    auto at = std::find_if(all.begin(), all.end(), [&](const Machine& m) { return m.name == name; });
    if (at == all.end()) at = all.insert(all.end(), {.name = name});
    at->rows.push_back(&row);
    at->gflops = std::max(at->gflops, r.ceiling_gflops), at->gbs = std::max(at->gbs, r.copy_gbs);
  }
  return all;
}

Chart chart_of(const Measurements& rows, const Machine& m) {
  Chart c{.title = "Roofline: " + m.name,
          .x_label = "operations per byte that must move",
          .y_label = rows.rate_unit,
          .log_y = true};
  const double ridge = m.gflops / m.gbs;
  double low = ridge / 4, high = ridge * 4;
  std::vector<std::string> order;
  std::map<std::string, std::vector<Point>> series;
  for (const Measurement* row : m.rows) {
    const Record& r = *row->record;
    const double intensity = r.flops / r.bytes, rate = r.gflops / rows.rate_scale;
    low = std::min(low, intensity), high = std::max(high, intensity);
    if (!series.count(row->series)) order.push_back(row->series);
    const double roof = std::min(r.ceiling_gflops, r.copy_gbs * intensity);
    series[row->series].push_back(
        {intensity, rate, rate, rate,
         fmt::format("{}\n{}: {} {}, {:.0f} % of the roof\n{} operations per byte", line_text(r), row->series,
                     rows.rate(r.gflops), rows.rate_unit, 100 * r.gflops / roof, digits_text(intensity))});
  }
  for (const std::string& name : order)
    c.series.push_back({.name = name, .points = series[name], .look = rows.looks.at(name), .joined = false});
  const double top = m.gflops / rows.rate_scale;
  c.bounds.push_back({fmt::format("{} {}, {}", rows.rate(m.gflops), rows.rate_unit, m.rows[0]->record->ceiling),
                      {{ridge, top, top, top, ""}, {high, top, top, top, ""}}});
  const double start = m.gbs * low / rows.rate_scale;
  c.bounds.push_back({fmt::format("{} GB/s", digits_text(m.gbs)),
                      {{low, start, start, start, ""}, {ridge, top, top, top, ""}}});
  return c;
}

}  // namespace

Section roofline_section(const Measurements& rows) {
  Section section{.id = "roofline", .title = "Roofline"};
  Figure f;
  f.table = {.caption = "Share of the roof: the lower of the ceiling and operations per byte times the copy rate",
             .head = {"problem", "subject", "operations per byte", rows.rate_unit, "GB/s", "bound by", "of the roof"},
             .facets = {1, 5}};
  for (const Machine& m : machines_of(rows)) {
    for (const Measurement* row : m.rows) {
      const Record& r = *row->record;
      const double intensity = r.flops / r.bytes, roof = std::min(r.ceiling_gflops, r.copy_gbs * intensity);
      f.table.rows.push_back({{line_text(r)},
                              {row->series},
                              number_cell(intensity, digits_text(intensity)),
                              number_cell(r.gflops, rows.rate(r.gflops)),
                              number_cell(r.gbs, digits_text(r.gbs)),
                              {r.copy_gbs * intensity < r.ceiling_gflops ? "memory" : "arithmetic"},
                              number_cell(r.gflops / roof, fmt::format("{:.0f} %", 100 * r.gflops / roof))});
    }
    f.plots.push_back({fmt::format("{}: {} {}, and {} GB/s of copying", m.name, rows.rate(m.gflops), rows.rate_unit,
                                   digits_text(m.gbs)),
                       chart_of(rows, m)});
  }
  if (f.plots.empty()) return section;
  section.notes.push_back("Both ceilings were measured in the same process as the rows. Bytes count every input and "
                          "output once.");
  section.figures.push_back(std::move(f));
  return section;
}

}  // namespace attune
