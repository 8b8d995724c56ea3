// SPDX-License-Identifier: Apache-2.0
// `attune compare`: tells whether a change made something slower. It reads two files of records and produces a verdict
// per row and one exit code, which is what a CI job needs. It measures nothing.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/compare/baseline.h"
#include "tool/compare/write.h"
#include "tool/files.h"
#include "tool/json.h"
#include "tool/record/show.h"
#include "tool/record/read.h"
#include "tool/table.h"
#include "tool/text.h"

namespace attune {
namespace {

struct Asked {
  std::vector<std::string> files{};
  std::string baseline{}, save{}, markdown{}, junit{};
  double margin_percent = 1, agree_percent = -1, bar_percent = 95;
  std::string filter{}, sort = "weight";
  bool github = false, all = false;
  CompareSettings settings{};
};

Json ratio_json(const Ratio& r) {
  if (r.interval.confidence <= 0) return nullptr;
  return {{"value", r.value}, {"low", r.interval.low}, {"high", r.interval.high},
          {"confidence", r.interval.confidence}};
}

Json as_json(const Changes& changes, const CompareSettings& settings) {
  Json j = {{"regressions", changes.regressions(settings)}, {"summary", summary(changes)}, {"rows", Json::array()},
            {"overall", {{"rows", changes.overall.rows}, {"verdict", name(changes.overall.change)},
                         {"times_as_fast", ratio_json(changes.overall.ratio)},
                         {"in_cycles", ratio_json(changes.overall.cycles)}, {"note", changes.overall.note}}},
            {"caveats", changes.caveats}};
  for (const ChangedRow& r : changes.rows)
    j["rows"].push_back({{"problem", r.problem}, {"subject", r.subject}, {"setting", r.setting},
                         {"peer", r.peer}, {"counts", changes.counts(r)}, {"verdict", name(r.change)},
                         {"before_ns", r.before_ns}, {"after_ns", r.after_ns},
                         {"runs_before", r.runs_before}, {"runs_after", r.runs_after},
                         {"times_as_fast", ratio_json(r.ratio)}, {"in_cycles", ratio_json(r.cycles)},
                         {"margin", r.margin}, {"note", r.note}});
  return j;
}

Json as_json(const Agreement& a, const Asked& asked) {
  Json j = {{"within", asked.agree_percent / 100}, {"bar", asked.bar_percent / 100}, {"rows", a.rows},
            {"agreeing", a.agreeing()}, {"farthest", a.farthest}, {"apart", Json::array()}};
  for (const auto& [r, apart] : a.apart)
    j["apart"].push_back({{"problem", r->problem}, {"subject", r->subject}, {"setting", r->setting},
                          {"before_ns", r->before_ns}, {"after_ns", r->after_ns},
                          {"apart", std::isinf(apart) ? Json(nullptr) : Json(apart)}, {"note", r->note}});
  return j;
}

// Reports whether two runs of the same rows agree, not which is faster.
void tell_agreement(const Changes& changes, const Asked& asked, Context& context) {
  const Agreement a = agreement(changes, asked.agree_percent / 100, asked.settings);
  if (context.json) fmt::print("{}\n", as_json(a, asked).dump(2));
  else fmt::print("{}", to_text(a, asked.agree_percent / 100));
  if (!a.rows) return fail(context, kFailed, "attune compare: the two runs have no row in common");
  if (100. * a.agreeing() < asked.bar_percent * a.rows)
    fail(context, kFailed, fmt::format("attune compare: {} of {} agree, below {:g} %", a.agreeing(),
                                       counted(a.rows, "row"), asked.bar_percent));
}

// Accepts two files, or one file with a name to compare it with or to store it under.
Status is_asked(const Asked& asked) {
  if (asked.files.size() > 2 || (asked.files.size() == 2 && !asked.baseline.empty()))
    return Status::no(counted(asked.files.size(), "file"), asked.baseline.empty() ? "" : " and --baseline",
                      " given; give two files, or one with --baseline NAME");
  if (asked.files.size() == 1 && asked.baseline.empty() && asked.save.empty())
    return Status::no("one file given; give a second one, --baseline NAME or --save NAME");
  return asked.save.empty() ? Status::good() : is_baseline_name(asked.save);
}

Status records_of(const std::string& path, std::vector<Record>& out, std::string* text = nullptr) {
  if (Status s = read_files("attune compare", {path}, out, text); !s.ok()) return s;
  return out.empty() ? Status::no(path, ": the file holds no records") : Status::good();
}

void save(const Asked& asked, const std::string& text, Context& context) {
  std::string path;
  if (const Status s = save_baseline(asked.save, text, path); !s.ok())
    return fail(context, kMachine, join("attune compare: ", s.message));
  std::fputs(join("baseline ", asked.save, ": ", path, "\n").c_str(), context.json ? stderr : stdout);
}

const std::string kNone;

// True for results that keep medians only.
bool without_samples(const std::vector<Record>& all) {
  return std::none_of(all.begin(), all.end(), [](const Record& r) { return !r.samples_ns.empty(); }) &&
         std::any_of(all.begin(), all.end(), [](const Record& r) { return r.median_ns > 0; });
}

RowOrder order_of(std::string_view word) {
  return word == "ratio" ? RowOrder::ratio : word == "problem" ? RowOrder::problem : RowOrder::weight;
}

void run(Asked& asked, Context& context) {
  asked.settings.margin = asked.margin_percent / 100;
  if (const Status s = is_asked(asked); !s.ok()) return fail(context, kUsage, join("attune compare: ", s.message));
  const std::string& second = asked.files.back();
  std::string first = asked.files[0], text;
  std::vector<Record> before, after;
  Status s = records_of(second, after, &text);
  if (s.ok() && !asked.baseline.empty()) s = read_baseline(asked.baseline, before, first);
  else if (s.ok() && asked.files.size() == 2) s = records_of(first, before);
  if (!s.ok()) return fail(context, exit_of_read(s), join("attune compare: ", s.message));
  if (s = are_apart({asked.markdown, asked.junit}, {first, second}); !s.ok())
    return fail(context, kUsage, join("attune compare: ", s.message));
  if (asked.files.size() == 1 && asked.baseline.empty()) return save(asked, text, context);
  Changes changes = compare(before, after, asked.settings);
  if (!asked.baseline.empty()) changes.caveats.push_back(baseline_note(first));
  if (asked.agree_percent >= 0) return tell_agreement(changes, asked, context);
  if (!asked.markdown.empty()) s = write_file(asked.markdown, to_markdown(changes));
  if (s.ok() && !asked.junit.empty()) s = write_file(asked.junit, to_junit(changes, asked.settings));
  if (!s.ok()) return fail(context, kMachine, join("attune compare: ", s.message));
  std::FILE* const to = beside({asked.markdown, asked.junit});
  if (context.json)
    fmt::print(to, "{}\n", as_json(changes, asked.settings).dump(2));
  else
    fmt::print(to, "{}", to_text(changes, {.colour = colour_wanted(context.terminal), .all = asked.all,
                                       .order = order_of(asked.sort), .filter = asked.filter,
                                       .width = terminal_width(STDOUT_FILENO)}));
  if (asked.github) {
    // With --json stdout holds one document; GitHub reads annotations from either stream.
    std::fflush(stdout);
    std::fputs(to_annotations(changes, asked.settings).c_str(), context.json ? stderr : to);
  }
  if (const int bad = changes.regressions(asked.settings))
    fail(context, kFailed, fmt::format("attune compare: {} of {} {}", bad, counted(changes.counted(), "row"),
                                       bad == 1 ? "is a regression" : "are regressions"));
  else if (changes.overall.change == Change::slower)
    fail(context, kFailed, fmt::format("attune compare: no row alone is a regression, but the {} rows together are",
                                       changes.overall.rows));
  else if (const std::string& bare = without_samples(before) ? first : without_samples(after) ? second : kNone;
           !changes.compared() && !bare.empty())
    fail(context, kFailed, join("attune compare: ", bare, ": the records hold medians without their samples, which a "
                                "comparison requires"));
  else if (!changes.compared())
    fail(context, kFailed, fmt::format("attune compare: no row of {} is in {}; nothing was compared", second, first));
  else if (changes.told_nothing())
    fail(context, kUnclear,
         changes.compared() == 1 ? "attune compare: nothing could be told: the only row is UNCLEAR"
                                 : fmt::format("attune compare: nothing could be told: all {} rows are UNCLEAR, and so "
                                               "are all together", changes.compared()));
  else if (!asked.save.empty()) save(asked, text, context);
}

}  // namespace

void add_compare(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "compare", "Compare two sets of records: what became faster, slower or broken");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("records", asked->files, "Compare these records: before, then after")
      .required()
      .type_name("FILE");
  sub.add_option("--baseline", asked->baseline, "Compare with the records stored under this name").type_name("NAME");
  sub.add_option("--save", asked->save,
                 "Store the new records under this name; after a comparison only if there is no regression")
      .type_name("NAME");
  sub.add_option("--margin", asked->margin_percent,
                 "Ignore differences below this many percent, or below the A/A spread if that is larger")
      .type_name("PERCENT")
      .between(0.0, 1000.0)
      .show_default();
  sub.add_flag("--strict", asked->settings.strict, "Count UNCLEAR as a regression too");
  sub.add_flag("--missing-is-fine", asked->settings.missing_is_fine,
               "Do not count a row that was measured before but not now as a regression");
  sub.add_flag("--all", asked->all, "Also show the rows that are SAME");
  sub.add_option("--filter", asked->filter,
                 "Show only rows whose problem, subject, setting or verdict contains this text; the verdicts and the "
                 "exit code count all rows")
      .type_name("TEXT");
  sub.add_option("--sort", asked->sort, "Sort by weight (broken, missing and slower rows first), ratio or problem")
      .type_name("NAME")
      .one_of({"weight", "ratio", "problem"})
      .show_default();
  sub.add_option("--markdown", asked->markdown, "Write a Markdown table").type_name("FILE");
  sub.add_option("--junit", asked->junit, "Write JUnit XML with one case per row").type_name("FILE");
  sub.add_flag("--github", asked->github, "Also print GitHub annotations");
  const Argument agree = sub.add_option("--agree", asked->agree_percent,
                                        "Only count the rows of two runs whose times are within this many percent")
      .type_name("PERCENT")
      .between(0.0, 1000.0)
      .excludes("--margin")
      .excludes("--strict")
      .excludes("--save")
      .excludes("--markdown")
      .excludes("--junit")
      .excludes("--github");
  sub.add_option("--bar", asked->bar_percent, "With --agree: require this many percent of the rows to agree")
      .type_name("PERCENT")
      .between(0.0, 100.0)
      .needs(agree)
      .show_default();
  sub.footer(
      "Examples:\n"
      "  attune compare before.jsonl after.jsonl\n"
      "  attune compare monday.jsonl --save release\n"
      "  attune compare after.jsonl --baseline release\n"
      "  attune compare before.jsonl after.jsonl --margin 2 --junit compare.xml --markdown compare.md --github\n"
      "  attune compare first.jsonl second.jsonl --agree 2\n\n"
      "The ratio is the time before divided by the time after, so above 1 is faster. FASTER and SLOWER require its "
      "whole 95 %\ninterval beyond the margin, also in cycles if the records have clocks. SAME requires all of it "
      "within the margin, for\nwhich an A/A spread counts only up to 5 %. The rest is UNCLEAR, also below 6 samples. "
      "Several runs in a file\nform one row, and the interval includes their spread. The rows together have a verdict "
      "too, by their geometric mean,\nwhich no A/A spread excuses. Rows of peers stand last and decide nothing, unless "
      "only peers were compared.\n"
      "Exit code 1 if a row is SLOWER, BROKEN (it failed, or its result was wrong) or MISSING, if all together are "
      "SLOWER,\nor if nothing matched; with --agree if fewer rows than --bar agree. Exit code 4 if nothing could be "
      "told: every row is\nUNCLEAR, and so are all together.");
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
