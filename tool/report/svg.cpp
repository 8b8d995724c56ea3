// SPDX-License-Identifier: Apache-2.0
#include "tool/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tool/text.h"

namespace attune {
namespace {

constexpr double kWidth = 640, kHeight = 360, kLeft = 72, kRight = 16, kBottom = 46;
constexpr double kLetter = 6.6;  // average width of a letter at 12 px, in pixels
constexpr int kColours = 6;

// Tenths of a pixel suffice, and a page has tens of thousands of coordinates.
std::string px(double x) {
  std::string s = fmt::format("{:.1f}", x);
  if (s.ends_with(".0")) s.resize(s.size() - 2);
  return s;
}

std::string open(double width, double height, std::string_view title) {
  return fmt::format("<svg viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" role=\"img\" aria-label=\"{2}\">\n", width,
                     height, escaped(title));
}

std::string text(double x, double y, std::string_view anchor, std::string_view words, std::string_view type = "tick") {
  return fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", type, px(x), px(y), anchor,
                     escaped(words));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view type) {
  return fmt::format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", type, px(x1), px(y1), px(x2),
                     px(y2));
}

// One shape per series: circle, square, diamond, triangle, then again.
std::string marker(int shape, double x, double y, std::string_view label) {
  const std::string hover = label.empty() ? "" : "<title>" + escaped(label) + "</title>";
  const double r = 4;
  switch (shape % 4) {
    case 0:
      return fmt::format("<circle class=\"dot\" cx=\"{}\" cy=\"{}\" r=\"{}\">{}</circle>\n", px(x), px(y), r, hover);
    case 1:
      return fmt::format("<rect class=\"dot\" x=\"{}\" y=\"{}\" width=\"7\" height=\"7\">{}</rect>\n", px(x - 3.5),
                         px(y - 3.5), hover);
    case 2:
      return fmt::format("<path class=\"dot\" d=\"M{} {}l5 5l-5 5l-5 -5z\">{}</path>\n", px(x), px(y - 5), hover);
    default: return fmt::format("<path class=\"dot\" d=\"M{} {}l5 9h-10z\">{}</path>\n", px(x), px(y - 5), hover);
  }
}

std::string path(const std::vector<Point>& points, const Scale& x, const Scale& y, std::string_view type) {
  std::string d;
  for (const Point& p : points) d += fmt::format("{}{} {}", d.empty() ? "M" : "L", px(x.at(p.x)), px(y.at(p.y)));
  return d.empty() ? "" : fmt::format("<path class=\"{}\" d=\"{}\"/>\n", type, d);
}

std::string band(const Series& series, const Scale& x, const Scale& y) {
  if (series.points.size() < 2) return "";
  std::string there, back;
  for (const Point& p : series.points) {
    there += fmt::format("{},{} ", px(x.at(p.x)), px(y.at(p.high)));
    back = fmt::format("{},{} ", px(x.at(p.x)), px(y.at(p.low))) + back;
  }
  return fmt::format("<polygon class=\"band\" points=\"{}{}\"/>\n", there, back);
}

int look_of(const Chart& chart, size_t n) { return chart.series[n].look >= 0 ? chart.series[n].look : int(n); }

// The names of the series in rows across the top. Sets `bottom` to where the plot may begin.
std::string legend(const Chart& chart, double& bottom) {
  std::string svg;
  double x = kLeft, y = 16;
  for (size_t n = 0; n < chart.series.size(); ++n) {
    const double width = 34 + kLetter * double(chart.series[n].name.size()) + 12;
    if (x + width > kWidth && x > kLeft) x = kLeft, y += 18;
    const int look = look_of(chart, n);
    svg += fmt::format("<g class=\"key s{} d{}\" data-series=\"{}\">\n", look % kColours, look % 4, n);
    if (chart.series[n].joined) svg += line(x, y - 4, x + 26, y - 4, "line");
    svg += marker(look, x + 13, y - 4, "");
    svg += text(x + 32, y, "start", chart.series[n].name, "name") + "</g>\n";
    x += width;
  }
  bottom = y + 12;
  return svg;
}

