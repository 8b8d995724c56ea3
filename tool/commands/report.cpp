// SPDX-License-Identifier: Apache-2.0
// `attune report`: turns files of records into an HTML page, Markdown and CSV. It measures nothing and does not depend
// on the machine: the same files give the same report anywhere.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <sstream>

#include "plan/plan.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/files.h"
#include "tool/json.h"
#include "tool/record/ranking.h"
#include "tool/report/model.h"
#include "tool/report/sources.h"
#include "tool/terminal.h"

namespace attune {
namespace {

struct Asked {
  SourceFiles from{};
  std::string html{}, markdown{}, csv{};
};

Status write(const Asked& asked, const Report& report, const std::vector<Record>& records) {
  if (!asked.html.empty())
    if (Status s = write_file(asked.html, to_html(report)); !s.ok()) return s;
  if (!asked.markdown.empty())
    if (Status s = write_file(asked.markdown, to_markdown(report)); !s.ok()) return s;
  return asked.csv.empty() ? Status::good() : write_file(asked.csv, to_csv(records));
}

void run(const Asked& asked, Context& context) {
  std::vector<std::string> read = asked.from.records;
  read.insert(read.end(), {asked.from.baseline, asked.from.tuned, asked.from.prices});
  if (const Status s = are_apart({asked.html, asked.markdown, asked.csv}, read); !s.ok())
    return fail(context, kUsage, join("attune report: ", s.message));
  Sources sources;
  if (const Status s = read_sources(asked.from, sources); !s.ok())
    return fail(context, exit_of_read(s), join("attune report: ", s.message));
  if (sources.records.empty())
    return fail(context, kFailed, "attune report: the files hold no records; attune bench --json writes them");
  if (const Status s = asked.from.base.empty() ? Status::good() : is_base(asked.from.base, sources.records); !s.ok())
    return fail(context, kUsage, join("attune report: ", s.message));
  const Report report = make_report(sources);
  if (const Status s = write(asked, report, sources.records); !s.ok())
    return fail(context, kMachine, join("attune report: ", s.message));
  std::FILE* const to = beside({asked.html, asked.markdown, asked.csv});
  if (context.json) {
    Json advice = Json::array();
    for (const Advice& a : report.advice)
      advice.push_back({{"use", a.use}, {"sentence", a.sentence}, {"exceptions", a.exceptions}});
    const Json j = {{"records", sources.records.size()}, {"verdicts", report.verdicts}, {"advice", advice},
                    {"caveats", report.caveats}, {"html", asked.html}, {"markdown", asked.markdown},
                    {"csv", asked.csv}};
    fmt::print(to, "{}\n", j.dump(2));
  } else if (asked.html.empty() && asked.markdown.empty() && asked.csv.empty()) {
    keep_lines_whole(), fmt::print("{}", to_markdown(report));
  } else {
    for (const std::string& s : report.verdicts) fmt::print(to, "{}\n", s);
    for (const Advice& a : report.advice) fmt::print(to, "{}: {}\n", a.use, a.sentence);
    for (const std::string& path : {asked.html, asked.markdown, asked.csv})
      if (!path.empty()) fmt::print(to, "wrote {}\n", path);
  }
}

// Reads a tuned file whose backends this build may lack, because a report on GPU records can be made anywhere. Backend
// names are replaced by a known one while the file is checked, then restored.
Status read_tuned_of_any_build(const std::string& text, const std::string& file, Tuned& out) {
  std::string known;
  std::vector<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t tab = line.rfind('\t');
    if (line.starts_with("rule\t") && std::count(line.begin(), line.end(), '\t') == 7) {
      std::string name = line.substr(tab + 1);
      if (name.ends_with('\r')) name.pop_back();
      if (name.empty() || name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != name.npos)
        return read_tuned(text, file, out);  // not a backend name: reports the error
      names.push_back(std::move(name));
      line.replace(tab + 1, line.npos, backends().front()->name);
    }
    known += line + "\n";
  }
  if (Status s = read_tuned(known, file, out); !s.ok()) return s;
  for (size_t n = 0; n < out.rules.size() && n < names.size(); ++n) out.rules[n].backend = names[n];
  return Status::good();
}

}  // namespace

Status read_sources(const SourceFiles& files, Sources& out) {
  Sources s;
  for (const std::string& path : files.records)
    if (Status status = read_records(path, s.records, &s.unfinished); !status.ok()) return status;
  if (!files.baseline.empty()) {
    if (Status status = read_records(files.baseline, s.baseline, &s.unfinished); !status.ok()) return status;
    if (s.baseline.empty()) return Status::no(files.baseline, ": the baseline holds no records");
    s.baseline_name = std::filesystem::path(files.baseline).filename();
  }
  if (!files.tuned.empty()) {
    std::string text;
    if (Status status = read_file(files.tuned, text); !status.ok()) return status.after("tuned file ");
    Tuned tuned;
    const std::string name = std::filesystem::path(files.tuned).filename();
    if (Status status = read_tuned_of_any_build(text, name, tuned); !status.ok()) return status;
    s.rules = std::move(tuned.rules);
  }
  if (!files.prices.empty())
    if (Status status = load_prices(files.prices, s.offers); !status.ok()) return status;
  s.base = files.base;
  out = std::move(s);
  return Status::good();
}

void add_sources(const Command& sub, SourceFiles& files) {
  sub.add_option("records", files.records, "Read records from these files of attune bench")
      .required()
      .type_name("FILE");
  sub.add_option("--baseline", files.baseline, "Compare with the records of an earlier run").type_name("FILE");
  sub.add_option("--tuned", files.tuned, "Draw the thresholds of this tuned file in the heat maps").type_name("FILE");
  sub.add_option("--base", files.base,
                 "Compare rows of other lines of the same sizes with this implementation, as in bench")
      .type_name("NAME");
  sub.add_option("--prices", files.prices, "Price the rows with this price file").type_name("FILE");
}

void add_report(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "report", "Turn records into a page with plots, Markdown and CSV");
  const auto asked = std::make_shared<Asked>();
  add_sources(sub, asked->from);
  sub.add_option("--out", asked->html, "Write one self-contained HTML page").type_name("FILE");
  sub.add_option("--markdown", asked->markdown, "Write Markdown; without any output file it goes to stdout")
      .type_name("FILE");
  sub.add_option("--csv", asked->csv, "Write one line of CSV per record").type_name("FILE");
  sub.footer(
      "Examples:\n"
      "  attune report records.jsonl\n"
      "  attune report monday.jsonl tuesday.jsonl --out report.html --markdown report.md --csv rows.csv\n"
      "  attune report today.jsonl --baseline monday.jsonl --tuned h200.tsv --prices prices.tsv --out report.html");
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
