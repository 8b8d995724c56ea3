// The report as one HTML page: no network, no file beside it, readable without its script.
#include <fmt/format.h>

#include "tool/report/model.h"
#include "tool/report/page.h"

namespace attune {
namespace {

std::string list(const std::vector<std::string>& sentences, std::string_view type) {
  std::string html = fmt::format("<ul class=\"{}\">\n", type);
  for (const std::string& s : sentences) html += "<li>" + escaped(s) + "</li>\n";
  return html + "</ul>\n";
}

std::string tone(Tone t) { return t == Tone::good ? "good" : t == Tone::bad ? "bad" : t == Tone::weak ? "weak" : ""; }

// A column is one of numbers where any of its cells sorts by one.
bool numeric(const Table& t, size_t column) {
  for (const auto& row : t.rows)
    if (column < row.size() && !std::isnan(row[column].sort)) return true;
  return false;
}

std::string table(const Table& t) {
  std::string html = "<div class=\"scroll\"><table>\n<caption>" + escaped(t.caption) + "</caption>\n<thead><tr>";
  for (size_t c = 0; c < t.head.size(); ++c)
    html += fmt::format("<th scope=\"col\"{}>{}</th>", numeric(t, c) ? " class=\"n\"" : "", escaped(t.head[c]));
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : t.rows) {
    html += "<tr>";
    for (const TableCell& cell : row) {
      const bool number = !std::isnan(cell.sort);
      const std::string type = (number ? "n " : "") + tone(cell.tone);
      html += fmt::format("<td{}{}>{}</td>", type.empty() ? "" : " class=\"" + type + "\"",
                          number ? fmt::format(" data-v=\"{}\"", cell.sort) : "", escaped(cell.text));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string twin(const Table& t) {
  return "<details><summary>The same as a table</summary>" + table(t) + "</details>\n";
}

std::string figure(const std::string& svg, std::string_view caption, std::string_view type) {
  return fmt::format("<figure class=\"{}\"><figcaption>{}</figcaption>\n{}</figure>\n", type, escaped(caption), svg);
}

std::string comparison(const Comparison& c) {
  std::string html = "<h3>" + escaped(c.subject) + " against " + escaped(c.baseline) + "</h3>\n";
  if (!c.map.rows.empty())
    html += figure(draw(c.map),
                   "Times as fast, by problem and length. \u25B2 faster, \u25BC slower, = the same, ? unclear.", "map");
  return html + twin(c.table);
}

std::string group(const Group& g) {
  std::string html = "<h3>" + escaped(g.title) + "</h3>\n";
  if (g.charts.empty()) return html + table(g.table);
  html += "<div class=\"pair\">\n";
  for (const Chart& c : g.charts)
    html += figure(draw(c),
                   c.log_y ? "Time of one call; bands are 95 % intervals of the median; both axes logarithmic"
                           : "Rate over the pairs that are visible; the dashed line was measured on this machine",
                   "plot");
  return html + "</div>\n" + twin(g.table);
}

// Few origins with many fields: a list reads better than a table as wide as the page.
std::string origins(const Table& t) {
  std::string html;
  for (const auto& row : t.rows) {
    html += "<dl>\n";
    for (size_t c = 0; c < t.head.size() && c < row.size(); ++c)
      if (!row[c].text.empty())
        html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(t.head[c]), escaped(row[c].text));
    html += "</dl>\n";
  }
  return html;
}

}  // namespace

std::string to_html(const Report& r) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n"
      "<style>{}</style>\n</head>\n<body>\n<header>\n<h1>{}</h1>\n<p class=\"sub\">{}</p>\n</header>\n<main>\n",
      escaped(r.title), kPageStyle, escaped(r.title), escaped(r.subtitle));
  html += "<h2>Verdict</h2>\n" + list(r.verdicts, "verdict");
  if (!r.comparisons.empty()) html += "<h2>Against the baseline</h2>\n";
  for (const Comparison& c : r.comparisons) html += comparison(c);
  if (!r.groups.empty()) html += "<h2>Measurements</h2>\n";
  for (const Group& g : r.groups) html += group(g);
  html += "<h2>Provenance</h2>\n" + origins(r.provenance) + "<h2>Caveats</h2>\n" + list(r.caveats, "caveats");
  return html + "</main>\n<script>" + kPageScript + "</script>\n</body>\n</html>\n";
}

}  // namespace attune
