// SPDX-License-Identifier: Apache-2.0
// Implementations by speed and by memory over all sizes, and every row beside its counterpart of the same sizes.
#include "tool/record/ranking.h"

#include <fmt/format.h>

#include "tool/report/rows.h"
#include "tool/text.h"

namespace attune {
namespace {

Table table_of(const Ranking& ranking) {
  Table t{.caption = join("Implementations, ", ranking.title),
          .head = {"by speed", "implementation", "speed-up", "range", "by memory", "memory", "sizes"}};
  for (const Ranked& r : ranking.all)
    t.rows.push_back({number_cell(r.by_speed, join(r.by_speed)), {.text = r.name},
                      number_cell(r.speed_up, factor_text(r.speed_up)),
                      {.text = fmt::format("{} ... {}", digits_text(r.least), digits_text(r.most)), .sort = r.most},
                      r.by_memory ? number_cell(r.by_memory, join(r.by_memory)) : empty_cell(),
                      r.memory > 0 ? number_cell(r.memory, factor_text(r.memory)) : empty_cell(),
                      number_cell(r.rows, join(r.rows))});
  return t;
}

}  // namespace

Section ranking_section(const std::vector<Record>& records, const std::string& base) {
  Section section{.id = "ranking", .title = "Implementations across lines"};
  const std::vector<Ranking> all = rankings(records, base);
  for (const Ranking& ranking : all)
    section.figures.push_back({fmt::format("{}, against {}", ranking.title, ranking.base), {}, table_of(ranking)});
  if (all.empty()) return section;
  section.notes = {"Rows of the same sizes are compared, whatever they compute: geometric means over the sizes at "
                   "which both were measured. Memory is that of the base over its own. The rows were not interleaved, "
                   "so there is no verdict."};
  Table rows{.caption = "Rows and their counterparts",
             .head = {"problem", "timing", "subject", "median", "counterpart", "its subject", "speed-up"}};
  const std::vector<Counterpart> found = counterparts(records, base);
  for (size_t n = 0; n < records.size(); ++n)
    if (const Counterpart& c = found[n]; c.base)
      rows.rows.push_back({{.text = line_text(records[n])}, {.text = setting_text(records[n])},
                           {.text = records[n].subject},
                           number_cell(records[n].median_ns, nanoseconds_text(records[n].median_ns)),
                           {.text = what_of(*c.base)}, {.text = c.base->subject},
                           number_cell(c.ratio.value, fmt::format("{} [{}, {}]", factor_text(c.ratio.value),
                                                                  digits_text(c.ratio.interval.low),
                                                                  digits_text(c.ratio.interval.high)))});
  if (!rows.rows.empty()) section.figures.push_back({"Rows and their counterparts", {}, std::move(rows)});
  return section;
}

}  // namespace attune
