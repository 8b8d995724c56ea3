// SPDX-License-Identifier: Apache-2.0
// `attune bars`: judges records by requirements of the user's own, for CI and for oneself.
#include <fmt/format.h>

#include <memory>

#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/compare/bars.h"
#include "tool/files.h"
#include "tool/json.h"
#include "tool/record/read.h"

namespace attune {
namespace {

struct Asked {
  std::string bars{};
  std::vector<std::string> files{};
  bool all = false;
};

Json as_json(const std::vector<BarResult>& results) {
  Json j = Json::array();
  for (const BarResult& r : results)
    j.push_back({{"name", r.bar->name}, {"status", name(r.status)}, {"rows", r.rows}, {"sentence", r.sentence},
                 {"evidence", r.evidence}});
  return j;
}

// The options that a file of `attune bench --config` may hold beside its bars.
std::vector<std::string> keys_of_bench(const CLI::App& program) {
  std::vector<std::string> keys{"axes", "problems"};
  for (const CommandText& command : commands_of(program))
    for (const ArgumentText& a : command.arguments)
      if (command.name == "bench" && !a.names.empty()) keys.push_back(a.names.back().substr(2));
  return keys;
}

void run(const Asked& asked, const std::vector<std::string>& others, Context& context) {
  std::string text;
  if (const Status s = read_file(asked.bars, text); !s.ok())
    return fail(context, exit_of_read(s), join("attune bars: ", s.message));
  std::vector<Bar> bars;
  if (const Status s = read_bars(text, asked.bars, bars, others); !s.ok())
    return fail(context, kUsage, join("attune bars: ", s.message));
  std::vector<Record> records;
  if (const Status s = read_files("attune bars", asked.files, records); !s.ok())
    return fail(context, exit_of_read(s), join("attune bars: ", s.message));
  const std::vector<BarResult> results = judge(bars, records);
  int count[4] = {};
  for (const BarResult& r : results) ++count[int(r.status)];
  if (context.json) fmt::print("{}\n", as_json(results).dump(2));
  for (const BarResult& r : results) {
    if (context.json) break;
    fmt::print("{:<8} {}: {}\n", name(r.status), r.bar->name, r.sentence);
    constexpr size_t kShown = 5;
    for (size_t n = 0; n < r.evidence.size() && (asked.all || n < kShown); ++n)
      fmt::print("           {}\n", r.evidence[n]);
    if (!asked.all && r.evidence.size() > kShown)
      fmt::print("           and {} more; --all shows them\n", r.evidence.size() - kShown);
  }
  const int met = count[int(BarStatus::met)], all = int(results.size());
  if (met < all)
    fail(context, kFailed, fmt::format("attune bars: {} of {} met; {} missed, {} unclear, {} without rows", met, all,
                                       count[int(BarStatus::missed)], count[int(BarStatus::unclear)],
                                       count[int(BarStatus::empty)]));
  else if (!context.json) fmt::print("all {} met\n", all);
}

}  // namespace

void add_bars(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "bars", "Judge records by requirements of your own");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("bars", asked->bars, "Requirements, a TOML file").required().type_name("BARS.toml");
  sub.add_option("records", asked->files, "Read records from these files").required().type_name("FILE.jsonl");
  sub.add_flag("--all", asked->all, "Show every row that is below its bar");
  sub.footer(
      "A file of requirements:\n"
      "  [[bar]]\n"
      "  name = \"forward ahead of FlashAttention-3\"\n"
      "  subject = \"sm90_forward\"                      # without one: every backend of ours\n"
      "  over = \"fa3\"                                  # or \"peers\": the fastest of each row\n"
      "  ratio = 1.03                                  # at least, in every row\n"
      "  mean = 1.10                                   # at least, the geometric mean\n"
      "  count = 12                                    # so many rows must be there\n"
      "  rows = {pass = \"forward\", dim = [64, 128], mask = \"causal\", len_least = 512}\n\n"
      "Also: share (of rows that must reach ratio), tflops and gbs (at least), microseconds (at most), error (at most, "
      "in\ntolerances of the dtype), rate (of the row whose line has other words: of = {\"window*\" = \"causal\"}, at "
      "least),\ndensity (time over density x the time without lists, at most), unfused (share of unfused attention's "
      "bound, at\nleast), less_floor = true (ratio without the time of an empty call). rows: pass, dtype, mask, "
      "device, timing,\nstate (rested, hot), variant, dim, len, len_q, batch, heads, len_least, len_most. Options of "
      "attune bench may\nstand in the same file, so that it says what to measure and what that must reach.\n\n"
      "Examples:\n"
      "  attune bench --config bars.toml --out run.jsonl\n"
      "  attune bars bars.toml run.jsonl\n\n"
      "Exit code 1 unless every bar is met. A bar that no row shows is not met.");
  sub.callback([asked, &app, &context] { run(*asked, keys_of_bench(app), context); });
}

}  // namespace attune
