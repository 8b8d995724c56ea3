// SPDX-License-Identifier: Apache-2.0
// `attune store` and `attune history`: keep records in a database, and show how the time of a row changed.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/line.h"
#include "tool/bench/axes.h"
#include "tool/compare/baseline.h"
#include "tool/files.h"
#include "tool/history/page.h"
#include "tool/record/busy.h"
#include "tool/record/store.h"
#include "tool/record/read.h"
#include "tool/table.h"
#include "tool/text.h"

namespace attune {
namespace {

struct Asked {
  std::vector<std::string> files{};
  std::string db{}, baseline{}, problem{}, subject{}, html{}, markdown{};
  bool records = false;
};

std::string path_of(const Asked& asked) { return asked.db.empty() ? default_store() : asked.db; }

void store(const Asked& asked, Context& context) {
  const auto no = [&](Exit code, const Status& s) { fail(context, code, join("attune store: ", s.message)); };
  if (asked.files.empty() && !asked.baseline.empty())
    return no(kUsage, Status::no("--baseline: given without a file; give the files of its records"));
  if (const Status s = asked.baseline.empty() ? Status::good() : is_baseline_name(asked.baseline); !s.ok())
    return no(kUsage, s);
  std::vector<Record> records;
  if (const Status s = read_files("attune store", asked.files, records); !s.ok()) return no(exit_of_read(s), s);
  if (records.empty() && !asked.files.empty())
    return no(kFailed, Status::no("the files hold no records; attune bench --json writes them"));
  Store db;
  if (const Status s = db.open(path_of(asked), !asked.files.empty()); !s.ok()) return no(kMachine, s);
  size_t added = 0;
  const Status stored =
      asked.baseline.empty() ? db.add(records, added) : db.set_baseline(asked.baseline, records, added);
  if (!stored.ok()) return no(kMachine, stored);
  Store::Size size;
  std::vector<Store::Named> names;
  if (const Status s = db.size(size); !s.ok()) return no(kMachine, s);
  if (const Status s = db.baselines(names); !s.ok()) return no(kMachine, s);
  if (context.json) {
    Json all = Json::object();
    for (const Store::Named& n : names) all[n.name] = n.records;
    fmt::print("{}\n", Json{{"store", path_of(asked)}, {"added", added}, {"records", size.records},
                            {"runs", size.runs}, {"first", size.first}, {"last", size.last}, {"baselines", all}}
                           .dump(2));
    return;
  }
  if (!asked.files.empty()) fmt::print("{} added, {} already stored\n", added, records.size() - added);
  fmt::print("{}: {} of {}", path_of(asked), counted(size.records, "record"),
             counted(size.runs, "run"));
  if (size.records) fmt::print(", {} to {}", size.first, size.last);
  fmt::print("\n");
  for (const Store::Named& n : names) fmt::print("baseline {}: {}\n", n.name, counted(n.records, "record"));
}

// One bar of eight heights per record; the slowest is the highest.
std::string sparkline(const std::vector<const Record*>& series) {
  static const char* const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double low = INFINITY, high = 0;
  for (const Record* r : series) low = std::min(low, r->median_ns), high = std::max(high, r->median_ns);
  std::string text;
  for (const Record* r : series) {
    const double share = (r->median_ns - low) / (high - low);  // NaN for equal or infinite times
    text += bars[high > 1.001 * low && share >= 0 && share <= 1 ? int(7.999 * share) : 3];
  }
  return text;
}

Json as_json(const Trend& trend) {
  const std::vector<const Record*>& series = trend.points;
  const Record& first = *series.front();
  Json points = Json::array();
  for (size_t n = 0; n < series.size(); ++n) {
    const Record& r = *series[n];
    Json point = {{"time", r.provenance.time}, {"commit", r.provenance.commit}, {"run", r.run},
                  {"median_ns", r.median_ns}, {"low_ns", r.interval.low}, {"high_ns", r.interval.high},
                  {"binary", r.provenance.binary}, {"busy", busy_text(r)}};
    if (n) {
      const RunStep s = run_step(*series[n - 1], r);
      point["ratio_to_previous"] = s.ratio.value, point["verdict"] = name(s.speed);
      point["machine_changes"] = s.machine;
    }
    points.push_back(std::move(point));
  }
  Json changes = Json::array();
  for (const ChangePoint& c : trend.changes) {
    const Provenance& p = series[c.at]->provenance;
    changes.push_back({{"point", c.at}, {"time", p.time}, {"commit", p.commit}, {"ratio", c.ratio},
                       {"before_ns", c.before_ns}, {"after_ns", c.after_ns}, {"chance", c.chance},
                       {"verdict", c.is_slower() ? "SLOWER" : "FASTER"}, {"machine_changes", c.machine}});
  }
  return {{"problem", first.problem}, {"pattern", first.pattern}, {"subject", first.subject},
          {"device", first.device}, {"machine", device_of(first)}, {"card", first.provenance.gpu_uuid},
          {"timing", timing_text(first)}, {"threads", first.threads}, {"layout", first.layout},
          {"distribution", first.distribution}, {"points", points}, {"changes", changes}};
}

// What the headings of all trends end with: their machine and setting, " | Test CPU | warm, 2 threads"; "" of one.
std::string shared_end(const std::vector<Trend>& trends) {
  constexpr std::string_view kBar = " | ";
  if (trends.size() < 2) return "";
  std::string shared = heading(*trends.front().points.front());
  shared.erase(0, std::min(shared.find(kBar), shared.size()));
  const auto ends_all = [&](const Trend& t) { return heading(*t.points.front()).ends_with(shared); };
  while (!shared.empty() && !std::all_of(trends.begin(), trends.end(), ends_all))
    shared.erase(0, std::min(shared.find(kBar, 1), shared.size()));
  return shared;
}

// Without the end that all headings share.
void print(const Trend& trend, size_t shared) {
  const std::vector<const Record*>& series = trend.points;
  const Record& first = *series.front();
  const std::string title = heading(first);
  fmt::print("{}\n", title.substr(0, title.size() - shared));
  TextTable table{.columns = {{"time"}, {"commit"}, {"median", Cells::number}, {"against the one before"}, {"remarks"}},
                  .margin = 2};
  for (size_t n = 0; n < series.size(); ++n) {
    const Record& r = *series[n];
    std::vector<std::string> row = {r.provenance.time, r.provenance.commit.substr(0, 10),
                                    seconds_text(r.median_ns * 1e-9), "", ""};
    std::vector<std::string> remarks;
    if (const std::string busy = busy_text(r); !busy.empty()) remarks.push_back("busy: " + busy);
    if (n) {
      const RunStep s = run_step(*series[n - 1], r);
      row[3] = fmt::format("{} [{}, {}] {}", factor_text(s.ratio.value), digits_text(s.ratio.interval.low),
                           digits_text(s.ratio.interval.high), name(s.speed));
      remarks.insert(remarks.end(), s.machine.begin(), s.machine.end());
    }
    row[4] = fmt::format("{}", fmt::join(remarks, "; "));
    table.rows.push_back(std::move(row));
  }
  fmt::print("{}", to_text(std::move(table), terminal_width(STDOUT_FILENO)));
  if (series.size() > 1) {
    const RunStep whole = run_step(first, *series.back());
    fmt::print("  {}  since the first: {} {}\n", sparkline(series), factor_text(whole.ratio.value), name(whole.speed));
  }
  for (const ChangePoint& c : trend.changes) {
    fmt::print("  {}\n", sentence(trend, c));
    for (const std::string& what : c.machine) fmt::print("    {}\n", what);
  }
}

// A line of bench as it appears in records: with the bound of its pattern.
struct Line {
  std::string problem{}, pattern{};
  bool is(const Record& r) const {
    return (problem.empty() || r.problem == problem) && (pattern.empty() || r.pattern == pattern);
  }
};
Status line_of(const std::string& text, Line& out) {
  out = {.problem = text};
  BenchRow row;
  if (text.empty()) return Status::good();
  if (Status s = parse_row(text, row); !s.ok()) return s;
  out = {.problem = row.label.empty() ? name(row.problem) : row.label, .pattern = row.pattern};
  return Status::good();
}

Status write_pages(const Asked& asked, const Report& report) {
  if (!asked.html.empty())
    if (Status s = write_file(asked.html, to_html(report)); !s.ok()) return s;
  return asked.markdown.empty() ? Status::good() : write_file(asked.markdown, to_markdown(report));
}

void history(const Asked& asked, Context& context) {
  const auto no = [&](Exit code, const Status& s) { fail(context, code, join("attune history: ", s.message)); };
  if (const Status s = are_apart({asked.html, asked.markdown}, {path_of(asked)}); !s.ok()) return no(kUsage, s);
  Line line;
  const Status is_line = line_of(asked.problem, line);
  Store db;
  if (const Status s = db.open(path_of(asked), false); !s.ok()) return no(kMachine, s);
  std::vector<Record> records;
  if (!asked.baseline.empty()) {
    if (const Status s = db.baseline(asked.baseline, records); !s.ok()) return no(kFailed, s);
    std::erase_if(records, [&](const Record& r) { return !asked.subject.empty() && r.subject != asked.subject; });
  } else if (const Status s = db.find({line.problem, asked.subject}, records); !s.ok()) {
    return no(kMachine, s);
  }
  for (const std::string& sentence : db.left_out()) fmt::print(stderr, "attune history: {}\n", sentence);
  std::erase_if(records, [&](const Record& r) { return !line.is(r); });
  if (records.empty() && !is_line.ok())
    return no(kUsage, Status::no(is_line.message, caret_below(asked.problem)));
  if (records.empty()) return no(kFailed, Status::no("no stored record matches"));
  if (asked.records) {
    for (const Record& r : records) fmt::print("{}\n", to_json(r));
    return;
  }
  const std::vector<Trend> trends = trends_of(records);
  if (trends.empty())
    return no(kFailed, Status::no("none of ", records.size(), " matching records has a time; --records prints them"));
  const bool pages = !asked.html.empty() || !asked.markdown.empty();
  const Report report = pages ? history_report(trends, db.left_out()) : Report{};
  if (const Status s = write_pages(asked, report); !s.ok()) return no(kMachine, s);
  std::FILE* const to = beside({asked.html, asked.markdown});
  if (context.json) {
    Json document = Json::array();
    for (const Trend& t : trends) document.push_back(as_json(t));
    fmt::print(to, "{}\n", document.dump(2));
  } else if (pages) {
    for (const std::string& s : report.verdicts) fmt::print(to, "{}\n", s);
    for (const std::string& path : {asked.html, asked.markdown})
      if (!path.empty()) fmt::print(to, "wrote {}\n", path);
  } else {
    const std::string shared = shared_end(trends);
    if (!shared.empty()) fmt::print("{}\n\n", std::string_view(shared).substr(3));
    for (const Trend& t : trends) print(t, shared.size());
  }
}

}  // namespace

void add_store(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "store", "Keep records for history, trends and baselines");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("files", asked->files, "Add the records of these files; without any, list the store")
      .type_name("FILE.jsonl");
  sub.add_option("--db", asked->db,
                 "Use this store; default ATTUNE_STORE, else attune/records.db in the user's data folder")
      .type_name("FILE");
  sub.add_option("--baseline", asked->baseline, "Make these records, and no others, the baseline of this name")
      .type_name("NAME");
  sub.footer(
      "A record that is already stored is kept once.\n\n"
      "Examples:\n"
      "  attune store records.jsonl\n"
      "  attune store main.jsonl --baseline main\n"
      "  attune store --json");
  sub.callback([asked, &context] { store(*asked, context); });
}

void add_history(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "history", "Show every stored time of a row, and each step between them");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("problem", asked->problem, "Show only this problem line").type_name("LINE");
  sub.add_option("--subject", asked->subject, "Show only this backend or peer").type_name("NAME");
  sub.add_option("--baseline", asked->baseline, "Show only the records of this baseline").type_name("NAME");
  sub.add_flag("--records", asked->records, "Print the records themselves, one per line, as bench writes them");
  sub.add_option("--db", asked->db, "Use this store; default as for attune store").type_name("FILE");
  sub.add_option("--html", asked->html, "Write a page: what changed for good, and a plot of every row")
      .type_name("FILE");
  sub.add_option("--markdown", asked->markdown, "Write the same as Markdown").type_name("FILE");
  sub.footer(
      "A ratio is the time before divided by the time after, so above 1 is faster.\n\n"
      "Examples:\n"
      "  attune history \"forward bf16 b1 h8 q1024 k1024 d64 causal\"\n"
      "  attune history --subject cpu_forward --json\n"
      "  attune history --html trends.html\n"
      "  attune history --baseline main --records > main.jsonl");
  sub.callback([asked, &context] { history(*asked, context); });
}

}  // namespace attune
