// SPDX-License-Identifier: Apache-2.0
#include "tool/record/busy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "tool/text.h"

namespace attune {
namespace {

using Records = std::vector<const Record*>;

// Clocks that a governor changes within a run differ by less; ceilings of one machine differ by up to 1.28 within
// minutes (timing/ceilings.cpp).
constexpr double kSameClock = 1.05, kSameCeiling = 1.35;

bool is_timed(const Record& r) { return !r.samples_ns.empty(); }

void raise(double& most, double value) { most = std::max(most, value); }

// The largest of each reading among records that are remarked, so that the sentence is true of one of them.
struct Busiest {
  Load load{};
  int records = 0, of = 0;
  bool certain = false, gpu = false, cpu = false;

  void add(const Record& r) {
    if (!is_timed(r)) return;
    ++of;
    const bool on_gpu = r.threads == 0;
    bool is_certain = false;
    if (busy_text(r.load, on_gpu, &is_certain).empty()) return;
    ++records, certain = certain || is_certain;
    (on_gpu ? gpu : cpu) = true;
    if (on_gpu) {
      raise(load.gpu_others, r.load.gpu_others);
      load.gpu_processes = std::max(load.gpu_processes, r.load.gpu_processes);
      return;
    }
    raise(load.seconds, r.load.seconds), raise(load.others, r.load.others), raise(load.steal, r.load.steal);
    raise(load.waited, r.load.waited);
    load.cpus = std::max(load.cpus, r.load.cpus);
  }
  std::string text() const {
    std::string all;
    for (const bool on_gpu : {false, true})
      if (on_gpu ? gpu : cpu) all += join(all.empty() ? "" : ", ", busy_text(load, on_gpu));
    return all;
  }
};

Busiest busiest(const Records& records) {
  Busiest b;
  for (const Record* r : records) b.add(*r);
  return b;
}

Records pointers(std::span<const Record> records) {
  Records all;
  for (const Record& r : records) all.push_back(&r);
  return all;
}

// The program that measured our own subjects, if all records come from one and it is known.
std::string program(const Records& records) {
  std::set<std::string> all;
  for (const Record* r : records)
    if (!r->peer && is_timed(*r)) all.insert(r->provenance.binary);
  return all.size() == 1 ? *all.begin() : "";
}

// The median over the records of a side in `key`; 0 if there is none.
template <class Value>
double middle(const Records& records, const Value& value) {
  std::vector<double> all;
  for (const Record* r : records)
    if (const double v = value(*r); v > 0 && is_timed(*r)) all.push_back(v);
  return median(all);
}

bool differs(double a, double b, double same) { return a > 0 && b > 0 && std::max(a / b, b / a) > same; }

std::string setting_of_ceiling(const Record& r) {
  return r.ceiling + (r.threads ? join(", ", r.threads, r.threads == 1 ? " thread" : " threads") : "");
}

}  // namespace

std::string busy_summary(std::span<const Record> records) {
  const Busiest b = busiest(pointers(records));
  if (!b.records) return "";
  // Threads may also wait for each other: they are more than the CPUs, or a quota holds them.
  const bool unknown = b.load.others < 0 && b.load.steal < 0;
  const bool by_others = b.gpu || unknown || b.load.others >= 0.05 || b.load.steal >= 0.05;
  const bool one = b.records == 1;
  return fmt::format("{}: {} of {} {} measured while {}{}; {} times {} too long",
                     by_others ? "busy machine" : "too few CPUs", b.records, counted(b.of, "record"),
                     one ? "was" : "were", b.text(),
                     one ? "" : " at most", one ? "its" : "their", b.certain ? "are" : "may be");
}

std::string spread_summary(std::span<const Record> records) {
  double most = kSteadySpread;
  const Record* of = nullptr;
  for (const Record& r : records)
    if (const std::optional<double> spread = r.aa_spread; is_timed(r) && spread > most) most = *spread, of = &r;
  if (!of) return "";
  return fmt::format("A/A spread {:.1f} % ({}): the machine was not steady, and smaller differences cannot be told",
                     100 * most, setting_text(*of));
}

std::vector<std::string> machine_changes(const Records& before, const Records& after, bool moved) {
  std::vector<std::string> all;
  if (const std::string one = program(before); moved && !one.empty() && one == program(after))
    all.push_back("the machine changed, not the code: both sides are the same program (binary " + one + ")");
  const Busiest was = busiest(before), is = busiest(after);
  for (const auto& [side, name] : {std::pair(&was, "before"), {&is, "after"}})
    if (side->records)
      all.push_back(fmt::format("the machine was busy {}: in {} of {} {}{}", name, side->records,
                                counted(side->of, "record"),
                                side->records > 1 ? "at most " : "", side->text()));
  const auto clock = [](const Record& r) { return r.threads ? r.load.cpu_mhz : 0; };
  if (const double a = middle(before, clock), b = middle(after, clock); differs(a, b, kSameClock))
    all.push_back(fmt::format("the machine changed: its CPU clock was {:.0f} MHz before and {:.0f} MHz after", a, b));
  std::map<std::string, std::pair<Records, Records>> ceilings;
  for (const Record* r : before) ceilings[setting_of_ceiling(*r)].first.push_back(r);
  for (const Record* r : after) ceilings[setting_of_ceiling(*r)].second.push_back(r);
  for (const auto& [name, sides] : ceilings) {
    const auto ceiling = [](const Record& r) { return r.ceiling_gflops; };
    const double a = middle(sides.first, ceiling), b = middle(sides.second, ceiling);
    if (differs(a, b, kSameCeiling))
      all.push_back(fmt::format("the machine changed: its measured ceiling ({}) was {} GFLOP/s before and {} after",
                                name, digits_text(a), digits_text(b)));
  }
  return all;
}

}  // namespace attune
