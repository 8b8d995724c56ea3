// SPDX-License-Identifier: Apache-2.0
// `attune scaling`: fits exponents to records: how time and memory grow with the length, with intervals.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/record/read.h"
#include "tool/report/rows.h"
#include "tool/table.h"

namespace attune {
namespace {

Json as_json(const Fit& f) {
  if (!f.points) return nullptr;
  const bool sure = std::isfinite(f.low);
  return {{"exponent", f.exponent}, {"low", sure ? Json(f.low) : Json(nullptr)},
          {"high", sure ? Json(f.high) : Json(nullptr)}, {"factor", f.factor}, {"points", f.points},
          {"worst", f.worst}};
}

std::string text(const Fit& f) {
  if (!f.points) return "-";
  return fmt::format("{:.2f} [{:.2f}, {:.2f}]", f.exponent, f.low, f.high);
}

void run(const std::vector<std::string>& files, Context& context) {
  std::vector<Record> records;
  if (const Status s = read_files("attune scaling", files, records); !s.ok())
    return fail(context, exit_of_read(s), join("attune scaling: ", s.message));
  const Measurements rows = rows_of(records);
  const std::vector<Growth> all = growth_of(rows);
  if (all.empty())
    return fail(context, kFailed, "attune scaling: no subject was measured at three or more lengths of one problem");
  if (context.json) {
    Json j = Json::array();
    for (const Growth& g : all)
      j.push_back({{"problems", g.family}, {"subject", g.series}, {"time", as_json(g.time)},
                   {"time_a_token", as_json(g.time_a_token)}, {"memory", as_json(g.memory)}});
    return fmt::print("{}\n", j.dump(2));
  }
  TextTable t{.columns = {{"problems", Cells::text, TextColumn::Shared::line}, {"subject"}, {"lengths", Cells::number},
                          {"time"}, {"time per token"}, {"memory"}}};
  for (const Growth& g : all)
    t.rows.push_back({g.family, g.series, join(g.time.points), text(g.time), text(g.time_a_token), text(g.memory)});
  fmt::print("{}", to_text(std::move(t), terminal_width(STDOUT_FILENO)));
  fmt::print("Exponents of the number of keys, with 95 % intervals: 2 is attention over all pairs, 1 is linear.\n");
}

}  // namespace

void add_scaling(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "scaling", "Fit how time and memory grow with the length");
  const auto files = std::make_shared<std::vector<std::string>>();
  sub.add_option("records", *files, "Read records from these files of attune bench").required().type_name("FILE");
  sub.footer(
      "Examples:\n"
      "  attune bench --len 512-16384*2 --out run.jsonl && attune scaling run.jsonl\n"
      "  attune scaling run.jsonl --json");
  sub.callback([files, &context] { run(*files, context); });
}

}  // namespace attune
