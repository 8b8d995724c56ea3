// SPDX-License-Identifier: Apache-2.0
// The commands of `attune`. Each is one file that adds itself to the command line and runs in its callback. A command
// never exits: it writes its answer to stdout, reports errors through fail(), and returns.
#pragma once
#include <string>
#include <string_view>

#include "core/status.h"

namespace CLI {
class App;
}

namespace attune {

// Exit codes, for shells and CI jobs; docs/cli.md lists them.
enum Exit : int {
  kOk = 0,
  kFailed = 1,   // a negative answer: no backend supports the problem, a case failed, a file is invalid
  kUsage = 2,    // the command line is wrong
  kMachine = 3,  // this machine lacks something: memory, a device, permission to write a file
  kUnclear = 4,  // the question was asked, and the measurements do not answer it
  kSignal = 128,  // and the number of the signal that ended a run early
};

struct Context {
  bool json = false;      // stdout holds one JSON document (bench: one per line) and nothing else
  bool terminal = false;  // stdout is a terminal, so colour is allowed
  std::string command{};  // the command line, for records; see record/provenance.h
  int exit_code = kOk;    // exit code of the program; set by fail()
};

// The exit code where a file cannot be read: kMachine if it is missing or may not be read, kFailed if its content is
// wrong.
inline Exit exit_of_read(const Status& s) { return s.code == Code::device ? kMachine : kFailed; }

// Prints one sentence to stderr and sets the exit code. The first failure decides the code.
void fail(Context&, Exit, std::string_view sentence);

// cli.cpp adds --json to every command. Examples go into footer().
void add_doctor(CLI::App&, Context&);
void add_plan(CLI::App&, Context&);
void add_features(CLI::App&, Context&);
void add_memory(CLI::App&, Context&);
void add_model(CLI::App&, Context&);
void add_parity(CLI::App&, Context&);
void add_bench(CLI::App&, Context&);
void add_verify(CLI::App&, Context&);
void add_store(CLI::App&, Context&);
void add_history(CLI::App&, Context&);
void add_tune(CLI::App&, Context&);
void add_why(CLI::App&, Context&);
void add_compare(CLI::App&, Context&);
void add_bars(CLI::App&, Context&);
void add_report(CLI::App&, Context&);
void add_serve(CLI::App&, Context&);
void add_scaling(CLI::App&, Context&);
void add_cost(CLI::App&, Context&);
void add_profile(CLI::App&, Context&);
void add_completion(CLI::App&, Context&);

// Adds the whole command line, for the program, the completion scripts and the tests. `context` must outlive `app`.
void add_commands(CLI::App& app, Context& context);

}  // namespace attune

// The program. Exported because a Python process loads the tool to time its own functions with the same engine.
extern "C" __attribute__((visibility("default"))) int attune_tool_main(int argc, char** argv);
