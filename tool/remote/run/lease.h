// SPDX-License-Identifier: Apache-2.0
// Processes of a run that outlive the terminal, and the release that does not end before the lease is gone. A process
// holds a lock file of the run's folder while it lives, however it ends.
#pragma once
#include <functional>
#include <string>

#include "core/status.h"
#include "tool/remote/driver.h"
#include "tool/remote/journal.h"

namespace attune {

class RunLock {
 public:
  RunLock() = default;
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();
  // False if a living process holds it.
  bool take(const std::string& path);
  void note_owner() const;  // writes the id of this process into the file

 private:
  friend Status detach(RunLock&, const std::string&, const std::function<int()>&);
  int file_ = -1;
};
std::string worker_lock(const std::string& folder, int target);
std::string reaper_lock(const std::string& folder);
bool is_held(const std::string& path);  // does a living process hold this lock?
int owner_of(const std::string& path);  // its process, 0 if unknown

// Runs `body` in a process of its own session, without the terminal, that holds the lock; stderr goes to this log.
Status detach(RunLock&, const std::string& log, const std::function<int()>& body);

// Waits a little longer each time: 0.2 s, 0.4 s, ... up to `most_s`.
class Backoff {
 public:
  explicit Backoff(double most_s) : most_s_(most_s) {}
  void wait();

 private:
  double next_s_ = 0.2, most_s_;
};
double now_s();  // since 1970
void sleep_s(double);

// Deletes the lease until the machine or the provider says that it is gone; notes each step in the journal. If the
// reply to the request was lost, it looks again later. Gives up after `patience_s`.
struct Release {
  Driver& driver;
  Journal& journal;
  int target = 0;
  double patience_s = 24 * 3600;
  Status until_gone(const TargetState&) const;
};

}  // namespace attune
