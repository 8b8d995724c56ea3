// `attune verify`: tells whether a file of records is trustworthy. Nothing is measured: the records are checked for
// consistency.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/check/audit.h"

namespace attune {
namespace {

struct Asked {
  std::vector<std::string> files{};
  bool strict = false;
};

void run(const Asked& asked, Context& context) {
  Json document = Json::array();
  for (const std::string& path : asked.files) {
    std::vector<Line> lines;
    std::vector<Finding> found;
    if (const Status s = audit_file(path, lines, found); !s.ok())
      return fail(context, kMachine, join("attune verify: ", s.message));
    const auto wrong = size_t(std::count_if(found.begin(), found.end(), [](const Finding& f) { return f.wrong; }));
    const size_t cautions = found.size() - wrong;
    if (context.json) {
      Json all = Json::array();
      for (const Finding& f : found)
        all.push_back({{"line", f.line}, {"name", f.name}, {"wrong", f.wrong}, {"sentence", f.sentence}});
      document.push_back({{"file", path}, {"records", lines.size()}, {"wrong", wrong}, {"cautions", cautions},
                          {"findings", all}});
    } else {
      for (const Finding& f : found)
        fmt::print("{}:{}: {}{}: {}\n", path, f.line, f.wrong ? "" : "warning: ", f.name, f.sentence);
      fmt::print("{}: {} record{}, {} wrong, {} warning{}\n", path, lines.size(), lines.size() == 1 ? "" : "s", wrong,
                 cautions, cautions == 1 ? "" : "s");
    }
    if (wrong || (asked.strict && cautions))
      fail(context, kFailed, join("attune verify: '", path, "' is not trustworthy: ", wrong, " wrong",
                                  asked.strict ? join(", ", cautions, cautions == 1 ? " warning" : " warnings") : ""));
    else if (lines.empty()) fail(context, kFailed, join("attune verify: '", path, "' holds no records"));
  }
  if (context.json) fmt::print("{}\n", document.dump(2));
}

}  // namespace

void add_verify(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "verify", "Check files of records: recompute everything that is derived");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("files", asked->files, "Check these files of records").required().type_name("FILE.jsonl");
  sub.add_flag("--strict", asked->strict, "Treat warnings as errors");
  std::string names, line;
  for (const std::string& name : finding_names()) {
    if (line.size() > 90) names += line + ",\n", line.clear();
    line += (line.empty() ? "  " : ", ") + name;
  }
  sub.footer(join("Summaries, rates, ratios and verdicts are recomputed from the samples, operations from the "
                  "problem line, and\nall are compared with the measured ceilings. Findings have names:\n", names, line,
                  "\n\nExamples:\n  attune verify records.jsonl\n  attune verify --strict monday.jsonl tuesday.jsonl "
                  "--json\n\nExit code 1 if anything is wrong, with --strict also if there is a warning."));
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
