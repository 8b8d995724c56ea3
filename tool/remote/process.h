// SPDX-License-Identifier: Apache-2.0
// Runs a program, such as ssh or sbatch, with a time limit. It ends with this process, and so do its children.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace attune {

struct ProgramCall {
  std::vector<std::string> words{};  // the program, found on PATH, and its arguments; never a secret
  std::string input{};               // its stdin
  std::string input_file{};          // or this file
  std::vector<std::string> environment{};  // more variables, "NAME=value"
  int limit_s = 20;
  std::size_t most_bytes = std::size_t(64) << 20;  // of stdout and of stderr each; the rest is dropped
};
struct ProgramResult {
  int code = 0;  // exit code, or 128 and the signal
  bool killed = false;  // by a signal
  std::string out{}, err{};
};

// Fails with Code::device if the program is missing or takes too long; the message does not name who asked.
Status run_program(const ProgramCall&, ProgramResult&);
bool is_on_path(const std::string& program);
// The last line of text that is not blank, without its end: what a program says when it fails.
std::string last_line(std::string_view text);

}  // namespace attune
