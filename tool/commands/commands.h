// The commands of `attune`: each one file that adds itself to the command line and runs in its callback.
// A command never exits: it writes its answer to stdout, calls fail() for what went wrong, and returns.
#pragma once
#include <string_view>

namespace CLI {
class App;
}

namespace attune {

// What a shell or a CI job branches on; docs/cli.md names them.
enum Exit : int {
  kOk = 0,
  kFailed = 1,   // the question was answered with no: nothing supports it, a case failed, a file is wrong
  kUsage = 2,    // the command line is wrong
  kMachine = 3,  // this machine lacks something, or refused it: memory, a device, a file that cannot be written
};

struct Context {
  bool json = false;      // one JSON document on stdout (bench: one a line) and nothing else there
  bool terminal = false;  // stdout is a terminal: progress and colour are welcome
  int exit_code = kOk;    // what the program answers; fail() sets it
};

// One sentence on stderr, and the exit code. The first failure decides the code.
void fail(Context&, Exit, std::string_view sentence);

// --json is added to every command by cli.cpp, so no command adds it; its examples go into footer().
void add_doctor(CLI::App&, Context&);
void add_plan(CLI::App&, Context&);
void add_features(CLI::App&, Context&);
void add_memory(CLI::App&, Context&);
void add_parity(CLI::App&, Context&);
void add_bench(CLI::App&, Context&);
void add_verify(CLI::App&, Context&);
void add_store(CLI::App&, Context&);
void add_history(CLI::App&, Context&);
void add_tune(CLI::App&, Context&);
void add_why(CLI::App&, Context&);
void add_compare(CLI::App&, Context&);
void add_report(CLI::App&, Context&);
void add_serve(CLI::App&, Context&);
void add_scaling(CLI::App&, Context&);
void add_cost(CLI::App&, Context&);
void add_profile(CLI::App&, Context&);
void add_completion(CLI::App&, Context&);

// The whole command line, as the program, the completion scripts and the tests see it. `context` outlives `app`.
void add_commands(CLI::App& app, Context& context);

}  // namespace attune

// The program. Exported, because a Python process loads the tool to time its own functions with the same engine.
extern "C" __attribute__((visibility("default"))) int attune_tool_main(int argc, char** argv);
