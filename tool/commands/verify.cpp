// SPDX-License-Identifier: Apache-2.0
// `attune verify`: tells whether a file of records is trustworthy. Nothing is measured: the records are checked for
// consistency, and with --signers also for who wrote them.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <memory>

#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/check/audit.h"
#include "tool/check/signature.h"
#include "tool/files.h"

namespace attune {
namespace {

struct Asked {
  std::vector<std::string> files{};
  std::string signers{};
  bool strict = false;
};

void run(const Asked& asked, Context& context) {
  if (const Status s = asked.signers.empty() ? Status::good() : are_signers(asked.signers); !s.ok())
    return fail(context, exit_of_read(s), join("attune verify: ", s.message));
  Json document = Json::array();
  for (const std::string& path : asked.files) {
    std::vector<Line> lines;
    std::vector<Finding> found;
    std::string text, signer;
    if (const Status s = read_text(path, text, kMostRecords); !s.ok())
      return fail(context, exit_of_read(s), join("attune verify: ", s.message));
    if (const Status s = asked.signers.empty() ? Status::good() : check_signature(text, path, asked.signers, signer);
        s.code == Code::device)
      return fail(context, kMachine, join("attune verify: ", s.message));
    else if (!s.ok())
      found.push_back({0, "bad-signature", true, s.message});
    audit_text(text, lines, found, std::time(nullptr));
    const auto wrong = size_t(std::count_if(found.begin(), found.end(), [](const Finding& f) { return f.wrong; }));
    const size_t cautions = found.size() - wrong;
    if (context.json) {
      Json all = Json::array();
      for (const Finding& f : found)
        all.push_back({{"line", f.line}, {"name", f.name}, {"wrong", f.wrong}, {"sentence", f.sentence}});
      document.push_back({{"file", path}, {"records", lines.size()}, {"wrong", wrong}, {"cautions", cautions},
                          {"signer", signer}, {"findings", all}});
    } else {
      for (const Finding& f : found)
        fmt::print("{}{}: {}{}: {}\n", path, f.line ? join(":", f.line) : "", f.wrong ? "" : "warning: ", f.name,
                   f.sentence);
      fmt::print("{}: {} record{}, {} wrong, {} warning{}{}\n", path, lines.size(), lines.size() == 1 ? "" : "s",
                 wrong, cautions, cautions == 1 ? "" : "s", signer.empty() ? "" : join(", signed by ", signer));
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
  sub.add_option("--signers", asked->signers,
                 "Require a signature beside each file (FILE.jsonl.sig) by a key of this file of allowed signers")
      .type_name("FILE");
  sub.add_flag("--strict", asked->strict, "Treat warnings as errors");
  std::string names, line;
  for (const std::string& name : finding_names()) {
    if (line.size() > 90) names += line + ",\n", line.clear();
    line += (line.empty() ? "  " : ", ") + name;
  }
  sub.footer(join("Summaries, rates, ratios and verdicts are recomputed from the samples, operations from the "
                  "problem line, and\nall are compared with the measured ceilings. Seals show what was changed after "
                  "bench wrote it, by anyone who\ndid not also compute them anew; a signature shows whose file it "
                  "is. Findings have names:\n", names, line,
                  "\n\nExamples:\n  attune verify records.jsonl\n  attune verify --signers ci.signers run.jsonl\n"
                  "  attune verify --strict monday.jsonl tuesday.jsonl --json\n\n"
                  "Exit code 1 if anything is wrong, with --strict also if there is a warning."));
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
