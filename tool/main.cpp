// SPDX-License-Identifier: Apache-2.0
// The program `attune`. Everything is in cli.cpp, which the shared library exports too.
#include <csignal>

#include "tool/commands/commands.h"

int main(int argc, char** argv) {
  const int code = attune_tool_main(argc, argv);
  // A shell ends its loop only if the program was ended by the signal.
  if (code > attune::kSignal) std::signal(code - attune::kSignal, SIG_DFL), std::raise(code - attune::kSignal);
  return code;
}
