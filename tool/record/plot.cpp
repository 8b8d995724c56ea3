// SPDX-License-Identifier: Apache-2.0
#include "tool/record/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/problem.h"
#include "tool/text.h"

namespace attune {
namespace {

struct Point {
  double length, seconds;
};
using Series = std::map<std::string, std::vector<Point>>;  // by subject

// The row without its lengths, which is the title of one plot. The batch is left out too, because it may shrink as
// lengths grow.
std::string kind_of(const Record& r, const Problem& p) {
  Problem same = p;
  const bool square = p.len_q == p.len_k;
  same.batch = 1, same.len_k = 1, same.len_q = square ? 1 : p.len_q;
  std::string text = name(same);
  const auto replace = [&](const std::string& from, const std::string& to) {
    if (const size_t at = text.find(from); at != text.npos) text.replace(at, from.size(), to);
  };
  replace(" b1 ", " ");
  replace(square ? " q1 k1 " : " k1 ", " ");
  return join(text, r.pattern.empty() ? "" : " | ", r.pattern, ", ", timing_text(r), r.threads ? join(", ", r.threads,
              r.threads == 1 ? " thread" : " threads") : "");
}

double place(double x, double low, double high) {
  return high > low ? (std::log(x) - std::log(low)) / (std::log(high) - std::log(low)) : 0.5;
}

std::string picture(const std::string& title, const Series& series, int columns, int lines) {
  double low = INFINITY, high = 0, shortest = INFINITY, longest = 0;
  std::set<double> lengths;
  for (const auto& [subject, points] : series)
    for (const Point& p : points) {
      low = std::min(low, p.seconds), high = std::max(high, p.seconds);
      shortest = std::min(shortest, p.length), longest = std::max(longest, p.length);
      lengths.insert(p.length);
    }
  std::vector<std::string> grid(size_t(lines), std::string(size_t(columns), ' '));
  const auto column = [&](double length) {
    return size_t(std::lround(place(length, shortest, longest) * (columns - 1)));
  };
  std::string legend;
  char letter = 'a';
  for (const auto& [subject, points] : series) {
    for (const Point& p : points) {
      const auto row = size_t(std::lround((1 - place(p.seconds, low, high)) * (lines - 1)));
      char& cell = grid[row][column(p.length)];
      cell = cell == ' ' ? letter : '*';
    }
    legend += fmt::format("{}{} {}", legend.empty() ? "" : "   ", letter, subject);
    letter = letter == 'z' ? 'A' : char(letter + 1);
  }
  std::string text = title + "\n";
  for (int n = 0; n < lines; ++n) {
    const bool labelled = n == 0 || n == lines - 1 || n == lines / 2;
    const double share = 1 - double(n) / std::max(1, lines - 1);
    const std::string label = labelled ? seconds_text(low * std::pow(high / low, share)) : "";
    std::string line = fmt::format("{:>9} |{}", label, grid[size_t(n)]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  std::string ticks(size_t(columns) + 8, ' ');
  size_t free = 0;
  for (const double length : lengths) {
    const std::string tick = fmt::format("{:.0f}", length);
    const size_t at = column(length);
    if (at < free || at + tick.size() > ticks.size()) continue;
    ticks.replace(at, tick.size(), tick);
    free = at + tick.size() + 1;
  }
  ticks.erase(ticks.find_last_not_of(' ') + 1);
  return text + fmt::format("{:>9} +{}\n{:>9}  {} keys\n{:>9}  {}\n", "", std::string(size_t(columns), '-'), "", ticks,
                            "", legend);
}

}  // namespace

std::string plot(const std::vector<Record>& records, int columns, int lines) {
  std::vector<std::string> order;
  std::map<std::string, Series> kinds;
  for (const Record& r : records) {
    Problem p;
    if (r.median_ns <= 0 || r.status != RecordStatus::ok || !parse(r.problem, p).ok()) continue;
    const std::string kind = kind_of(r, p);
    if (!kinds.contains(kind)) order.push_back(kind);
    kinds[kind][r.subject].push_back({double(p.len_k), r.median_ns * 1e-9});
  }
  std::string text;
  for (const std::string& kind : order) {
    const Series& series = kinds[kind];
    std::set<double> lengths;
    for (const auto& [subject, points] : series)
      for (const Point& p : points) lengths.insert(p.length);
    if (lengths.size() > 1) text += (text.empty() ? "" : "\n") + picture(kind, series, columns, lines);
  }
  return text;
}

}  // namespace attune
