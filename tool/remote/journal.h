// SPDX-License-Identifier: Apache-2.0
// What a run did, so that whoever survives can finish it. Each run has a folder of mode 700,
// $XDG_STATE_HOME/attune/remote/<run id>/, with journal.jsonl: lines are appended and reach the disk before the next
// step. An incomplete last line, left by a killed process, is not read.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "tool/json.h"
#include "tool/remote/driver.h"

namespace attune {

// Events of a target, in the order in which they usually happen.
enum class Event {
  planned, intent, acquired, ready, pushed, started, row, stopping, ended, pulled, releasing, release_failed, released,
  verified_gone, billed, failed, done
};
std::string_view name(Event);

struct JournalLine {
  double time = 0;           // seconds since 1970
  int target = 0;            // its number in the run
  Event event = Event::planned;
  std::string text{};        // lease name of intent; sentence of failed, stopping, release_failed
  std::string id{}, where{}; // of acquired
  double value = 0;  // price per hour of acquired, rows of row, exit code of ended and failed, dollars of billed
};

// Where the runs are; "" if neither XDG_STATE_HOME nor HOME is set.
std::string runs_folder();
std::string run_folder(std::string_view id);
// "20261119-130501-3fa2c1": sorts by time.
std::string new_run_id();

class Journal {
 public:
  Journal() = default;
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();
  Status open(const std::string& folder);  // for appending
  // Writes the line and waits until the disk has it.
  Status add(const JournalLine&);
  static Status read(const std::string& folder, std::vector<JournalLine>&);

 private:
  int file_ = -1;
  bool torn_ = false;  // the last line was written in part
  std::string path_{};
};

// What the lines say about one target.
struct TargetState {
  Lease lease{};             // name from intent on, the rest from acquired on
  bool intent = false, acquired = false, gone = false, done = false, started = false;
  Event last = Event::planned;
  int rows = 0;
  std::optional<int> exit_code{};
  std::optional<double> billed{};
  std::string failure{};     // the first sentence of failed, and the exit code that goes with it
  int failure_code = 0;
  double planned_at = 0, intent_at = 0, acquired_at = 0, ready_at = 0, started_at = 0, ended_at = 0, gone_at = 0;
  bool may_exist() const { return intent && !gone; }
};
TargetState state_of(const std::vector<JournalLine>&, int target);

}  // namespace attune
