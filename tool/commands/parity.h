// SPDX-License-Identifier: Apache-2.0
// The forms of `attune parity` other than a list of cases.
#pragma once
#include <string>
#include <vector>

#include "tool/commands/commands.h"

namespace attune {

// `--ring`: compares attention over ranks with the reference of the whole. Ranks are threads of this process; under
// mpirun each process is a rank.
struct RingAsked {
  std::string device = "cpu", text;
  std::vector<int> ranks{1, 2, 4, 8};
  double seconds = 60;
  bool quick = false;
};
void ring_parity(const RingAsked&, Context&);

// `--hunt`: runs random problems, each launch under a watchdog. A failing problem is shrunk and printed with its seed.
struct HuntAsked {
  std::string device = "cpu", backend;
  int cases = 0;
  int seed = -1;            // -1: a fresh seed
  int threads = 0;
  double launch_seconds = 20, max_seconds = 0;
  std::vector<std::string> kinds{};  // words of kHuntKinds; empty: all
};
std::vector<std::string> hunt_kinds();
void hunt_parity(const HuntAsked&, Context&);

// `--peer` and `--against`: peers and backends on problem lines, against the reference or another subject.
struct SubjectsAsked {
  std::string device = "cpu", backend, text, suite, against, python = "python3";
  std::vector<std::string> peers{}, lines{};
  std::string masks{}, lengths{}, passes{};  // rows to keep; empty: all
  int threads = 0;
};
void subjects_parity(const SubjectsAsked&, Context&);

}  // namespace attune
