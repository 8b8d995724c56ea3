// SPDX-License-Identifier: Apache-2.0
// What `attune model` is asked.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tool/commands/commands.h"

namespace attune {

struct ModelAsked {
  std::string model{}, device{"cpu"}, dtype{}, attention{"auto"}, check{}, save{}, text{};
  bool generate = false, train = false, memory = false, longest = false, checkpointing = false;
  std::vector<int> fits{};       // GiB of each card
  std::vector<int> prompt{};     // tokens of each prompt; one number is for all
  int batch = 1, tokens = 64, length = 256, steps = 5, top = 0;
  double temperature = 0, rate = 1e-3;
  uint32_t seed = 0;
};

void run_model(const ModelAsked&, Context&);

}  // namespace attune
