#include "tool/tune/check.h"

#include <algorithm>

#include "plan/plan.h"

namespace attune {

std::vector<CheckedChoice> check_choices(const std::vector<Record>& records, const std::vector<Rule>& rules,
                                         const std::string& device, const GatherSettings& settings) {
  std::vector<CheckedChoice> all;
  const Gathered gathered = gather(records, settings);
  // The same rows as tuning would take, each once with all its backends.
  std::map<std::pair<std::string, std::string>, std::map<std::string, double>> rows;
  std::map<std::string, double> spreads;
  for (const Record& r : records) spreads[r.problem] = std::max(spreads[r.problem], r.aa_spread);
  for (const DeviceCurves& d : gathered.devices)
    for (const KeyCurves& k : d.keys)
      for (const Evidence& e : k.rows)
        if (d.device == device && !k.key.apart && e.median_ns > 0)
          rows[{e.problem, e.timing}][e.backend] = e.median_ns;
  for (const auto& [row, times] : rows) {
    Problem p;
    if (times.size() < 2 || !parse(row.first, p).ok()) continue;
    CheckedChoice c{.problem = row.first, .timing = row.second, .spread = spreads[row.first]};
    if (const Rule* rule = match(p, rules); rule && times.count(rule->backend))
      c.chosen = rule->backend, c.by_rule = true;
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
