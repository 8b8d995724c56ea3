// SPDX-License-Identifier: Apache-2.0
// The cost of rows with the offers of a price file: per million calls, and the work that a dollar buys.
#include <fmt/format.h>

#include <set>

#include "tool/report/rows.h"
#include "tool/text.h"

namespace attune {

std::vector<RowCost> costs_of(const Measurements& rows, const std::vector<Offer>& offers) {
  std::vector<RowCost> all;
  for (const Measurement& row : rows.all) {
    if (!row.ok()) continue;
    for (const Offer& offer : offers) {
      if (!offer.fits(device_of(*row.record))) continue;
      const double usd = offer.usd_a_second() * row.record->median_ns * 1e-9;  // one call
      RowCost c{.row = &row, .offer = &offer, .usd_a_million = usd * 1e6};
      if (usd > 0) {
        c.flops_a_usd = row.record->flops / usd;
        if (row.length) c.tokens_a_usd = double(row.whole.batch) * row.whole.len_q / usd;
      }
      all.push_back(c);
    }
  }
  return all;
}

double measured_seconds(const Measurements& rows, const Offer& offer) {
  double seconds = 0;
  for (const Measurement& row : rows.all) {
    if (!offer.fits(device_of(*row.record))) continue;
    seconds += row.record->warm_up_s;
    for (const double ns : row.record->samples_ns) seconds += ns * 1e-9 * row.record->calls;
  }
  return seconds;
}

Section cost_section(const Measurements& rows, const std::vector<Offer>& offers) {
  Section section{.id = "cost", .title = "Cost"};
  const std::vector<RowCost> costs = costs_of(rows, offers);
  if (costs.empty()) return section;

  Table runs{.caption = "This run: samples and warm-up on the device of each offer",
             .head = {"offer", "device", "$ per hour", "billed by", "minimum", "time", "$ of this run, at least"}};
  std::set<const Offer*> used;
  for (const RowCost& c : costs) used.insert(c.offer);
  for (const Offer& o : offers) {
    if (!used.count(&o)) continue;
    const double seconds = measured_seconds(rows, o);
    runs.rows.push_back({{o.name},
                         {o.device},
                         number_cell(o.usd_an_hour, usd_text(o.usd_an_hour)),
                         number_cell(o.step_s, o.step_s == 1 ? "second" : o.step_s == 60 ? "minute" : "hour"),
                         number_cell(o.minimum_usd, usd_text(o.minimum_usd)),
                         number_cell(seconds, seconds_text(seconds)),
                         number_cell(o.usd(seconds), usd_text(o.usd(seconds)))});
  }
  section.figures.push_back({"", {}, std::move(runs)});

  Table t{.caption = "What a call costs while it runs, without rounding and minimum",
          .head = {"problem", "subject", "offer", "$ per million calls", "million tokens per $", "PFLOP per $"},
          .facets = {1, 2}};
  for (const RowCost& c : costs)
    t.rows.push_back({{line_text(*c.row->record)},
                      {c.row->series},
                      {c.offer->name},
                      number_cell(c.usd_a_million, usd_text(c.usd_a_million)),
                      c.tokens_a_usd > 0 ? number_cell(c.tokens_a_usd, digits_text(c.tokens_a_usd * 1e-6))
                                         : empty_cell(),
                      number_cell(c.flops_a_usd, digits_text(c.flops_a_usd * 1e-15))});
  section.figures.push_back({"", {}, std::move(t)});
  section.notes.push_back("Prices are those of the price file; times are the medians of the rows.");
  return section;
}

}  // namespace attune
