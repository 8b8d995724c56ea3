// SPDX-License-Identifier: Apache-2.0
// Processes that keep every CPU this one may use busy: two for each, until the end of their scope.
#pragma once
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "machine/host.h"
#include "tool/timing/load.h"

namespace attune {

class Burners {
 public:
  // False if the system hides what tells that they are there.
  static bool can_be_seen() {
    const LoadCounters c = read_load();
    return !c.threads.empty() && c.busy_ns >= 0;
  }
  // False under a quota, where they may not fill the CPUs.
  static bool can_fill_the_cpus() { return this_cpu().units == read_load().cpus; }
  Burners() {
    for (int n = 2 * read_load().cpus; n > 0; --n) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // with the test, however it ends
        for (volatile unsigned spins = 0;;) spins = spins + 1;
      }
      children_.push_back(child);
    }
  }
  Burners(const Burners&) = delete;
  ~Burners() {
    for (const pid_t child : children_)
      if (child > 0) kill(child, SIGKILL), waitpid(child, nullptr, 0);
  }

 private:
  std::vector<pid_t> children_{};
};

}  // namespace attune
