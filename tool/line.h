// SPDX-License-Identifier: Apache-2.0
// Problem lines on a command line: quotes are optional, and a mistake is shown with a caret below it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/problem.h"
#include "tool/commands/commands.h"

namespace attune {

// Reads the words of a line, which are one argument if the user quoted it. On a mistake, prints it to stderr, beginning
// with `who`, sets the exit code to wrong usage, and returns false.
bool read_problem(std::string_view who, const std::vector<std::string>& words, Problem& out, Context&);

// Where this line, which is a row of bench, is wrong: "\n  line\n     ^~~~"; "" if no single word is.
std::string caret_below(std::string_view line);
// The sentence about a line whose kind of module, "lama", is nearly a known one; "" otherwise.
std::string meant_module(std::string_view line);

// The problem lines among words of which some are not quoted: a word "forward" or "backward" begins a line, and the
// words behind it belong to it. A quoted line is one word with spaces.
std::vector<std::string> lines_of(const std::vector<std::string>& words);

// For the help of a command that takes a line.
extern const char* const kLineGrammar;

}  // namespace attune
