// What a report says, before it is written as Markdown or as a page: sentences, plots and tables made from records.
// Both writers print this and add nothing, so they cannot disagree.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "tool/measure/record.h"
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
};

// Problems that differ in their lengths only.
struct Group {
  std::string title{};          // "forward f32 b1 h8 d64 causal"
  std::vector<Chart> charts{};  // none where there is only one length
  Table table{};
};

// One subject against its baseline, over all problems where both were measured interleaved.
struct Comparison {
  std::string subject{}, baseline{};
  std::string sentence{};
  HeatMap map{};
  Table table{};
};

struct Report {
  std::string title{}, subtitle{};
  std::vector<std::string> verdicts{};  // first: what came out
  std::vector<Comparison> comparisons{};
  std::vector<Group> groups{};
  Table provenance{};
  std::vector<std::string> caveats{};   // last: what limits it
};

Report make_report(const std::vector<Record>&);

std::string to_markdown(const Report&);
std::string to_html(const Report&);  // one page that needs nothing else

}  // namespace attune
