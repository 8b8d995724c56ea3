// Plots as static SVG text: they work in mail, print and a browser without a script, and a test can read them. Colours
// are classes (s0 ... s5 for series, h0 ... h6 for heat), so the page decides them for light and dark; a series has its
// own marker and dash too, so nothing depends on colour alone.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace attune {

// For text and attribute values of HTML and SVG. Control characters become U+FFFD: XML has no way to write them.
std::string escaped(std::string_view);

// From values to a pixel range. A log scale takes values above 0.
struct Scale {
  double low = 0, high = 1;
  bool log = false;
  double from = 0, to = 1;  // pixels
  double at(double value) const;  // outside values are clamped to the ends
};

// Round values inside the scale, at most about `count` of them: 1, 2 or 5 times a power of ten.
std::vector<double> ticks(const Scale&, int count = 6);

struct Point {
  double x = 0, y = 0;
  double low = 0, high = 0;  // the interval of y
  std::string label{};       // shown on hover
};
struct Series {
  std::string name{};
  std::vector<Point> points{};  // by rising x
  int look = -1;                // colour, marker and dash; below 0: those of its place in the chart
  bool joined = true;           // by a line; false: markers alone
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
  std::vector<double> x_ticks{};               // empty: chosen
  std::string (*x_text)(double) = nullptr;     // how a tick is written; null: digits
  std::string (*y_text)(double) = nullptr;
  std::vector<Series> series{};
  std::vector<Level> levels{};
  std::vector<Bound> bounds{};
};
std::string draw(const Chart&);

// Ratios by row and column; 0 is an empty cell.
struct HeatMap {
  std::string title{};
  std::vector<std::string> columns{}, rows{};
  struct Cell { double ratio = 0; std::string text{}, label{}; };
  std::vector<std::vector<Cell>> cells{};  // [row][column]
  // From this column on a threshold holds in this row; as many columns as there are: nowhere here.
  struct Line { size_t row = 0, column = 0; std::string label{}; };
  std::vector<Line> lines{};
};
std::string draw(const HeatMap&);
int heat_class(double ratio);  // 0 much slower ... 3 the same ... 6 much faster

}  // namespace attune
