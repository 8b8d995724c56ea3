// SPDX-License-Identifier: Apache-2.0
// One target of a run, from the request to the proof that nothing is left. The worker does all of it; whoever finds it
// dead (the reaper, `attune remote reap`) stops the command, fetches what it wrote, and releases the lease.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "core/status.h"
#include "tool/remote/driver.h"
#include "tool/remote/journal.h"
#include "tool/remote/run/plan.h"

namespace attune {

class Worker {
 public:
  Worker(const RemotePlan&, int target);
  // Both return an exit code, and leave a journal in which this target is done.
  int work();
  int rescue();

 private:
  const RemotePlan& plan_;
  int target_;
  std::string folder_, results_;
  const Leg& leg_;
  std::string who_{};
  Journal journal_{};
  std::unique_ptr<Driver> driver_;
  Lease lease_{};
  Status opened_;
  double stop_at_ = 0, kill_at_ = 0;  // seconds since 1970: the command is told to stop, the lease is released
  bool stopped_ = false;
  std::string told_{};      // why it was told to stop
  int stop_code_ = 0;       // exit code of a command that was told to stop
  int ended_with_ = 0;      // the command's own

  Status note(Event, const std::string& text = "", double value = 0);
  Status take();            // intent, acquired, ready
  Status set_up();          // the bundle and files go there
  Status start();
  Status follow();          // rows come back until the command ends
  Status why_it_ended();
  Status stop_command(const std::string& why, int code);
  Status poll(bool& ended);
  Status take_new(const std::string& file, const std::string& to, size_t most, bool whole_lines);
  Status pull();
  Status unpack(const std::string& archive);
  Status persist(const char* what, double patience_s, const std::function<Status()>&);
  bool is_stop_asked() const;
  Status interrupted();
  int finish(const Status&, int code = 3);  // release, bill, summary; `code`: exit code of a failure
  void write_summary();
};

// Starts the worker of a target, as a process of its own.
Status start_worker(const RemotePlan&, int target);
// The reaper: finishes every target whose worker has ended without doing so. Ends when nothing is left of the run.
int watch_over(const RemotePlan&);
// Starts the reaper, as a process of its own, where none lives.
void ensure_reaper(const RemotePlan&);

}  // namespace attune
