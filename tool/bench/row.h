// SPDX-License-Identifier: Apache-2.0
// Measures one problem: makes the tensors, checks every subject, times all of them interleaved, and writes a record for
// each. A failure is a record too, so one row never ends a run.
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
  std::vector<std::string> backends{};  // names; "all": every backend that supports the problem; empty: the planner's
  std::vector<const attune_peer*> peers{};
  bool (*beside)(const Problem&, std::string_view backend) = nullptr;  // backends a suite adds if none is named
  std::string baseline{};               // a subject by name; empty: the fastest peer, or the first backend
  Device device{};                      // on a CPU, `units` is the number of threads
  std::string device_word{"cpu"};
  std::vector<Rule> rules{};
  Layout layout = Layout::bhsd;
  Distribution distribution = Distribution::normal;
  std::vector<int32_t> lengths{};       // sequence lengths for ragged keys; empty: all at the problem's bound
  std::string pattern{};                // pattern of the next row's block lists; empty: drawn at random
  uint32_t seed = 1;
  Mode mode = Mode::warm;
  TimingSettings timing{};
  DeviceTimer* timer = nullptr;         // null on a CPU
  double energy_seconds = 0;            // time each GPU subject runs back to back; 0: not at all
  bool check = true;
  Provenance provenance{};
  std::string run{};                    // id of this run, written into every record; see provenance.h

  std::vector<TooLong> too_long{};      // rows so far that did not fit

  // Facts of this machine with these threads and this mode. The first row that needs them measures them.
  std::optional<Ceilings> ceilings{};
  std::optional<double> floor_ns{}, peer_floor_ns{}, aa_spread{};
};

// Unless named, the baseline is the fastest correct peer, or the first correct backend if there is none. If a named
// baseline failed, nothing is compared. The fastest, because a peer may choose badly among its own implementations, and
// beating that means little: on aarch64, torch 2.15 takes 36 times as long for a bf16 backward (8 heads, 512 keys) as
// its own math path.
std::vector<Record> measure_row(const Problem&, Bench&);

// A forward and its backward as one call; the records are named after the backward's backend.
std::vector<Record> measure_train(const BenchRow&, Bench&);

// One record, with subject "attune": the time of the whole module.
std::vector<Record> measure_module(const BenchRow&, Bench&);

// Shared by the two: ceilings and floor, measured once (know_machine), power, temperature and throttling of a GPU
// (note_readings), energy of running back to back (sustain), and the samples (note_timing). know_spread measures the
// A/A spread once, on the first row whose calls, of about `call_s` seconds, are short enough for it.
void know_machine(Bench&);
void know_spread(Bench&, const Subject&, double call_s);
void note_readings(Record&, const Subject&, const Bench&);
void sustain(Record&, const Subject&, Bench&);
struct Cost;
// The sequences, tokens and queries of a call: of the arguments, or without them at the problem's bounds.
void note_amount(Record&, const Problem&, const Args* = nullptr);
void note_timing(Record&, const Timing&, const Cost&, DType of_keys, const Bench&, bool peer = false);

inline constexpr const char* kNotAskedFor = "not asked for";  // why a result is unchecked with --no-check

// Names of the requested backends. `all` expands to every backend that supports the problem, except those that run only
// by name; "" is the planner's choice.
std::vector<std::string> wanted_backends(const Problem&, const Bench&);

// Joins a refusal by all backends and its indented reasons into one line.
std::string one_line(std::string text);

// The status of a record for this failure: oom if memory was lacking.
RecordStatus status_of(const Status&, RecordStatus otherwise = RecordStatus::failed);

// A record with everything known before the row is measured.
Record blank_record(const BenchRow&, const Bench&);

}  // namespace attune
