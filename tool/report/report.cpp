// `attune report`: from files of records to a page and a Markdown text. It measures nothing and asks the machine
// nothing: the same records give the same report anywhere.
#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tool/cli.h"
#include "tool/commands.h"
#include "tool/report/model.h"

namespace attune {
namespace {

struct Asked {
  std::vector<std::string> files{};
  std::string html{}, markdown{};
};

bool written(const std::string& path, const std::string& text, Context& context) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return true;
  fail(context, kMachine, join("attune report: ", path, ": it cannot be written"));
  return false;
}

void run(const Asked& asked, Context& context) {
  std::vector<Record> records;
  for (const std::string& path : asked.files)
    if (const Status s = read_records(path, records); !s.ok())
      return fail(context, kFailed, join("attune report: ", s.message));
  if (records.empty())
    return fail(context, kFailed, "attune report: the files hold no record; attune bench --json writes them");
  const Report report = make_report(records);
  if (!asked.html.empty() && !written(asked.html, to_html(report), context)) return;
  if (!asked.markdown.empty() && !written(asked.markdown, to_markdown(report), context)) return;
  if (context.json) {
    const nlohmann::ordered_json j = {{"records", records.size()}, {"verdicts", report.verdicts},
                                      {"caveats", report.caveats}, {"html", asked.html}, {"markdown", asked.markdown}};
    fmt::print("{}\n", j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else if (asked.html.empty() && asked.markdown.empty()) {
    fmt::print("{}", to_markdown(report));
  } else {
    for (const std::string& s : report.verdicts) fmt::print("{}\n", s);
    for (const std::string& path : {asked.html, asked.markdown})
      if (!path.empty()) fmt::print("wrote {}\n", path);
  }
}

}  // namespace

void add_report(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "report", "From records to a page with plots and a Markdown text");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("records", asked->files, "Files that attune bench wrote, one record a line")
      .required()
      .type_name("FILE");
  sub.add_option("--out", asked->html, "Write one self-contained HTML page").type_name("FILE");
  sub.add_option("--markdown", asked->markdown, "Write Markdown; without --out and --markdown it goes to stdout")
      .type_name("FILE");
  sub.footer(
      "Examples:\n"
      "  attune report records.jsonl\n"
      "  attune report monday.jsonl tuesday.jsonl --out report.html --markdown report.md");
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
