// SPDX-License-Identifier: Apache-2.0
// The report as one HTML page: no network, no other files, readable without its script. Its Content-Security-Policy
// allows only this style and this script, by their hashes; a served page may also query its own origin.
#include <fmt/format.h>

#include <algorithm>

#include "tool/record/sha256.h"
#include "tool/report/model.h"
#include "tool/report/script.h"
#include "tool/report/style.h"

namespace attune {
namespace {

std::string list(const std::vector<std::string>& sentences, std::string_view type) {
  std::string html = fmt::format("<ul class=\"{}\">\n", type);
  for (const std::string& s : sentences) html += "<li>" + escaped(s) + "</li>\n";
  return html + "</ul>\n";
}

std::string tone(Tone t) { return t == Tone::good ? "good" : t == Tone::bad ? "bad" : t == Tone::weak ? "weak" : ""; }

// A column is numeric if any of its cells sorts by a number.
bool numeric(const Table& t, size_t column) {
  for (const auto& row : t.rows)
    if (column < row.size() && !std::isnan(row[column].sort)) return true;
  return false;
}

// The sort key; seven digits sort as well as seventeen. It is omitted if the text begins with the number and its unit
// cannot differ between cells: the script then reads the text.
std::string sort_value(const TableCell& cell) {
  const size_t end = cell.text.find_first_not_of("0123456789.");
  const std::string_view unit = std::string_view(cell.text).substr(std::min(end, cell.text.size()));
  if (end != 0 && (unit.empty() || unit == "x" || unit == " %")) return "";
  return fmt::format(" data-v=\"{:.7g}\"", std::clamp(cell.sort, -1e308, 1e308));  // JavaScript cannot parse "inf"
}

// Cells and rows have no end tags, as HTML allows; they would be a sixth of a large page.
std::string table(const Table& t) {
  std::string html = fmt::format("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table",
                                 escaped(t.caption.empty() ? "table" : t.caption));
  if (!t.facets.empty()) html += fmt::format(" data-facets=\"{}\"", fmt::join(t.facets, ","));
  html += ">\n<caption>" + escaped(t.caption) + "</caption>\n<thead><tr>";
  for (size_t c = 0; c < t.head.size(); ++c)
    html += fmt::format("<th scope=col{}>{}", numeric(t, c) ? " class=n" : "", escaped(t.head[c]));
  html += "</thead>\n<tbody>\n";
  for (const auto& row : t.rows) {
    html += "<tr>";
    for (const TableCell& cell : row) {
      const bool number = !std::isnan(cell.sort);
      const std::string type = (number ? "n" : "") + std::string(number && cell.tone != Tone::plain ? " " : "") +
                               tone(cell.tone);
      const std::string_view quote = type.find(' ') == type.npos ? "" : "\"";
      html += fmt::format("<td{}{}>{}", type.empty() ? "" : join(" class=", quote, type, quote),
                          number ? sort_value(cell) : "", escaped(cell.text));
    }
    html += "\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string figure(const Plot& plot) {
  const bool map = std::holds_alternative<HeatMap>(plot.drawing);
  const std::string svg = std::visit([](const auto& drawing) { return draw(drawing); }, plot.drawing);
  const std::string caption =
      plot.caption.empty() ? "" : "<figcaption>" + escaped(plot.caption) + "</figcaption>\n";
  return fmt::format("<figure class=\"{}\" tabindex=\"0\">{}{}</figure>\n", map ? "map" : "plot", caption, svg);
}

std::string figure(const Figure& f) {
  std::string html = "<div class=\"figure\">\n";
  if (!f.title.empty()) html += "<h3>" + escaped(f.title) + "</h3>\n";
  if (f.plots.empty()) return html + table(f.table) + "</div>\n";
  html += "<div class=\"pair\">\n";
  for (const Plot& p : f.plots) html += figure(p);
  return html + "</div>\n<details><summary>The same as a table</summary>" + table(f.table) + "</details>\n</div>\n";
}

std::string section(std::string_view id, std::string_view title, const std::string& body) {
  return fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", escaped(id), escaped(title), body);
}

std::string facts(const std::vector<Fact>& all) {
  std::string html = "<div class=\"facts\">\n";
  for (const Fact& f : all)
    html += fmt::format("<div class=\"fact\"><b class=\"{}\">{}</b><span>{}</span><small>{}</small></div>\n",
                        tone(f.tone), escaped(f.value), escaped(f.name), escaped(f.detail));
  return html + "</div>\n";
}

std::string uses(const std::vector<Advice>& all) {
  std::string html = "<div class=\"uses\">\n";
  for (const Advice& a : all) {
    html += "<div class=\"use\"><h3>" + escaped(a.use) + "</h3><p>" + escaped(a.sentence) + "</p>";
    if (!a.exceptions.empty()) html += list(a.exceptions, "but");
    html += "</div>\n";
  }
  return html + "</div>\n";
}

// Origins are few and have many fields, so a list reads better than a wide table. Many are folded.
std::string origins(const Table& t) {
  constexpr size_t kMostOpen = 4;
  const bool many = t.rows.size() > kMostOpen;
  std::string html = many ? fmt::format("<details><summary>{} origins</summary>\n", t.rows.size()) : "";
  for (const auto& row : t.rows) {
    html += "<dl>\n";
    for (size_t c = 0; c < t.head.size() && c < row.size(); ++c)
      if (!row[c].text.empty())
        html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(t.head[c]), escaped(row[c].text));
    html += "</dl>\n";
  }
  return html + (many ? "</details>\n" : "");
}

}  // namespace

std::string to_html(const Report& r, const std::string& revision) {
  const bool live = !revision.empty();
  const std::string style = kPageStyle, script = std::string(kPageScript) + (live ? kLiveScript : "");
  std::string nav, body = facts(r.facts);
  const auto add = [&](std::string_view id, std::string_view title, const std::string& inside) {
    nav += fmt::format("<a href=\"#{}\">{}</a>\n", escaped(id), escaped(title));
    body += section(id, title, inside);
  };
  add("verdict", "Verdict", list(r.verdicts, "verdict"));
  if (!r.advice.empty()) add("use", "What to use", uses(r.advice));
  for (const Section& s : r.sections) {
    std::string inside;
    for (const std::string& note : s.notes) inside += "<p class=\"note\">" + escaped(note) + "</p>\n";
    for (const Figure& f : s.figures) inside += figure(f);
    add(s.id, s.title, inside);
  }
  add("provenance", "Provenance", origins(r.provenance));
  add("caveats", "Caveats", list(r.caveats, "caveats"));

  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"{}>\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{}'; "
      "script-src 'sha256-{}';{} img-src data:; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n"
      "<link rel=\"icon\" href=\"data:,\">\n<style>{}</style>\n</head>\n<body>\n"
      "<header><div><h1>{}</h1><p class=\"sub\">{}</p></div>{}</header>\n<nav><div>\n{}</div></nav>\n"
      "<main>\n{}</main>\n<script>{}</script>\n</body>\n</html>\n",
      live ? " data-revision=\"" + escaped(revision) + "\"" : "", sha256_base64(style), sha256_base64(script),
      live ? " connect-src 'self';" : "", escaped(r.title), style, escaped(r.title), escaped(r.subtitle),
      live ? "<span id=\"live\" role=\"status\"></span>" : "", nav, body, script);
}

}  // namespace attune