// The range of all values with a margin. A linear axis begins at 0, so that heights compare as ratios.
Scale range(const Chart& chart, bool vertical) {
  double low = INFINITY, high = -INFINITY;
  const auto take = [&](double v) {
    if (!std::isfinite(v) || v <= 0) return;
    v = std::clamp(v, 1e-300, 1e300);  // keeps the margin around it finite
    low = std::min(low, v), high = std::max(high, v);
  };
  for (const Series& s : chart.series)
    for (const Point& p : s.points) {
      if (vertical) take(p.low), take(p.y), take(p.high);
      else take(p.x);
    }
  if (vertical) for (const Level& l : chart.levels) take(l.y);
  for (const Bound& b : chart.bounds)
    for (const Point& p : b.points) take(vertical ? p.y : p.x);
  const bool log = vertical ? chart.log_y : chart.log_x;
  if (!(low <= high)) low = 1, high = 10;
  if (!log && (!vertical || chart.from_zero)) return {0, high * 1.08, false};
  if (!log) {
    const double air = high > low ? 0.08 * (high - low) : 0.05 * high;
    return {low - air, high + air, false};
  }
  const double air = vertical ? 1.25 : 1.12;
  return {low / air, high * air, true};
}

}  // namespace

std::string escaped(std::string_view raw) {
  std::string s;
  for (const char c : raw) {
    if (c == '&') s += "&amp;";
    else if (c == '<') s += "&lt;";
    else if (c == '>') s += "&gt;";
    else if (c == '"') s += "&quot;";
    else if (c == '\'') s += "&#39;";
    else if ((uint8_t(c) < ' ' && c != '\n' && c != '\t') || c == 127) s += "\xEF\xBF\xBD";
    else s += c;
  }
  return s;
}

double Scale::at(double value) const {
  if (!(value >= low)) value = low;  // NaN too
  if (value > high) value = high;
  if (high <= low) return (from + to) / 2;
  const double share = log ? (std::log(value) - std::log(low)) / (std::log(high) - std::log(low))
                           : (value - low) / (high - low);
  return from + share * (to - from);
}

std::vector<double> ticks(const Scale& s, int count) {
  std::vector<double> all;
  if (!(s.high > s.low) || (s.log && s.low <= 0) || !std::isfinite(s.high) || !std::isfinite(s.low)) return all;
  if (!s.log) {
    const double rough = (s.high - s.low) / count, ten = std::pow(10.0, std::floor(std::log10(rough)));
    double step = 10 * ten;
    for (const double m : {5.0, 2.0, 1.0})
      if (m * ten >= rough) step = m * ten;
    for (int64_t n = int64_t(std::ceil(s.low / step)); double(n) * step <= s.high; ++n) all.push_back(double(n) * step);
    return all;
  }
  const int first = int(std::floor(std::log10(s.low))), last = int(std::ceil(std::log10(s.high)));
  const int decades = last - first, stride = std::max(1, decades / count);
  for (int e = first; e <= last; e += stride)
    for (const double m : {1.0, 2.0, 5.0}) {
      const double v = m * std::pow(10.0, e);
      if ((m == 1 || decades <= count / 2) && v >= s.low && v <= s.high) all.push_back(v);
    }
  return all;
}

