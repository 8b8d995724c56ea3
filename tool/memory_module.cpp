// `attune memory` of a module's line: parameters, gradients, the tape and the workspaces, as the module itself measures
// them. It is made for that, with its parameters, on a device that is here.
#include "tool/memory_module.h"

#include <fmt/format.h>

#include <algorithm>

#include "attune/attune.h"
#include "modules/settings.h"
#include "tool/commands.h"
#include "tool/json.h"
#include "tool/text.h"

namespace attune {
namespace {

struct Sizes {
  attune_module_sizes made{};
  std::string text{};
  int64_t tokens = 0;
  uint64_t memory = 0;  // tokens of a second input
  uint64_t io = 0;  // x, memory and out; a backward has as much again

  uint64_t inference() const { return made.parameter_bytes + io + made.forward_only; }
  uint64_t training() const {
    return made.parameter_bytes + made.gradient_bytes + made.tape + 2 * io + std::max(made.forward, made.backward);
  }
};

void row(std::string_view what, std::string_view value) { fmt::print("  {:<15} {}\n", what, value); }

void print(const Sizes& s) {
  const auto bytes = [](uint64_t n) { return bytes_text(double(n)); };
  fmt::print("{}\n", s.text);
  row("parameters", fmt::format("{} in {} of a name", bytes(s.made.parameter_bytes), s.made.parameters));
  row("gradients", fmt::format("{} in f32", bytes(s.made.gradient_bytes)));
  row("tape", fmt::format("{} from a forward to its backward", bytes(s.made.tape)));
  row("workspace", fmt::format("{} forward, {} without a tape, {} backward", bytes(s.made.forward),
                               bytes(s.made.forward_only), bytes(s.made.backward)));
  row(s.memory ? "x, memory, out" : "x and out", bytes(s.io));
  row("inference", bytes(s.inference()));
  row("training", fmt::format("{}, gradients of {} included", bytes(s.training()),
                              s.memory ? "x, memory and out" : "x and out"));
  row("a token", fmt::format("{} of the tape; {} MB of everything but parameters and their gradients",
                             bytes_text(double(s.made.tape) / double(s.tokens)),
                             digits_text(double(s.training() - s.made.parameter_bytes - s.made.gradient_bytes) /
                                         double(s.tokens) * 1e-6)));
}

Json as_json(const Sizes& s) {
  return {{"module", s.text},
          {"parameters", s.made.parameters},
          {"parameter_bytes", s.made.parameter_bytes},
          {"gradient_bytes", s.made.gradient_bytes},
          {"tape_bytes", s.made.tape},
          {"forward_workspace_bytes", s.made.forward},
          {"forward_only_workspace_bytes", s.made.forward_only},
          {"backward_workspace_bytes", s.made.backward},
          {"tensor_bytes", s.io},
          {"inference_bytes", s.inference()},
          {"training_bytes", s.training()}};
}

}  // namespace

bool is_module(std::string_view line) {
  const std::string_view first = line.substr(0, line.find(' '));
  for (const std::string_view kind : {"multihead", "feed_forward", "longnet_encoder", "longnet_decoder", "llama"})
    if (first == kind) return true;
  return false;
}

void module_memory(const std::string& line, const std::string& device, Context& context) {
  Settings set;
  if (Status s = read_settings(line, set); !s.ok()) return fail(context, kUsage, join("attune memory: ", s.message));
  attune_module_options options{};
  options.size = sizeof options;
  options.device = device.c_str();
  attune_module* module = nullptr;
  if (attune_module_create(line.c_str(), &options, &module))
    return fail(context, kMachine, join("attune memory: ", attune_last_error()));
  Sizes s{.text = attune_module_text(module)};
  s.made.size = sizeof s.made;
  const int bad = attune_module_measure(module, &s.made);
  attune_module_destroy(module);
  if (bad) return fail(context, kFailed, join("attune memory: ", attune_last_error()));
  s.tokens = int64_t(set.batch) * set.len;
  s.memory = uint64_t(set.batch) * uint64_t(set.memory);
  s.io = (2 * uint64_t(s.tokens) + s.memory) * uint64_t(set.embed) * uint64_t(size_of(set.dtype));
  if (context.json) fmt::print("{}\n", as_json(s).dump(2));
  else print(s);
}

}  // namespace attune
