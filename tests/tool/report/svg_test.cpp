// SPDX-License-Identifier: Apache-2.0
#include "tool/report/svg.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/tool/spawn.h"

namespace attune {
namespace {

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

Chart small_chart() {
  Chart c{.title = "t", .x_label = "length", .y_label = "GFLOP/s"};
  c.series = {{"ours", {{512, 10, 9, 11, "a"}, {1024, 20, 19, 21, "b"}}},
              {"theirs", {{512, 8, 7, 9, "c"}, {1024, 9, 8, 10, "d"}}}};
  c.levels = {{"ceiling", 25}};
  return c;
}

TEST(Svg, markup_and_control_characters_are_escaped) {
  EXPECT_EQ(escaped("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
  EXPECT_EQ(escaped(std::string("a\0b\x1b", 4)), "a\xEF\xBF\xBD" "b\xEF\xBF\xBD");
  EXPECT_EQ(escaped("\u25B2 \u00E9"), "\u25B2 \u00E9");
}

TEST(Scale, maps_its_ends_and_clamps_what_is_outside) {
  const Scale linear{.low = 0, .high = 10, .log = false, .from = 100, .to = 0};  // pixels grow downwards
  EXPECT_DOUBLE_EQ(linear.at(0), 100);
  EXPECT_DOUBLE_EQ(linear.at(10), 0);
  EXPECT_DOUBLE_EQ(linear.at(2.5), 75);
  EXPECT_DOUBLE_EQ(linear.at(-5), 100);
  EXPECT_DOUBLE_EQ(linear.at(99), 0);
  EXPECT_DOUBLE_EQ(linear.at(NAN), 100);
}

TEST(Scale, logarithm_gives_equal_factors_equal_room) {
  const Scale s{.low = 1, .high = 1000, .log = true, .from = 0, .to = 300};
  EXPECT_NEAR(s.at(10), 100, 1e-9);
  EXPECT_NEAR(s.at(100), 200, 1e-9);
  EXPECT_NEAR(s.at(0), 0, 1e-9);
}

TEST(Scale, without_a_range_everything_is_in_the_middle) {
  EXPECT_DOUBLE_EQ((Scale{.low = 5, .high = 5, .log = false, .from = 0, .to = 10}.at(5)), 5);
}

TEST(Ticks, linear_ones_are_round_and_few) {
  EXPECT_EQ(ticks({.low = 0, .high = 90}), (std::vector<double>{0, 20, 40, 60, 80}));
  EXPECT_EQ(ticks({.low = 0, .high = 6}), (std::vector<double>{0, 1, 2, 3, 4, 5, 6}));
  for (const double high : {0.003, 0.7, 1.0, 13.0, 99.0, 1234.0, 5e9}) {
    const auto all = ticks({.low = 0, .high = high});
    EXPECT_GE(all.size(), 3u) << high;
    EXPECT_LE(all.size(), 8u) << high;
    for (const double t : all) EXPECT_LE(t, high);
  }
}

TEST(Ticks, logarithmic_ones_are_decades_where_there_are_many) {
  EXPECT_EQ(ticks({.low = 9, .high = 60, .log = true}), (std::vector<double>{10, 20, 50}));
  EXPECT_EQ(ticks({.low = 0.5, .high = 20000, .log = true}), (std::vector<double>{1, 10, 100, 1000, 10000}));
  EXPECT_LE(ticks({.low = 1e-9, .high = 1e9, .log = true}).size(), 8u);
}

TEST(Ticks, of_a_scale_without_a_range_are_none) {
  EXPECT_TRUE(ticks({.low = 1, .high = 1}).empty());
  EXPECT_TRUE(ticks({.low = 0, .high = 1, .log = true}).empty());
  EXPECT_TRUE(ticks({.low = 0, .high = std::numeric_limits<double>::infinity()}).empty());
}

TEST(Chart, has_a_line_a_band_and_markers_for_each_series) {
  const std::string svg = draw(small_chart());
  EXPECT_EQ(count(svg, "<g class=\"series"), 2);
  EXPECT_EQ(count(svg, "<polygon class=\"band\""), 2);
  EXPECT_EQ(count(svg, "<path class=\"line\""), 2);
  EXPECT_EQ(count(svg, "<title>"), 4);  // one per point
  EXPECT_EQ(count(svg, "class=\"level\""), 1);
  EXPECT_TRUE(has(svg, ">ours</text>"));
  EXPECT_TRUE(has(svg, ">ceiling</text>"));
  EXPECT_TRUE(has(svg, ">length</text>"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(Chart, higher_values_are_drawn_higher) {
  Chart c{.title = "t", .log_x = false};
  c.series = {{"s", {{1, 10, 10, 10, ""}, {2, 20, 20, 20, ""}}}};
  const std::string svg = draw(c);
  double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
  const char* path = svg.c_str() + svg.find("line\" d=\"M");
  ASSERT_EQ(std::sscanf(path, "line\" d=\"M%lf %lfL%lf %lf", &x1, &y1, &x2, &y2), 4) << svg;
  EXPECT_GT(x2, x1);
  EXPECT_LT(y2, y1);                              // pixels grow downwards
  EXPECT_NEAR((314 - y2) / (314 - y1), 2, 0.01);  // the axis is at 314 and starts at 0, so heights compare as ratios
}

TEST(Chart, hostile_names_and_numbers_stay_text) {
  Chart c{.title = "\"><script>", .x_label = "<b>", .log_y = true};
  c.series = {{"<i>", {{1, NAN, -1, std::numeric_limits<double>::infinity(), "</title><script>"}, {2, 0, 0, 0, ""}}},
              {"", {}}};
  c.levels = {{"<u>", NAN}};
  const std::string svg = draw(c);
  for (const char* bad : {"<script", "<b>", "<i>", "<u>", "nan", "inf"})
    EXPECT_FALSE(has(svg, bad)) << bad << "\n" << svg;
}

TEST(Chart, without_points_is_still_a_picture) { EXPECT_TRUE(draw(Chart{.title = "empty"}).ends_with("</svg>\n")); }

TEST(HeatMap, class_says_how_far_from_the_same) {
  EXPECT_EQ(heat_class(0.4), 0);
  EXPECT_EQ(heat_class(0.7), 1);
  EXPECT_EQ(heat_class(0.9), 2);
  EXPECT_EQ(heat_class(1.0), 3);
  EXPECT_EQ(heat_class(1.1), 4);
  EXPECT_EQ(heat_class(1.5), 5);
  EXPECT_EQ(heat_class(3.0), 6);
}

TEST(HeatMap, draws_every_cell_and_marks_what_was_not_measured) {
  HeatMap map{.title = "m", .columns = {"512", "1K"}, .rows = {"a<b", "c"}};
  map.cells = {{{1.5, "1.50x", "first"}, {}}, {{0.4, "0.40x", "third"}, {1.0, "1.00x", "fourth"}}};
  const std::string svg = draw(map);
  EXPECT_EQ(count(svg, "<rect"), 4);
  EXPECT_EQ(count(svg, "class=\"cell none\""), 1);
  EXPECT_EQ(count(svg, "not measured"), 1);
  EXPECT_TRUE(has(svg, "class=\"cell h5\""));
  EXPECT_TRUE(has(svg, "class=\"cell h0\""));
  EXPECT_TRUE(has(svg, "a&lt;b"));
}

}  // namespace
}  // namespace attune