std::string draw(const Chart& chart) {
  double top = 0;
  const std::string names = legend(chart, top);
  Scale x = range(chart, false), y = range(chart, true);
  x.from = kLeft, x.to = kWidth - kRight;
  y.from = kHeight - kBottom, y.to = top;
  const auto words = [](auto write, double v) { return write ? write(v) : without_zeros(digits_text(v)); };

  std::string svg = open(kWidth, kHeight, chart.title);
  std::string grid, x_names, y_names;
  double last = -1e9;
  const auto named = [](double at_x, double at_y, const std::string& label) {
    return fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", px(at_x), px(at_y), escaped(label));
  };
  for (const double v : chart.x_ticks.empty() ? ticks(x) : chart.x_ticks) {
    const std::string label = words(chart.x_text, v);
    grid += fmt::format("M{} {}V{}", px(x.at(v)), px(y.from), px(y.to));
    if (x.at(v) - last < kLetter * double(label.size()) + 6) continue;  // no room for the label
    x_names += named(last = x.at(v), y.from + 17, label);
  }
  for (const double v : ticks(y)) {
    grid += fmt::format("M{} {}H{}", px(x.from), px(y.at(v)), px(x.to));
    y_names += named(x.from - 7, y.at(v) + 4, words(chart.y_text, v));
  }
  svg += "<path class=\"grid\" d=\"" + grid + "\"/>\n";
  svg += "<g text-anchor=\"middle\">\n" + x_names + "</g>\n<g text-anchor=\"end\">\n" + y_names + "</g>\n";
  svg += line(x.from, y.from, x.to, y.from, "axis");
  svg += text((x.from + x.to) / 2, kHeight - 8, "middle", chart.x_label, "label");
  svg +=
      fmt::format("<text class=\"label\" transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                  px((y.from + y.to) / 2), escaped(chart.y_label));
  for (const Level& l : chart.levels) {
    svg += line(x.from, y.at(l.y), x.to, y.at(l.y), "level");
    svg += text(x.to - 4, y.at(l.y) - 5, "end", l.name, "name");
  }
  for (const Bound& b : chart.bounds) {
    svg += path(b.points, x, y, "level");
    if (b.points.empty()) continue;
    const Point& last_point = b.points.back();
    svg += text(x.at(last_point.x) - 4, y.at(last_point.y) - 6, "end", b.name, "name");
  }
  for (size_t n = 0; n < chart.series.size(); ++n) {
    const Series& s = chart.series[n];
    const int look = look_of(chart, n);
    svg += fmt::format("<g class=\"series s{} d{}\" data-series=\"{}\">\n", look % kColours, look % 4, n);
    if (s.joined) svg += band(s, x, y) + path(s.points, x, y, "line");
    for (const Point& p : s.points) svg += marker(look, x.at(p.x), y.at(p.y), p.label);
    svg += "</g>\n";
  }
  return svg + names + "</svg>\n";
}

int heat_class(double ratio) {
  constexpr double kEdge[] = {0.5, 0.8, 0.95, 1.05, 1.25, 2.0};
  int n = 0;
  while (n < 6 && ratio > kEdge[n]) ++n;
  return n;
}

std::string draw(const HeatMap& map) {
  constexpr double kCellWidth = 88, kCellHeight = 30, kTop = 26;
  size_t longest = 0;
  for (const std::string& r : map.rows) longest = std::max(longest, r.size());
  const double left = std::min(420.0, 14 + kLetter * double(longest));
  std::string svg = open(left + kCellWidth * double(map.columns.size()) + 2,
                         kTop + kCellHeight * double(map.rows.size()) + 2, map.title);
  for (size_t c = 0; c < map.columns.size(); ++c)
    svg += text(left + kCellWidth * (double(c) + 0.5), 17, "middle", map.columns[c]);
  for (size_t r = 0; r < map.rows.size(); ++r) {
    const double y = kTop + kCellHeight * double(r);
    svg += text(left - 8, y + 19, "end", map.rows[r], "name");
    for (size_t c = 0; c < map.columns.size() && c < map.cells[r].size(); ++c) {
      const auto& cell = map.cells[r][c];
      const double x = left + kCellWidth * double(c);
      const bool filled = cell.ratio > 0;
      svg += fmt::format(
          "<g class=\"cell {}\"><title>{}</title><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\"/>",
          !filled ? "none" : cell.unclear ? "unclear" : fmt::format("h{}", heat_class(cell.ratio)),
          escaped(cell.label.empty() ? "not measured" : cell.label), px(x + 1), px(y + 1), px(kCellWidth - 2),
          px(kCellHeight - 2));
      svg += text(x + kCellWidth / 2, y + 20, "middle", filled ? cell.text : "", "heat") + "</g>\n";
    }
  }
  for (const HeatMap::Line& l : map.lines) {
    if (l.row >= map.rows.size() || l.column >= map.columns.size()) continue;
    const double x = left + kCellWidth * double(l.column), y = kTop + kCellHeight * double(l.row);
    svg += fmt::format("<g class=\"threshold\"><title>{}</title><path d=\"M{} {}v{}\"/></g>\n", escaped(l.label), px(x),
                       px(y - 1), px(kCellHeight + 2));
  }
  return svg + "</svg>\n";
}

}  // namespace attune
