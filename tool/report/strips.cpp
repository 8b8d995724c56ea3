// SPDX-License-Identifier: Apache-2.0
// Distributions as strips: one row per measurement, a stroke per sample at its time relative to the row's median.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tool/report/svg.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr double kWidth = 640, kRow = 20, kTop = 8, kBottom = 44, kRight = 16, kLetter = 6.6;
constexpr int kColours = 6;

std::string px(double x) { return without_zeros(fmt::format("{:.1f}", x)); }

// Strokes of one row as a single path; strokes on the same tenth of a pixel are one.
std::string strokes(const std::vector<double>& values, const Scale& x, double y, double height) {
  std::string d, before;
  for (const double v : values) {
    const std::string at = px(x.at(v));
    if (at != before) d += fmt::format("M{} {}v{}", at, px(y), px(height));
    before = at;
  }
  return d;
}

}  // namespace

std::string draw(const Strips& strips) {
  size_t longest = 0;
  for (const Strips::Row& row : strips.rows) longest = std::max(longest, row.name.size());
  const double left = std::min(300.0, 14 + kLetter * double(longest));
  const double height = kTop + kRow * double(strips.rows.size()) + kBottom;
  // From the fastest to a little beyond the slowest of most: a single outlier would leave the rest in one pixel.
  double low = 1, high = 1;
  for (const Strips::Row& row : strips.rows)
    if (!row.values.empty()) {
      low = std::min(low, row.values.front());
      high = std::max(high, row.values[row.values.size() * 95 / 100]);
    }
  const Scale x{.low = std::max(0.2, low - 0.02), .high = std::min(5.0, high * 1.03 + 0.02), .log = false,
                .from = left, .to = kWidth - kRight};
  std::string svg = fmt::format("<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" role=\"img\" aria-label=\"{2}\">\n",
                                px(kWidth), px(height), escaped(strips.title));
  const double base = kTop + kRow * double(strips.rows.size());
  std::string grid, names;
  for (const double v : ticks(x, 6)) {
    grid += fmt::format("M{} {}V{}", px(x.at(v)), px(base), px(kTop));
    names += fmt::format("<text x=\"{}\" y=\"{}\">{}x</text>\n", px(x.at(v)), px(base + 17),
                         without_zeros(digits_text(v)));
  }
  svg += "<path class=\"grid\" d=\"" + grid + "\"/>\n<g text-anchor=\"middle\">\n" + names + "</g>\n";
  svg += fmt::format("<text class=\"label\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">time of a sample over the median "
                     "of its row</text>\n", px((x.from + x.to) / 2), px(height - 8));
  for (size_t n = 0; n < strips.rows.size(); ++n) {
    const Strips::Row& row = strips.rows[n];
    const double y = kTop + kRow * double(n);
    svg += fmt::format("<text class=\"name\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", px(left - 8),
                       px(y + 14), escaped(row.name));
    svg += fmt::format("<g class=\"s{} d{}\"><path class=\"stroke\" d=\"{}\"/>", row.look % kColours, row.look % 4,
                       strokes(row.values, x, y + 4, kRow - 8));
    svg += fmt::format("<circle class=\"dot\" cx=\"{}\" cy=\"{}\" r=\"4\"><title>{}</title></circle></g>\n",
                       px(x.at(1)), px(y + kRow / 2), escaped(row.label));
  }
  return svg + "</svg>\n";
}

}  // namespace attune
