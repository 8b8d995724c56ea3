// `attune parity --hunt`: random cases on every backend of a device, each launch under a watchdog. Runs are made in a
// process of their own: one that hangs or crashes is killed and reported, and the hunt goes on in a new process.
#pragma once
#include <string>
#include <vector>

#include "verify/hunt/hunt.h"
#include "verify/suite.h"

namespace attune {

struct Hunt {
  std::string device = "cpu";               // its word; it is opened in the other process only
  std::vector<const Backend*> backends{};
  uint64_t cases = 1000, seed = 1;
  int threads = 0;                          // that make golden results; 0: as many as the CPU has
  double launch_seconds = 20;               // the watchdog: a run takes longer than this only if it hangs
  double max_seconds = 0;                   // no new cases after this; 0: no limit
  double shrink_seconds = 60;               // for each finding
  int shrink_steps = 1000;                  // likewise: so many times a smaller case is taken
  std::function<void(uint64_t done, size_t found)> progress{};
};

enum class Ending { pass, wrong, hang, crash, refused };
std::string name(Ending);

struct HuntFinding {
  uint64_t index = 0;       // of the case in the hunt
  const Backend* backend = nullptr;
  Ending ending = Ending::wrong;
  std::string why{};        // a sentence
  Case drawn{}, smallest{};
  int again = 0, tries = 0;  // how often the drawn case failed when it was run once more
};

struct Hunted {
  Status status = Status::good();     // not good: the device is not here, or no process could be made
  bool device_is_wrong = false;       // then it is the device
  std::string device_name{};
  uint64_t cases = 0, empty = 0;      // that were run; of them, those whose check compared nothing
  std::vector<uint64_t> runs{};       // of each backend
  uint64_t over = 0;                  // runs a little over the tolerance of `attune parity`, which is not a finding
  double most_over = 0;               // of them, the largest error in tolerances; a finding is over 3
  std::vector<HuntFinding> findings{};
  double seconds = 0;
};

Hunted hunt(const Hunt&);

// One case on one backend in a process of its own.
Ending attempt(const Hunt&, const Backend&, const Case&, std::string& why);

}  // namespace attune
