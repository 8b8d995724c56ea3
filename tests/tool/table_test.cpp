// SPDX-License-Identifier: Apache-2.0
// Tables and sentences at the width of a terminal.
#include "tool/table.h"

#include <gtest/gtest.h>

#include "tests/tool/spawn.h"
#include "tool/terminal.h"

namespace attune {
namespace {

using Shared = TextColumn::Shared;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> all;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    all.push_back(text.substr(at, end - at)), at = end + 1;
  }
  return all;
}

size_t widest(const std::string& text) {
  size_t most = 0;
  for (const std::string& line : lines_of(text)) most = std::max(most, display_width(line));
  return most;
}

TextTable table_of_rows() {
  TextTable t{.columns = {{"verdict"}, {"problem", Cells::text, Shared::line}, {"subject"}, {"median", Cells::number},
                          {"empty"}, {"", Cells::text, Shared::fact}, {"note"}}};
  t.rows = {{"FASTER", "forward f32 b1 q512 d64 causal", "cpu_forward", "1.23 ms", "-", "warm", ""},
            {"SLOWER", "forward f32 b1 q1024 d64 causal", "cpu_standard", "41.5 ms", "-", "warm",
             "other processes took 48 % of 2 CPUs, threads waited for a CPU"}};
  return t;
}

TEST(Table, what_all_rows_share_is_its_title_and_empty_columns_are_left_out) {
  EXPECT_EQ(to_text(table_of_rows(), 0),
            "forward f32 b1 d64 causal, warm\n"
            "verdict  problem  subject        median  note\n"
            "FASTER   q512     cpu_forward   1.23 ms\n"
            "SLOWER   q1024    cpu_standard  41.5 ms  other processes took 48 % of 2 CPUs, threads waited for a CPU\n");
}

TEST(Table, a_cell_of_text_takes_several_lines_where_the_table_is_too_wide) {
  EXPECT_EQ(to_text(table_of_rows(), 72),
            "forward f32 b1 d64 causal, warm\n"
            "verdict  problem  subject        median  note\n"
            "FASTER   q512     cpu_forward   1.23 ms\n"
            "SLOWER   q1024    cpu_standard  41.5 ms  other processes took 48 % of 2\n"
            "                                         CPUs, threads waited for a CPU\n");
}

TEST(Table, rows_are_paragraphs_where_columns_would_be_too_narrow) {
  const std::string text = to_text(table_of_rows(), 30);
  EXPECT_TRUE(has(text, "SLOWER, q1024, subject\ncpu_standard, median 41.5 ms,")) << text;
  EXPECT_LE(widest(text), 30u) << text;
}

TEST(Table, fits_every_width) {
  for (int width = 20; width < 160; ++width) EXPECT_LE(widest(to_text(table_of_rows(), width)), size_t(width)) << width;
}

TEST(Table, marks_of_colour_take_no_room) {
  TextTable t{.columns = {{"a"}, {"b"}}};
  t.rows = {{std::string(kGreen) + "PASS" + std::string(kPlain), "x"}, {"SAME", "± y"}};
  const std::vector<std::string> lines = lines_of(to_text(t, 0));
  EXPECT_EQ(lines[1], std::string(kGreen) + "PASS" + std::string(kPlain) + "  x");
  EXPECT_EQ(lines[2], "SAME  ± y");
}

TEST(Table, widths_are_columns_not_bytes_or_characters) {
  EXPECT_EQ(display_width("\u00fc"), 1u);
  EXPECT_EQ(display_width("u\u0308"), 1u) << "a combining character";
  EXPECT_EQ(display_width("\u6ce8\u610f"), 4u);
  EXPECT_EQ(display_width("\U0001f600"), 2u);
  EXPECT_EQ(display_width("\xff\x80"), 2u) << "bytes that are not UTF-8";
  EXPECT_EQ(cut_to("\u6ce8\u610f\u529b\u529b", 7), "\u6ce8\u610f...");
  EXPECT_TRUE(wrapped("\u6ce8\u610f", 1).starts_with("\u6ce8\n\u610f")) << "no room for even one of them";
  EXPECT_EQ(wrapped("\u6ce8\u610f\u529b", 4), "\u6ce8\u610f\n\u529b");
}

TEST(Table, a_cell_that_equals_the_one_above_is_blank_in_its_group) {
  TextTable t{.columns = {{"subject"}, {"problem"}}, .group = 1};
  t.rows = {{"a", "one"}, {"b", "one"}, {"c", "two"}};
  EXPECT_EQ(to_text(t, 0), "subject  problem\na        one\nb\nc        two\n");
}

TEST(Table, a_variant_is_one_word_of_a_problem) {
  const SharedWords words =
      share_words({"forward f32 q1 full : nsa block=64 top=4", "forward f32 q2 full : nsa block=32 top=4"});
  EXPECT_EQ(words.shared, "forward f32 full");
  EXPECT_EQ(words.rest, (std::vector<std::string>{"q1 : nsa block=64 top=4", "q2 : nsa block=32 top=4"}));
}

TEST(Wrapped, continues_below_the_text_behind_a_label) {
  EXPECT_EQ(wrapped("  backend    one two three four\nshort\n", 28),
            "  backend    one two three\n             four\nshort\n");
  EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrapped("abcdefghij", 4), "abcd\nefgh\nij");
  EXPECT_EQ(wrapped("one two three", 0), "one two three");
}

TEST(Wrapped, a_line_with_a_caret_is_cut_around_it) {
  const std::string line = "  forward bf16 b2 h32/8 q4096 k4096 d128 casual softcap paged64 repro=run";
  for (int width = 24; width < 80; ++width) {
    const std::string text = wrapped(line + "\n" + std::string(line.find("casual"), ' ') + "^~~~~~\n", width);
    const std::vector<std::string> lines = lines_of(text);
    ASSERT_EQ(lines.size(), 2u) << text;
    EXPECT_EQ(lines[0].substr(lines[1].find('^'), 6), "casual") << text;
    EXPECT_LE(widest(text), size_t(width)) << text;
  }
}

TEST(CutTo, ends_in_dots) {
  EXPECT_EQ(cut_to("forward f32", 20), "forward f32");
  EXPECT_EQ(cut_to("forward f32", 8), "forwa...");
  EXPECT_EQ(cut_to("±±±±±", 4), "±...");
}

}  // namespace
}  // namespace attune
