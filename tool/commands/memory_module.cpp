// SPDX-License-Identifier: Apache-2.0
// `attune memory` for a module line: parameters, gradients, tape and workspaces, as the module's graph states them.
// Only the graph is built: no weights are needed, and the device need not be in this machine.
#include "tool/commands/memory_module.h"

#include <fmt/format.h>

#include <algorithm>

#include "modules/build.h"
#include "plan/tuned.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/text.h"

namespace attune {
namespace {

struct Sizes {
  const Graph& made;
  std::string text{};
  int64_t tokens = 0;
  uint64_t memory = 0;  // tokens of the second input
  uint64_t io = 0;      // bytes of x, memory and out; a backward needs as much again

  uint64_t inference() const { return made.parameter_bytes + io + made.lean_bytes; }
  uint64_t training() const {
    return made.parameter_bytes + made.gradient_bytes + made.tape_bytes + 2 * io +
           std::max(made.forward_bytes, made.backward_bytes);
  }
};

void row(std::string_view what, std::string_view value) { fmt::print("  {:<15} {}\n", what, value); }

void print(const Sizes& s) {
  const auto bytes = [](uint64_t n) { return bytes_text(double(n)); };
  fmt::print("{}\n", s.text);
  row("parameters", fmt::format("{} in {} tensors", bytes(s.made.parameter_bytes), s.made.parameters.size()));
  row("gradients", fmt::format("{} in f32", bytes(s.made.gradient_bytes)));
  row("tape", fmt::format("{} from a forward to its backward", bytes(s.made.tape_bytes)));
  row("workspace", fmt::format("{} forward, {} without a tape, {} backward", bytes(s.made.forward_bytes),
                               bytes(s.made.lean_bytes), bytes(s.made.backward_bytes)));
  row(s.memory ? "x, memory, out" : "x and out", bytes(s.io));
  row("inference", bytes(s.inference()));
  row("training", fmt::format("{}, gradients of {} included", bytes(s.training()),
                              s.memory ? "x, memory and out" : "x and out"));
  row("per token", fmt::format("{} of the tape; {} MB of everything but parameters and their gradients",
                               bytes_text(double(s.made.tape_bytes) / double(s.tokens)),
                               digits_text(double(s.training() - s.made.parameter_bytes - s.made.gradient_bytes) /
                                           double(s.tokens) * 1e-6)));
}

Json as_json(const Sizes& s) {
  return {{"module", s.text},
          {"parameters", s.made.parameters.size()},
          {"parameter_bytes", s.made.parameter_bytes},
          {"gradient_bytes", s.made.gradient_bytes},
          {"tape_bytes", s.made.tape_bytes},
          {"forward_workspace_bytes", s.made.forward_bytes},
          {"forward_only_workspace_bytes", s.made.lean_bytes},
          {"backward_workspace_bytes", s.made.backward_bytes},
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

void module_memory(const std::string& line, const Device& device, Context& context) {
  const auto no = [&](Exit code, const Status& s) { fail(context, code, join("attune memory: ", s.message)); };
  Settings set;
  if (const Status s = read_settings(line, set); !s.ok()) return no(kUsage, s);
  Tuned tuned;
  if (const Status s = load_tuned(device, tuned); !s.ok()) return no(kFailed, s);
  Graph graph;
  graph.batch = set.batch, graph.len = set.len, graph.device = device;
  std::string why;
  if (const Status s = build(set, tuned.rules, graph, why); !s.ok()) return no(kFailed, s);
  Sizes s{.made = graph, .text = name(set)};
  s.tokens = int64_t(set.batch) * set.len;
  s.memory = uint64_t(set.batch) * uint64_t(set.memory);
  s.io = (2 * uint64_t(s.tokens) + s.memory) * uint64_t(set.embed) * uint64_t(size_of(set.dtype));
  if (context.json) fmt::print("{}\n", as_json(s).dump(2));
  else print(s);
}

}  // namespace attune
