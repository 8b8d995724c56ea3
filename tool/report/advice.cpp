// SPDX-License-Identifier: Apache-2.0
// Recommends a subject for each kind of work, from the rows alone: the fastest subject with correct results on the same
// problems, and the exceptions where another one is clearly faster. Nothing is stated about what was not measured;
// results that were not checked are only counted.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tool/report/rows.h"
#include "tool/text.h"

namespace attune {
namespace {

std::string use_of(const Problem& p) {
  if (const std::string_view variant = word(p.variant); !variant.empty())
    return fmt::format("{} attention, {}", variant, p.pass == Pass::backward ? "backward" : "forward");
  if (p.mask.blocks.q) return p.pass == Pass::backward ? "Block-sparse, backward" : "Block-sparse, forward";
  if (p.pass == Pass::backward) return "Training: the backward";
  // One token, or a few speculative ones, against a cache.
  if (p.len_q <= 16 && p.len_k > p.len_q) return "Decoding from a cache";
  return p.len_q < p.len_k ? "Prefill behind a cache" : "Prefill and training: the forward";
}

// One problem with one timing: the subjects measured, fastest first.
struct Contest {
  const Measurement* first = nullptr;
  std::vector<const Measurement*> by_time{};
  bool clear() const {  // the first is faster by more than noise
    const Record &a = *by_time[0]->record, &b = *by_time[1]->record;
    return a.interval.is_sure() && b.interval.is_sure() && a.interval.high < b.interval.low &&
           b.median_ns > a.median_ns * (1 + std::max(a.aa_spread, b.aa_spread).value_or(0));
  }
  double lead() const { return by_time[1]->record->median_ns / by_time[0]->record->median_ns; }
};

// The newest row of each subject, by problem, device and timing.
std::vector<Contest> contests_of(const std::vector<const Measurement*>& rows) {
  std::vector<Contest> all;
  std::map<std::string, size_t> at;
  for (const Measurement* row : rows) {
    const Record& r = *row->record;
    const std::string key =
        fmt::format("{}\n{}\n{}\n{}", line_text(r), r.device, timing_text(r), r.threads);
    const auto [it, is_new] = at.emplace(key, all.size());
    if (is_new) all.push_back({.first = row});
    auto& some = all[it->second].by_time;
    std::erase_if(some, [&](const Measurement* other) { return other->record->subject == r.subject; });
    some.push_back(row);
  }
  for (Contest& c : all)
    std::stable_sort(c.by_time.begin(), c.by_time.end(),
                     [](const Measurement* a, const Measurement* b) {
                       return a->record->median_ns < b->record->median_ns;
                     });
  return all;
}

// "fa3 for bf16 d64 causal at 512 ... 1K keys: 3 problems, up to 1.20x as fast as ...", one per subject and kind.
std::vector<std::string> exceptions(const std::vector<Contest>& contests, const std::string& best) {
  struct Found { std::set<int> lengths{}; int count = 0; double most = 1; };
  std::map<std::pair<std::string, std::string>, Found> found;
  for (const Contest& c : contests) {
    const std::string& winner = c.by_time[0]->record->subject;
    if (c.by_time.size() < 2 || winner == best || !c.clear()) continue;
    const auto at = std::find_if(c.by_time.begin(), c.by_time.end(),
                                 [&](const Measurement* row) { return row->record->subject == best; });
    Found& f = found[{winner, kind_text(*c.first)}];
    f.lengths.insert(c.first->length), ++f.count;
    if (at != c.by_time.end())
      f.most = std::max(f.most, (*at)->record->median_ns / c.by_time[0]->record->median_ns);
  }
  std::vector<std::string> all;
  for (const auto& [key, f] : found) {
    const std::string lengths = f.lengths.size() == 1
                                    ? length_text(*f.lengths.begin())
                                    : length_text(*f.lengths.begin()) + " ... " + length_text(*f.lengths.rbegin());
    all.push_back(fmt::format("{} for {} at {} keys: {}{}", key.first, key.second, lengths,
                              counted(size_t(f.count), "problem"),
                              f.most > 1 ? ", up to " + factor_text(f.most) + " as fast as " + best : ""));
  }
  return all;
}

Advice advise(const std::string& use, const std::vector<Contest>& contests) {
  Advice a{.use = use};
  std::vector<const Contest*> held;  // contests with at least two subjects
  std::set<std::string> alone;
  for (const Contest& c : contests) {
    if (c.by_time.size() > 1) held.push_back(&c);
    else alone.insert(c.by_time[0]->record->subject);
  }
  if (held.empty()) {
    std::string names;
    for (const std::string& s : alone) names += (names.empty() ? "" : ", ") + s;
    a.sentence = fmt::format("Only {} was measured, at {}: no comparison is possible.", names,
                             counted(contests.size(), "problem"));
    return a;
  }
  struct Score { int wins = 0; double logs = 0; };
  std::map<std::string, Score> scores;
  int close = 0;
  std::set<std::string> there;
  for (const Contest* c : held) {
    for (const Measurement* row : c->by_time) there.insert(row->record->subject);
    if (!c->clear()) {
      ++close;
      continue;
    }
    Score& s = scores[c->by_time[0]->record->subject];
    ++s.wins, s.logs += std::log(c->lead());
  }
  if (scores.empty()) {
    a.sentence = fmt::format("No clear winner: at all of {} the first two of {} are too close to call.",
                             counted(held.size(), "problem"), fmt::join(there, ", "));
    return a;
  }
  const auto best = std::max_element(scores.begin(), scores.end(), [](const auto& x, const auto& y) {
    return std::pair(x.second.wins, x.second.logs) < std::pair(y.second.wins, y.second.logs);
  });
  a.sentence = fmt::format("Use {}: fastest at {} of {}, {} as fast as the next best there (geometric mean)",
                           best->first, best->second.wins, counted(held.size(), "problem"),
                           factor_text(std::exp(best->second.logs / best->second.wins)));
  if (close) a.sentence += fmt::format("; at {} the first two are too close to call", close);
  a.sentence += ".";
  a.exceptions = exceptions(contests, best->first);
  return a;
}

}  // namespace

std::vector<Advice> advice_of(const Measurements& rows) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<const Measurement*>> by_use;
  std::set<std::string> machines;
  for (const Measurement& row : rows.all)
    if (row.ok()) machines.insert(device_of(*row.record));
  std::map<std::string, size_t> unchecked;
  for (const Measurement& row : rows.all) {
    const Word<CheckVerdict>& verdict = row.record->parity.verdict;
    if (!row.ok() || !row.length || verdict == CheckVerdict::fail) continue;
    const std::string use =
        use_of(row.problem) + (machines.size() > 1 ? " (" + device_of(*row.record) + ")" : "");
    if (!by_use.count(use)) order.push_back(use);
    std::vector<const Measurement*>& right = by_use[use];
    if (passed(verdict)) right.push_back(&row);
    else ++unchecked[use];
  }
  std::vector<Advice> all;
  for (const std::string& use : order) {
    const size_t left_out = unchecked[use];
    if (by_use[use].empty()) {
      all.push_back({.use = use, .sentence = fmt::format("No recommendation: none of {} has a checked result.",
                                                         counted(left_out, "row"))});
      continue;
    }
    all.push_back(advise(use, contests_of(by_use[use])));
    if (left_out)
      all.back().sentence += fmt::format(" Left out: {} whose result was not checked.", counted(left_out, "row"));
  }
  return all;
}

}  // namespace attune
