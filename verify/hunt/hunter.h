// SPDX-License-Identifier: Apache-2.0
// `attune parity --hunt`: random cases on every backend of a device, each launch under a watchdog. Cases run in a
// separate process: one that hangs or crashes is killed and reported, and the hunt continues in a new process.
#pragma once
#include <string>
#include <vector>

#include "verify/hunt/hunt.h"
#include "verify/suite.h"

namespace attune {

struct HuntFinding;

struct Hunt {
  std::string device = "cpu";               // its word; only the child opens it
  std::vector<const Backend*> backends{};
  uint64_t cases = 1000, seed = 1;
  int threads = 0;                          // threads for golden results; 0: all of the CPU's
  double launch_seconds = 20;               // watchdog: only a hang takes longer
  double max_seconds = 0;                   // no new cases after this; 0: no limit
  double shrink_seconds = 60;               // per finding; with max_seconds, also for all findings together
  int shrink_steps = 1000;                  // per finding: the maximum number of smaller cases taken
  std::vector<HuntKind> kinds{};            // what is drawn; empty: all
  std::function<void(uint64_t done, size_t found)> progress{};
  std::function<void(const HuntFinding&)> on_finding{};  // at once, before the case is shrunk
};

enum class Ending { pass, wrong, hang, crash, refused };
std::string name(Ending);

struct HuntFinding {
  uint64_t index = 0;       // case number in the hunt
  const Backend* backend = nullptr;
  Ending ending = Ending::wrong;
  std::string why{};        // a sentence
  Case drawn{}, smallest{};
  int again = 0, tries = 0;  // reruns of the drawn case that failed, and their number
};

struct Hunted {
  Status status = Status::good();     // error: the device is not present, or no process could be created
  bool device_is_wrong = false;       // then the device is the cause
  std::string device_name{};
  uint64_t cases = 0, empty = 0;      // cases run; those whose check compared nothing
  std::vector<uint64_t> runs{};       // per backend
  uint64_t over = 0;                  // runs slightly over the tolerance of `attune parity`, which are not findings
  double most_over = 0;               // largest error of these, in tolerances; a finding is over 3
  std::vector<HuntFinding> findings{};
  double seconds = 0;
};

Hunted hunt(const Hunt&);

// Runs one case on one backend in its own process.
Ending attempt(const Hunt&, const Backend&, const Case&, std::string& why);

}  // namespace attune
