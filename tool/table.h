// SPDX-License-Identifier: Apache-2.0
// Tables and sentences that fit a terminal. Widths are in columns; 0 means that there is no limit, as in a file.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace attune {

// Width of the terminal that a file writes to; 0 if it is not a terminal, or one that does not tell its width.
int terminal_width(int file);

// Columns that a text takes on a terminal: a Chinese character two, the marks of terminal.h none.
size_t display_width(std::string_view text);

// The text with lines broken between words. What follows a break is indented as the line's own text: behind
// "  backend    " in "  backend    cpu_forward". A line with a caret below it is cut instead, around the caret.
std::string wrapped(std::string_view text, int width);

// The text cut to this width, with "..." at the end if something is missing.
std::string cut_to(std::string_view text, int width);

// The words that all problem lines share, and what is left of each.
struct SharedWords {
  std::string shared{};
  std::vector<std::string> rest{};
};
SharedWords share_words(const std::vector<std::string>& lines);

enum class Cells { text, number };  // numbers are aligned to the right

struct TextColumn {
  std::string head{};
  Cells cells = Cells::text;
  enum class Shared { never, fact, line } shared = Shared::never;  // what goes into the title if all rows share it:
                                                                   // a whole cell, or words of problem lines
};

struct TextTable {
  std::vector<TextColumn> columns{};
  std::vector<std::vector<std::string>> rows{};
  int margin = 0;  // blanks before every line
  int group = -1;  // the column whose cell is blank where it equals the one above
};

// Columns without content are left out, and what all rows share becomes a title. A table that is too wide gets narrower
// columns with several lines per row, and if they would be too narrow, every row becomes a paragraph.
std::string to_text(TextTable, int width);

}  // namespace attune
