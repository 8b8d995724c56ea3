// SPDX-License-Identifier: Apache-2.0
// The content of a report before it is written as Markdown, CSV or a page: sentences, plots and tables made from
// records. The writers print this and add nothing, so they cannot disagree. Every number and sentence is derived from
// the records and the files given with them.
#pragma once
#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include "plan/rules.h"
#include "tool/record/record.h"
#include "tool/record/prices.h"
#include "tool/report/svg.h"

namespace attune {

enum class Tone { plain, good, bad, weak };

struct TableCell {
  std::string text{};
  double sort = NAN;  // sort key of the column; NaN: the text
  Tone tone = Tone::plain;
};
struct Table {
  std::string caption{};
  std::vector<std::string> head{};
  std::vector<std::vector<TableCell>> rows{};
  std::vector<size_t> facets{};  // columns with few values, which a reader can filter by
};

struct Plot {
  std::string caption{};
  std::variant<Chart, HeatMap, Strips> drawing{};
};
// Plots and the table with the same numbers.
struct Figure {
  std::string title{};
  std::vector<Plot> plots{};  // empty: only the table
  Table table{};
};
struct Section {
  std::string id{}, title{};
  std::vector<std::string> notes{};
  std::vector<Figure> figures{};
};

// A headline number: "1.15x", what it is, and details.
struct Fact {
  std::string value{}, name{}, detail{};
  Tone tone = Tone::plain;
};
// A recommendation for one kind of work, derived from the rows.
struct Advice {
  std::string use{}, sentence{};
  std::vector<std::string> exceptions{};
};

struct Report {
  std::string title{}, subtitle{};
  std::vector<Fact> facts{};
  std::vector<std::string> verdicts{};  // first: the results
  std::vector<Advice> advice{};         // the recommendations that follow
  std::vector<Section> sections{};
  Table provenance{};
  std::vector<std::string> caveats{};   // last: the limits
};

// The inputs of a report.
struct Sources {
  std::vector<Record> records{};
  std::vector<Record> baseline{};         // an earlier run; empty: no section on regressions
  std::string baseline_name{};
  std::vector<Rule> rules{};              // from a tuned file: thresholds in the heat maps
  std::vector<Offer> offers{};            // from a price file: costs
  std::vector<std::string> unfinished{};  // sentences about skipped lines
  std::string base{};                     // of rows across lines; empty: dense rows
};

Report make_report(const Sources&);
const Section* find_section(const Report&, std::string_view id);  // null if the report has no such section

std::string to_markdown(const Report&);
std::string to_csv(const std::vector<Record>&);  // one line per record
// One self-contained page. With a revision it is a served page: it polls /revision and reloads / if that differs.
std::string to_html(const Report&, const std::string& revision = "");

}  // namespace attune
