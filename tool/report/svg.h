// SPDX-License-Identifier: Apache-2.0
// Plots as static SVG text, which work in mail, in print and in a browser without scripts, and can be tested. Colours
// are classes (s0 ... s5 for series, h0 ... h6 for heat maps), so the page sets them for light and dark. A series also
// has its own marker and dash, so nothing depends on colour alone.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace attune {

// Escapes text and attribute values of HTML and SVG. Control characters become U+FFFD: XML cannot represent them.
std::string escaped(std::string_view);

// Maps values to a pixel range. A log scale takes values above 0.
struct Scale {
  double low = 0, high = 1;
  bool log = false;
  double from = 0, to = 1;  // pixels
  double at(double value) const;  // values outside are clamped
};

// Round values within the scale, about `count` at most: 1, 2 or 5 times a power of ten.
std::vector<double> ticks(const Scale&, int count = 6);

struct Point {
  double x = 0, y = 0;
  double low = 0, high = 0;  // interval of y
  std::string label{};       // shown on hover
};
struct Series {
  std::string name{};
  std::vector<Point> points{};  // by increasing x
  int look = -1;                // colour, marker and dash; below 0: by its position in the chart
  bool joined = true;           // connected by a line; false: only markers
};
struct Level {  // a horizontal line: a ceiling
  std::string name{};
  double y = 0;
};
struct Bound {  // a dashed line through points: a roof
  std::string name{};
  std::vector<Point> points{};
};

struct Chart {
  std::string title{}, x_label{}, y_label{};
  bool log_x = true, log_y = false;
  bool from_zero = true;                       // a linear y axis begins at 0, so that heights compare as ratios
  std::vector<double> x_ticks{};               // empty: automatic
  std::string (*x_text)(double) = nullptr;     // formats a tick; null: digits
  std::string (*y_text)(double) = nullptr;
  std::vector<Series> series{};
  std::vector<Level> levels{};
  std::vector<Bound> bounds{};
};
std::string draw(const Chart&);

// Ratios by row and column; a ratio of 0 is an empty cell.
struct HeatMap {
  std::string title{};
  std::vector<std::string> columns{}, rows{};
  struct Cell { double ratio = 0; std::string text{}, label{}; bool unclear = false; };  // unclear: grey
  std::vector<std::vector<Cell>> cells{};  // [row][column]
  // A threshold applies in this row from this column on; column == columns.size(): in none of them.
  struct Line { size_t row = 0, column = 0; std::string label{}; };
  std::vector<Line> lines{};
};
std::string draw(const HeatMap&);
// The samples of rows, each over the median of its row.
struct Strips {
  struct Row {
    std::string name{};
    int look = 0;
    std::string label{};
    std::vector<double> values{};  // sorted
  };
  std::string title{};
  std::vector<Row> rows{};
};
std::string draw(const Strips&);

int heat_class(double ratio);  // 0 much slower ... 3 the same ... 6 much faster

}  // namespace attune
