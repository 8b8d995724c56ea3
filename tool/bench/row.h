// One problem, measured: buffers, the check, the timing of every subject side by side, a record for each. Whatever goes
// wrong is a record too, so that one row never ends a run.
#pragma once
#include <cmath>
#include <optional>

#include "core/device.h"
#include "plan/rules.h"
#include "tool/bench/axes.h"
#include "tool/timing/ceilings.h"
#include "tool/timing/device_timer.h"
#include "tool/subjects/peer.h"
#include "tool/record/record.h"
#include "tool/bench/room.h"
#include "tool/subjects/workload.h"

namespace attune {

struct Bench {
  std::vector<std::string> backends{};  // by name; "all": every one that takes the problem; empty: the planner's choice
  std::vector<const attune_peer*> peers{};
  bool (*beside)(const Problem&, std::string_view backend) = nullptr;  // of a suite: also, where nobody names backends
  std::string baseline{};               // a subject by name; empty: the fastest peer, or the first backend
  Device device{};                      // of a CPU, its units are the threads
  std::string device_word{"cpu"};
  std::vector<Rule> rules{};
  Layout layout = Layout::bhsd;
  Distribution distribution = Distribution::normal;
  std::vector<int32_t> lengths{};       // of the sequences of ragged keys; empty: all as long as the problem says
  std::string pattern{};                // of the lists of blocks of the next row; empty: they are drawn
  uint32_t seed = 1;
  Mode mode = Mode::warm;
  TimingSettings timing{};
  DeviceTimer* timer = nullptr;         // of a GPU
  double energy_seconds = 0;            // each subject of a GPU runs this long back to back; 0: none does
  bool check = true;
  Provenance provenance{};
  std::string run{};                    // of every record: provenance.h makes one

  std::vector<TooLong> too_long{};      // rows so far that did not fit

  // Of this machine with these threads in this mode; measured with the first row that needs them, and kept.
  std::optional<Ceilings> ceilings{};
  std::optional<double> floor_ns{}, peer_floor_ns{}, aa_spread{};
};

// Unless one is named, the baseline is the fastest peer that is right, or without one the first backend that is; with a
// named one that failed, nothing is compared. The fastest, because a peer may choose badly among its own ways, and to
// beat that says little: torch 2.15 on aarch64 takes 36 times as long for a bf16 backward (8 heads, 512 keys) as its
// own math path.
std::vector<Record> measure_row(const Problem&, Bench&);

// One record, of the subject "attune": how long the whole module takes.
std::vector<Record> measure_module(const BenchRow&, Bench&);

// What the two have in common: the ceilings and the floor, measured once, what the timer says of a subject, and of a
// GPU what it was like meanwhile and what running back to back costs.
void know_machine(Bench&);
void note_readings(Record&, const Subject&, const Bench&);
void sustain(Record&, const Subject&, Bench&);
struct Cost;
void note_timing(Record&, const Timing&, const Cost&, DType of_keys, const Bench&, bool peer = false);

// Names of the backends that are asked for, where `all` is every one that takes the problem and is not only for
// checking; "" is the planner's choice.
std::vector<std::string> wanted_backends(const Problem&, const Bench&);

// Of what could not be done: "oom" where the sentence says that memory ran out, ours or as torch and Python say it. A
// kernel's illegal memory access, which every later call on that GPU repeats, is no lack of it.
const char* status_word(const Status&, const char* otherwise = "failed");

// A record of this row with all that is known before it is measured.
Record blank_record(const BenchRow&, const Bench&);

}  // namespace attune
