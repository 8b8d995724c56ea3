// SPDX-License-Identifier: Apache-2.0
// The report as Markdown, for a pull request or a repository: everything on the page except the plots.
#include "tool/report/model.h"
#include "tool/terminal.h"

namespace attune {
namespace {

// Escapes characters special to Markdown and HTML, and keeps a cell on one line.
std::string plain(std::string_view text) {
  std::string s;
  for (const char c : text) {
    if (c == '<') s += "&lt;";
    else if (c == '>') s += "&gt;";
    else if (c == '&') s += "&amp;";
    else if (c == '\n' || c == '\r' || c == '\t') s += ' ';
    else if (std::string_view("\\`*_[]|#!~$").find(c) != std::string_view::npos) s += {'\\', c};
    else s += c;
  }
  return s;
}

std::string table(const Table& t) {
  std::string md = "|", rule = "|";
  for (size_t c = 0; c < t.head.size(); ++c) {
    bool numeric = false;
    for (const auto& row : t.rows) numeric = numeric || (c < row.size() && !std::isnan(row[c].sort));
    md += join(" ", plain(t.head[c]), " |");
    rule += numeric ? "---:|" : "---|";
  }
  md += "\n" + rule + "\n";
  for (const auto& row : t.rows) {
    md += "|";
    for (const TableCell& cell : row) md += join(" ", plain(cell.text), " |");
    md += "\n";
  }
  return md + "\n";
}

std::string list(const std::vector<std::string>& sentences) {
  std::string md;
  for (const std::string& s : sentences) md += "- " + plain(s) + "\n";
  return md + "\n";
}

}  // namespace

std::string to_markdown(const Report& r) {
  std::string md = "# " + plain(r.title) + "\n\n" + plain(r.subtitle) + "\n\n## Verdict\n\n" + list(r.verdicts);
  if (!r.advice.empty()) md += "## What to use\n\n";
  for (const Advice& a : r.advice) {
    md += "- **" + plain(a.use) + ".** " + plain(a.sentence) + "\n";
    for (const std::string& e : a.exceptions) md += "  - " + plain(e) + "\n";
  }
  if (!r.advice.empty()) md += "\n";
  for (const Section& s : r.sections) {
    md += "## " + plain(s.title) + "\n\n";
    for (const std::string& note : s.notes) md += plain(note) + "\n\n";
    for (const Figure& f : s.figures) {
      if (!f.title.empty()) md += "### " + plain(f.title) + "\n\n";
      else if (!f.table.caption.empty()) md += plain(f.table.caption) + "\n\n";
      md += table(f.table);
    }
  }
  return shown(md + "## Provenance\n\n" + table(r.provenance) + "## Caveats\n\n" + list(r.caveats));
}

}  // namespace attune
