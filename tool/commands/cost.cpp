// SPDX-License-Identifier: Apache-2.0
// `attune cost`: prices records with the offers of a price file: the run as billed, a million calls, work per dollar.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/record/read.h"
#include "tool/report/rows.h"
#include "tool/table.h"
#include "tool/text.h"

namespace attune {
namespace {

struct Asked {
  std::vector<std::string> files{};
  std::string prices{};
  std::optional<double> seconds{};
};

void print_runs(const std::vector<Offer>& offers, const std::vector<double>& seconds, bool at_least) {
  fmt::print("the run{}\n", at_least ? ", by its samples and warm-up, a lower bound" : "");
  TextTable t{.columns = {{"offer"}, {"device"}, {"time", Cells::number}, {"per hour", Cells::number},
                          {"as billed", Cells::number}}};
  for (size_t n = 0; n < offers.size(); ++n)
    t.rows.push_back({offers[n].name, offers[n].device, seconds_text(seconds[n]), usd_text(offers[n].usd_an_hour),
                      usd_text(offers[n].usd(seconds[n]))});
  fmt::print("{}", to_text(std::move(t), terminal_width(STDOUT_FILENO)));
}

void print_rows(const std::vector<RowCost>& costs) {
  TextTable t{.columns = {{"problem", Cells::text, TextColumn::Shared::line}, {"subject"}, {"offer"},
                          {"$ per million", Cells::number}, {"M tokens per $", Cells::number},
                          {"PFLOP per $", Cells::number}}};
  for (const RowCost& c : costs)
    t.rows.push_back({line_text(*c.row->record), c.row->series, c.offer->name, usd_text(c.usd_a_million),
                      c.tokens_a_usd > 0 ? digits_text(c.tokens_a_usd * 1e-6) : "-",
                      digits_text(c.flops_a_usd * 1e-15)});
  fmt::print("\n{}", to_text(std::move(t), terminal_width(STDOUT_FILENO)));
}

void run(const Asked& asked, Context& context) {
  std::vector<Record> records;
  if (const Status s = read_files("attune cost", asked.files, records); !s.ok())
    return fail(context, exit_of_read(s), join("attune cost: ", s.message));
  std::vector<Offer> offers;
  if (const Status s = load_prices(asked.prices, offers); !s.ok())
    return fail(context, exit_of_read(s), join("attune cost: ", s.message));
  const Measurements rows = rows_of(records);
  const std::vector<RowCost> costs = costs_of(rows, offers);
  if (std::none_of(rows.all.begin(), rows.all.end(), [](const Measurement& row) { return row.ok(); }))
    return fail(context, kFailed, join("attune cost: no record has a time above 0: ", counted(records.size(), "record"),
                                       records.size() == 1 ? " is given" : " are given"));
  if (costs.empty()) {
    std::set<std::string> devices;
    for (const Record& r : records) devices.insert(device_of(r));
    if (devices.empty()) devices.insert("nothing");
    return fail(context, kFailed, fmt::format("attune cost: no offer of {} matches a measured device: {}", asked.prices,
                                              fmt::join(devices, ", ")));
  }
  std::erase_if(offers, [&](const Offer& o) {
    return std::none_of(records.begin(), records.end(), [&](const Record& r) { return o.fits(device_of(r)); });
  });
  const std::vector<RowCost> fitting = costs_of(rows, offers);
  std::vector<double> seconds;  // per offer
  for (const Offer& o : offers) seconds.push_back(asked.seconds ? *asked.seconds : measured_seconds(rows, o));
  if (!context.json) {
    print_runs(offers, seconds, !asked.seconds);
    return print_rows(fitting);
  }
  Json runs = Json::array(), calls = Json::array();
  for (size_t n = 0; n < offers.size(); ++n)
    runs.push_back({{"offer", offers[n].name}, {"device", offers[n].device}, {"usd_an_hour", offers[n].usd_an_hour},
                    {"seconds", seconds[n]}, {"usd", offers[n].usd(seconds[n])}});
  for (const RowCost& c : fitting)
    calls.push_back({{"problem", c.row->record->problem}, {"pattern", c.row->record->pattern},
                     {"subject", c.row->series}, {"offer", c.offer->name}, {"usd_a_million_calls", c.usd_a_million},
                     {"tokens_a_usd", c.tokens_a_usd}, {"flops_a_usd", c.flops_a_usd}});
  fmt::print("{}\n", Json{{"runs", runs}, {"calls", calls}}.dump(2));
}

}  // namespace

void add_cost(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "cost", "Price records: the run, a million calls, work per dollar");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("records", asked->files, "Read records from these files of attune bench")
      .required()
      .type_name("FILE");
  sub.add_option("--prices", asked->prices, "Read offers from this price file (docs/measuring.md)")
      .required()
      .type_name("FILE");
  sub.add_option("--seconds", asked->seconds,
                 "Set the duration of the run; default the time of its samples and warm-up, a lower bound")
      .type_name("N")
      .between(1e-3, 1e9);
  sub.footer(
      "Examples:\n"
      "  attune cost run.jsonl --prices prices.tsv\n"
      "  attune cost run.jsonl --prices prices.tsv --seconds 240 --json");
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
