// SPDX-License-Identifier: Apache-2.0
#include "tool/tune/check.h"

#include <algorithm>
#include <cctype>

#include "machine/host.h"
#include "plan/plan.h"

namespace attune {

bool device_called(const std::string& name, Device& out) {
  if (out = this_cpu(); out.name == name) return true;
  for (int n = 0; device_named(join("cuda:", n), out).ok(); ++n)
    if (out.name == name) return true;
  std::string word = name.substr(name.rfind(' ') + 1);
  for (char& c : word) c = char(std::tolower((unsigned char)(c)));
  return device_named(word, out).ok() && out.name == name;
}

std::vector<CheckedChoice> check_choices(const std::vector<Record>& records, const std::vector<Rule>& rules,
                                         const std::string& device, const GatherSettings& settings) {
  std::vector<CheckedChoice> all;
  const Gathered gathered = gather(records, settings);
  // The rows that tuning would use, each once with all its backends.
  std::map<std::pair<std::string, std::string>, std::map<std::string, double>> rows;
  std::map<std::string, double> spreads;
  Device known;
  const bool is_known = device_called(device, known);
  for (const Record& r : records) spreads[r.problem] = std::max(spreads[r.problem], r.aa_spread.value_or(0));
  for (const DeviceCurves& d : gathered.devices)
    for (const KeyCurves& k : d.keys)
      for (const Evidence& e : k.rows)
        if (d.device == device && !k.key.apart && e.median_ns > 0)
          rows[{e.problem, e.timing}][e.backend] = e.median_ns;
  for (const auto& [row, times] : rows) {
    Problem p;
    if (times.size() < 2 || !parse(row.first, p).ok()) continue;
    CheckedChoice c{.problem = row.first, .timing = row.second, .spread = spreads[row.first]};
    const Rule* const rule = match(p, rules);
    Plan plan;
    if (is_known && Planner{.device = known, .rules = rules}.plan(p, plan).ok()) c.chosen = plan.backend->name;
    else if (rule) c.chosen = rule->backend;
    if (!times.count(c.chosen)) c.chosen.clear();
    c.by_rule = rule && c.chosen == rule->backend;
    for (const Backend* b : backends())
      if (c.chosen.empty() && times.count(std::string(b->name))) c.chosen = b->name;
    const auto best = std::min_element(times.begin(), times.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    c.fastest = best->first;
    c.slower = times.at(c.chosen) / best->second - 1;
    all.push_back(std::move(c));
  }
  return all;
}

}  // namespace attune
