// SPDX-License-Identifier: Apache-2.0
// What reaches the terminal. Records, stores and file names may come from anywhere, and a control character in them
// could move the cursor, set the title or hide text. So everything that a command prints passes through one place,
// which replaces control characters. Colour and the erasing of a line are marks, which become escape sequences only
// there.
#pragma once
#include <cstdio>
#include <string>
#include <string_view>

namespace attune {

// Marks: 0xFE occurs in no UTF-8 text, so no record contains one. A command is the "::" that begins a line for GitHub.
inline constexpr std::string_view kGreen = "\xfe" "g", kRed = "\xfe" "r", kPlain = "\xfe" "p", kErase = "\xfe" "e",
                                  kCommand = "\xfe" "c";

// Replaces control characters and marks of text direction by their code, as in JSON: "\u001b". Tabs, newlines and text
// that is not UTF-8 stay. So it does where a job of GitHub would obey the text: "::" at the beginning of a line, and
// "##[" anywhere.
std::string shown(std::string_view text);

// The same for text that arrives in pieces.
class Shown {
 public:
  explicit Shown(bool terminal) : terminal_(terminal) {}  // marks become escape sequences; else they vanish
  std::string next(std::string_view piece);
  std::string rest();  // an incomplete character at the end

 private:
  bool terminal_;
  std::string begun_{};  // first bytes of a character or a mark
  enum class In { blank, colon, text } line_ = In::blank;  // what the line has so far
  int hashes_ = 0;                                         // "#" right before this place
  bool obeyed(char);                                       // true for the last character of "::" or "##["
};

// While it lives, stdout and stderr pass through Shown, and on a terminal lines are broken to its width. Code that is
// called prints as usual, with printf or fmt::print.
class ShownOutput {
 public:
  ShownOutput();
  ~ShownOutput();
  ShownOutput(const ShownOutput&) = delete;
  ShownOutput& operator=(const ShownOutput&) = delete;

 private:
  struct Stream {
    int file, width;  // width of its terminal; 0: none
    Shown shown;
    bool begun = false;  // the last line has no end yet
    FILE* before = nullptr;
    FILE* after = nullptr;
  };
  Stream streams_[2];
  static ssize_t write(void* stream, const char* data, size_t size);
};

// Opens what stands for stdin, stdout and stderr where one is closed: a file that is opened next would get its number,
// and what is printed would go into that file. Answers to a closed stdout fail, as they did; messages are lost.
void keep_standard_files();

// From now on no line is broken: the output is for programs, as JSON.
void keep_lines_whole();

}  // namespace attune
