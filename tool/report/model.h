// What a report says, before it is written as Markdown, CSV or a page: sentences, plots and tables made from records.
// The writers print this and add nothing, so they cannot disagree. Every number and every sentence comes from records
// and from the files given beside them: nothing is typed here.
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
  double sort = NAN;  // what the column is sorted by; not a number: the text
  Tone tone = Tone::plain;
};
struct Table {
  std::string caption{};
  std::vector<std::string> head{};
  std::vector<std::vector<TableCell>> rows{};
  std::vector<size_t> facets{};  // columns of few values, which a reader may choose from
};

struct Plot {
  std::string caption{};
  std::variant<Chart, HeatMap> drawing{};
};
// Plots and the table that says the same in numbers.
struct Figure {
  std::string title{};
  std::vector<Plot> plots{};  // none: the table alone
  Table table{};
};
struct Section {
  std::string id{}, title{};
  std::vector<std::string> notes{};
  std::vector<Figure> figures{};
};

// A number that stands out: "1.15x", what it is, and of what.
struct Fact {
  std::string value{}, name{}, detail{};
  Tone tone = Tone::plain;
};
// What to use for one kind of work, as the rows say.
struct Advice {
  std::string use{}, sentence{};
  std::vector<std::string> exceptions{};
};

struct Report {
  std::string title{}, subtitle{};
  std::vector<Fact> facts{};
  std::vector<std::string> verdicts{};  // first: what came out
  std::vector<Advice> advice{};         // and what follows from it
  std::vector<Section> sections{};
  Table provenance{};
  std::vector<std::string> caveats{};   // last: what limits it
};

// All that a report is made of.
struct Sources {
  std::vector<Record> records{};
  std::vector<Record> baseline{};  // an earlier run; none: nothing is said of regressions
  std::string baseline_name{};
  std::vector<Rule> rules{};       // of a tuned file: thresholds in the heat maps
  std::vector<Offer> offers{};     // of a price file: the costs
  std::vector<std::string> unfinished{};  // what was left out of the files: sentences
};

Report make_report(const Sources&);
const Section* find_section(const Report&, std::string_view id);  // null: the records have nothing for it

std::string to_markdown(const Report&);
std::string to_csv(const std::vector<Record>&);  // a line a record
// One page that needs nothing else. With a revision it is served: it asks for /revision, and for / where that differs.
std::string to_html(const Report&, const std::string& revision = "");

}  // namespace attune
