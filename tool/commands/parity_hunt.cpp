// SPDX-License-Identifier: Apache-2.0
#include "tool/commands/parity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "plan/plan.h"
#include "tool/json.h"
#include "tool/machine.h"
#include "tool/terminal.h"
#include "tool/text.h"
#include "verify/hunt/hunter.h"

namespace attune {
namespace {

std::string command_of(const HuntAsked& asked, const HuntFinding& f) {
  return fmt::format("attune parity --device {} --backend {} --case \"{}\"", asked.device, f.backend->name,
                     name(f.smallest));
}

Json as_json(const HuntAsked& asked, const Hunt& hunt, const Hunted& all, uint64_t runs) {
  Json backends = Json::array(), findings = Json::array();
  for (size_t n = 0; n < hunt.backends.size(); ++n)
    if (all.runs[n]) backends.push_back({{"backend", hunt.backends[n]->name}, {"runs", all.runs[n]}});
  for (const HuntFinding& f : all.findings)
    findings.push_back({{"ending", name(f.ending)}, {"backend", f.backend->name}, {"why", f.why}, {"index", f.index},
                        {"case", name(f.drawn)}, {"smallest", name(f.smallest)}, {"command", command_of(asked, f)},
                        {"failed_again", f.again}, {"tries", f.tries}});
  return {{"device", asked.device}, {"name", all.device_name}, {"seed", hunt.seed}, {"cases", all.cases},
          {"empty", all.empty}, {"over_tolerance", all.over}, {"most_over", all.most_over}, {"seconds", all.seconds},
          {"backends", backends}, {"findings", findings},
          {"passed", runs - all.findings.size()}, {"failed", all.findings.size()}};
}

void print_finding(const HuntAsked& asked, const Hunt& hunt, const HuntFinding& f) {
  fmt::print("\n{}  {}: {}\n", name(f.ending), f.backend->name, f.why);
  fmt::print("      {}\n", command_of(asked, f));
  fmt::print("      drawn as number {} of seed {}: {}\n", f.index, hunt.seed, name(f.drawn));
  if (f.tries)
    fmt::print("      run {} more, failed {}\n", counted(f.tries, "time"), counted(f.again, "time"));
}

}  // namespace

std::vector<std::string> hunt_kinds() { return {std::begin(kHuntKinds), std::end(kHuntKinds)}; }

void hunt_parity(const HuntAsked& asked, Context& context) {
  Hunt hunt{.device = asked.device, .cases = uint64_t(asked.cases), .threads = asked.threads,
            .launch_seconds = asked.launch_seconds, .max_seconds = asked.max_seconds};
  for (const std::string& word : asked.kinds) {
    const auto at = std::find(std::begin(kHuntKinds), std::end(kHuntKinds), word);
    hunt.kinds.push_back(HuntKind(at - std::begin(kHuntKinds)));
  }
  hunt.seed = asked.seed >= 0 ? uint64_t(asked.seed) : std::random_device{}() >> 1;
  // Vendor libraries take part only if --backend names them.
  for (const Backend* b : backends())
    if (asked.backend.empty() ? !b->only_by_name && !std::string_view(b->name).starts_with("vendor_")
                              : b->name == asked.backend)
      hunt.backends.push_back(b);
  if (hunt.backends.empty())
    return fail(context, kUsage,
                join("attune parity: backend ", not_one_of(asked.backend, backend_names())));
  const bool live = isatty(STDERR_FILENO) == 1;
  if (live)
    hunt.progress = [&](uint64_t done, size_t found) {
      fmt::print(stderr, "{}{} of {} problems, {} found", kErase, done, hunt.cases, found);
    };
  hunt.on_finding = [&](const HuntFinding& f) {  // a hunt that is stopped has still said what it found
    fmt::print(stderr, "{}{}  {}: {}\n      {}\n", live ? kErase : "", name(f.ending), f.backend->name, f.why,
               command_of(asked, f));
  };
  fflush(stdout);  // a forked process would print buffered output again
  const Hunted all = attune::hunt(hunt);
  if (live) fmt::print(stderr, "{}", kErase);
  if (!all.status.ok())
    return fail(context, all.device_is_wrong ? exit_of_device(asked.device) : kMachine,
                join("attune parity: ", all.status.message));
  uint64_t runs = 0;
  for (const uint64_t n : all.runs) runs += n;
  if (context.json) {
    fmt::print("{}\n", as_json(asked, hunt, all, runs).dump(2));
  } else {
    for (size_t n = 0; n < hunt.backends.size(); ++n)
      if (all.runs[n]) fmt::print("{:<22} {:>7} runs\n", hunt.backends[n]->name, all.runs[n]);
    for (const HuntFinding& f : all.findings) print_finding(asked, hunt, f);
    if (all.over)
      fmt::print("\n{} beyond parity's tolerance, by at most {:.2f} times; more than 3 times is a failure\n",
                 counted(all.over, "run"), all.most_over);
    size_t hangs = 0;
    for (const HuntFinding& f : all.findings) hangs += f.ending == Ending::hang;
    fmt::print("\n{} of seed {} on {} in {:.0f} s: {}, {}\n{} empty\n", counted(all.cases - all.empty, "problem"),
               hunt.seed, all.device_name, all.seconds, counted(hangs, "hang"),
               counted(all.findings.size() - hangs, "other failure"), all.empty);
  }
  if (!runs) fail(context, kFailed, join("attune parity: no backend ran any of ", counted(all.cases, "problem")));
  if (!all.findings.empty() && context.exit_code == kOk) context.exit_code = kFailed;
  if (!context.json) fmt::print("{} passed, {} failed\n", runs - all.findings.size(), all.findings.size());
}

}  // namespace attune
