// SPDX-License-Identifier: Apache-2.0
// `attune remote offers`: what a GPU costs, where, and what a command would cost there.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tool/commands/commands.h"
#include "tool/remote/target.h"

namespace attune {

struct AskedOffers {
  std::vector<std::string> gpus{};     // "H100", "L4"
  std::vector<Target> targets{};       // whom to ask; empty: every provider that can be asked from here
  std::vector<std::string> command{};  // "bench", "--suite", "decode"; empty: none
  int count = 1;                       // GPUs of one machine
};

void show_offers(const AskedOffers&, Context&);

// Seconds that a bench takes on this GPU, by its own --dry-run; nothing if the GPU is not known to the planner.
// Fails if the words of the command are wrong.
Status estimated_on(const std::vector<std::string>& command, const std::string& gpu, std::optional<double>& seconds);

}  // namespace attune
