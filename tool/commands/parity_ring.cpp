// SPDX-License-Identifier: Apache-2.0
#include "tool/commands/parity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <optional>

#include "machine/host.h"
#include "tool/json.h"
#include "tool/machine.h"
#include "tool/table.h"
#include "verify/ring.h"

namespace attune {
namespace {

// True if a launcher of Open MPI, MPICH or Slurm started this process; they set these variables.
bool started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(name)) return true;
  return false;
}

struct Tally {
  int runs = 0, verdicts[kVerdicts] = {};
  double mae = 0, used = 0;
  uint64_t sent = 0;  // bytes, by all ranks
};
using Tallies = std::map<std::pair<Cut, int>, Tally>;

struct Failure {
  std::string line, why;
  Cutting cut;
};

struct Ran {
  Tallies tallies{};
  std::vector<Failure> failures{};
  Json runs = Json::array();
  int passed = 0, empty = 0;
};

std::string repeat(const RingAsked& asked, const Failure& f, bool mpi) {
  const std::string end = fmt::format("attune parity --ring --device {} --case \"{}\"", asked.device, f.line);
  return mpi ? fmt::format("mpirun -n {} {}", f.cut.ranks, end) : fmt::format("{} --ranks {}", end, f.cut.ranks);
}

void record(Ran& ran, const Case& dense, const Cutting& cut, const Outcome& o, uint64_t sent) {
  Tally& t = ran.tallies[{cut.cut, cut.ranks}];
  ++t.runs, ++t.verdicts[int(o.verdict)], t.sent += sent;
  t.mae = std::max(t.mae, o.mae()), t.used = std::max(t.used, o.used());
  if (o.verdict == Verdict::fail) ran.failures.push_back({name(dense), o.why, cut});
  else ++(o.verdict == Verdict::empty ? ran.empty : ran.passed);
  ran.runs.push_back({{"case", name(dense)}, {"layout", name(cut.cut)}, {"ranks", cut.ranks},
                      {"verdict", name(o.verdict)}, {"why", o.why}, {"mae", o.mae()}, {"max", o.max()},
                      {"tolerance_used", o.used()}, {"bytes_sent", sent}});
}

void print(const RingAsked& asked, const Ran& ran, bool mpi) {
  constexpr Cells number = Cells::number;
  TextTable table{.columns = {{"layout"}, {"ranks", number}, {"runs", number}, {"PASS", number}, {"AT-FLOOR", number},
                              {"EMPTY", number}, {"FAIL", number}, {"MAE", number}, {"of tolerance", number},
                              {"bytes moved", number}}};
  for (const auto& [key, t] : ran.tallies)
    table.rows.push_back({std::string(name(key.first)), join(key.second), join(t.runs),
                          join(t.verdicts[int(Verdict::pass)]), join(t.verdicts[int(Verdict::pass_at_floor)]),
                          join(t.verdicts[int(Verdict::empty)]), join(t.verdicts[int(Verdict::fail)]),
                          fmt::format("{:.2e}", t.mae), fmt::format("{:.0f}%", 100 * t.used), join(t.sent)});
  fmt::print("{}", to_text(std::move(table), terminal_width(STDOUT_FILENO)));
  constexpr size_t kMost = 20;
  for (size_t n = 0; n < ran.failures.size() && n < kMost; ++n)
    fmt::print("\nFAIL  {}, {} ranks: {}\n      {}\n", name(ran.failures[n].cut.cut), ran.failures[n].cut.ranks,
               ran.failures[n].why, repeat(asked, ran.failures[n], mpi));
  if (ran.failures.size() > kMost) fmt::print("\nand {} more failures\n", ran.failures.size() - kMost);
}

}  // namespace

void ring_parity(const RingAsked& asked, Context& context) {
  Device device;
  if (Status s = device_named(asked.device, device); !s.ok())
    return fail(context, exit_of_device(asked.device), join("attune parity: ", s.message));
  if (device.index < 0)
    return fail(context, kMachine,
                join("attune parity: --device: ", asked.device, " is not in this machine; it can be planned for, but ",
                     "not run"));
  if (device.kind == DeviceKind::cpu) device.units = 1;  // each rank is a thread
  std::vector<Case> cases = ring_cases(asked.quick);
  if (!asked.text.empty()) {
    cases.assign(1, {});
    if (Status s = parse(asked.text, cases[0]); !s.ok())
      return fail(context, kUsage, join("attune parity: ", s.message));
  }
  std::optional<Communicator> here;
  std::vector<int> ranks = asked.ranks;
  if (started_by_mpi()) {
    Transport transport;
    if (Status s = open_mpi(nullptr, transport); !s.ok())
      return fail(context, kMachine, join("attune parity: ", s.message));
    here.emplace(transport, asked.seconds);
    ranks = {here->ranks()};
  }
  const bool speaks = !here || !here->rank();
  Ran ran;
  for (const Case& dense : cases) {
    Case whole;
    if (Status s = whole_case(dense, whole); !s.ok()) return fail(context, kUsage, s.message);
    Trial trial(whole);
    if (Status s = trial.prepare(); !s.ok()) return fail(context, kUsage, s.message);
    for (const Cut cut : all_cuts())
      for (const int count : ranks) {
        Problem p;
        const Cutting cutting{cut, count};
        const Status served = shard_problem(trial.world, cutting, p);
        if (!served.ok() && !asked.text.empty() && speaks && !context.json)
          fmt::print("{}, {} ranks: {}\n", name(cut), count, served.message);
        if (!served.ok()) continue;
        std::vector<RankRun> each;
        const uint64_t before = here ? here->traffic().sent : 0;
        const Outcome o = here ? run_here(trial, cutting, device, *here)
                               : run_ranks(trial, cutting, device, each, asked.seconds);
        uint64_t sent = here ? here->traffic().sent - before : 0;
        for (const RankRun& r : each) sent += r.traffic.sent;
        record(ran, dense, cutting, o, sent);
        // A broken group stays broken, so the run ends here.
        if (here && o.verdict == Verdict::fail && !here->barrier().ok())
          return fail(context, kFailed, join("attune parity: ", o.why));
      }
  }
  if (speaks && context.json)
    fmt::print("{}\n", Json{{"device", asked.device}, {"name", device.name}, {"passed", ran.passed},
                            {"empty", ran.empty}, {"failed", ran.failures.size()}, {"runs", ran.runs}}.dump(2));
  if (speaks && !context.json) print(asked, ran, here.has_value());
  if (!ran.passed && ran.failures.empty())
    fail(context, kFailed, ran.empty ? "attune parity: nothing was compared: no query of the case sees a key"
                                     : "attune parity: no layout supports this case");
  if (!ran.failures.empty() && context.exit_code == kOk) context.exit_code = kFailed;
  if (speaks && !context.json)
    fmt::print("\n{} empty\n{} passed, {} failed\n", ran.empty, ran.passed, ran.failures.size());
}

}  // namespace attune
