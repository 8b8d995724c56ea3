// SPDX-License-Identifier: Apache-2.0
// Parses arbitrary bytes as a problem line. Parsing terminates. An accepted line prints to a line that parses to the
// same problem, in core and through the C interface. Planning it for absent devices terminates too.
#include <cstdint>
#include <cstring>
#include <string>

#include "attune/attune.h"
#include "fuzz/require.h"
#include "plan/plan.h"

using namespace attune;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string line(reinterpret_cast<const char*>(data), size);
  Problem p, again;
  const Status read = parse(line, p);
  if (!read.ok()) return 0;
  require(valid(p).ok(), "what is read is valid");
  require(filled(p) == p, "what is read has no field left to fill");
  const std::string printed = name(p);
  require(parse(printed, again).ok() && again == p, "a printed problem reads back");
  require(name(again) == printed, "and prints the same");

  attune_problem c{};
  char text[1024];
  c.size = sizeof c;
  if (line.find('\0') == line.npos) {
    require(attune_problem_parse(line.c_str(), &c) == 0, "the C interface reads it too");
    require(attune_problem_format(&c, text, sizeof text) == 0 && printed == text, "and prints it");
  }
  for (const Device& d : {Device{.name = "a CPU"}, Device{.features = ~0u, .name = "every CPU"},
                          Device{.kind = DeviceKind::cuda, .arch = 90, .units = 132, .name = "NVIDIA H200"}}) {
    Plan plan;
    const Status planned = Planner{.device = d}.plan(p, plan);
    require(planned.ok() == (plan.backend != nullptr), "a plan or a sentence");
  }
  return 0;
}
