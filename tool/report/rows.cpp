// SPDX-License-Identifier: Apache-2.0
#include "tool/report/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tool/subjects/ring_run.h"
#include "tool/text.h"

namespace attune {
namespace {

// For block lists of a pattern, the bound follows from the pattern and the length, so it is left out of the line.
std::string with_pattern(const std::string& line, const std::string& pattern) {
  return pattern.empty() ? line : line + " | " + pattern;
}
Problem without_bound(Problem p, const std::string& pattern) {
  if (!pattern.empty() && p.mask.blocks.q) p.mask.blocks.bound = 1;
  return p;
}

// The line without the lengths, and without the batch if it varies with them.
std::string family_name(const Measurement& row, bool with_batch) {
  const std::string& pattern = row.record->pattern;
  Problem p = without_bound(row.problem, pattern);
  const bool square = p.len_q == p.len_k;
  const int64_t tokens = int64_t(p.batch) * p.len_k;
  p.len_k = 1;
  if (square) p.len_q = 1;
  if (!with_batch) p.batch = 1;
  std::string line = name(p);
  const auto cut = [&](std::string_view part) {
    if (const size_t at = line.find(part); at != line.npos) line.erase(at, part.size());
  };
  if (row.whole.len_k != row.problem.len_k) cut(fmt::format(" tokens={}", row.whole.len_k));
  cut(square ? " q1 k1" : " k1");
  if (with_batch) return with_pattern(line, pattern);
  cut(" b1");
  return with_pattern(line, pattern) + fmt::format(", batch x length {}", tokens);
}

// What varies between the records besides problem and subject.
struct Varied {
  std::set<int> threads{};
  std::set<std::string> cpus{}, gpus{}, layouts{}, distributions{};
  explicit Varied(const std::vector<Record>& records) {
    for (const Record& r : records) {
      if (r.threads) threads.insert(r.threads);
      (r.threads ? cpus : gpus).insert(device_of(r));
      layouts.insert(r.layout), distributions.insert(r.distribution);
    }
  }
  std::string subject(const Record& r) const {
    return (r.threads ? cpus : gpus).size() > 1 ? join(r.subject, ", ", device_of(r)) : r.subject;
  }
  std::string series(const Record& r) const {
    std::string s = subject(r);
    // The default timing of a device is not named.
    if (const std::string timing = timing_text(r); timing != (r.threads ? "warm" : "cold")) s += " " + timing;
    if (threads.size() > 1 && r.threads) s += ", " + counted(r.threads, "thread");
    if (layouts.size() > 1) s += ", " + r.layout;
    if (distributions.size() > 1) s += ", " + r.distribution;
    return s;
  }
};

// A sweep may keep batch x length constant. Each length then has its own batch, and all belong to one family.
void join_batches(std::vector<Measurement>& rows) {
  std::map<std::string, std::set<int>> by_family, by_tokens;
  for (const Measurement& row : rows) {
    if (!row.length || !row.ok()) continue;
    by_family[row.family].insert(row.length);
    if (row.problem.len_q == row.problem.len_k) by_tokens[family_name(row, false)].insert(row.length);
  }
  for (Measurement& row : rows) {
    if (!row.length || row.problem.len_q != row.problem.len_k || by_family[row.family].size() > 1) continue;
    if (std::string joined = family_name(row, false); by_tokens[joined].size() > 1)
      row.family = std::move(joined);
  }
}

}  // namespace

std::string Measurements::rate(double gflops) const { return digits_text(gflops / rate_scale); }

Measurements rows_of(const std::vector<Record>& records) {
  Measurements rows;
  const Varied varied(records);
  double fastest = 0;
  for (const Record& r : records) {
    Measurement row{.record = &r, .subject = varied.subject(r), .series = varied.series(r), .family = line_text(r)};
    if (parse(r.problem, row.problem).ok()) {
      row.whole = whole_problem(row.problem);
      row.length = row.whole.len_k;
      row.family = family_name(row, true);
    }
    if (row.ok()) rows.looks.emplace(row.series, int(rows.looks.size()));
    fastest = std::max({fastest, r.gflops, r.ceiling_gflops});
    rows.all.push_back(std::move(row));
  }
  if (fastest >= 1e4) rows.rate_scale = 1e3, rows.rate_unit = "TFLOP/s";
  join_batches(rows.all);
  return rows;
}

std::vector<std::pair<std::string, std::vector<Measurement>>> families_of(const Measurements& rows) {
  std::vector<std::pair<std::string, std::vector<Measurement>>> families;
  std::map<std::string, size_t> at;
  for (const Measurement& row : rows.all) {
    const auto [it, is_new] = at.emplace(row.family, families.size());
    if (is_new) families.push_back({row.family, {}});
    families[it->second].second.push_back(row);
  }
  for (auto& [family, all] : families)
    std::stable_sort(all.begin(), all.end(),
                     [](const Measurement& a, const Measurement& b) { return a.length < b.length; });
  return families;
}

std::string length_text(double keys) {
  const auto n = int64_t(keys);
  return n >= 1024 && n % 1024 == 0 ? fmt::format("{}K", n / 1024) : fmt::format("{}", n);
}
std::string nanoseconds_text(double ns) { return seconds_text(ns * 1e-9); }
std::string nanoseconds_tick(double ns) { return tick_text(ns * 1e-9); }

std::string kind_text(const Measurement& row) {
  Problem q = without_bound(row.problem, row.record->pattern);
  q.batch = q.len_q = q.len_k = 1;
  const std::string line = name(q);
  const size_t dtype = line.find(' ') + 1, after = line.find(" b1 ");
  const size_t dims = line.find(" d", after);
  return with_pattern(line.substr(dtype, after - dtype) + line.substr(dims), row.record->pattern);
}

TableCell number_cell(double value, std::string text, Tone tone) { return {std::move(text), value, tone}; }
TableCell empty_cell() { return {.text = "", .sort = NAN, .tone = Tone::weak}; }
std::string confidence_text(const Interval& i) {
  return i.is_sure() ? "" : fmt::format(" at {:.0f} %", 100 * i.confidence);
}
std::string interval_head(const std::vector<Measurement>& rows) {
  const auto holds = [](const Measurement& row) { return !row.ok() || row.record->interval.is_sure(); };
  return std::all_of(rows.begin(), rows.end(), holds) ? "95 % interval" : "interval";
}
std::string ratio_head(const std::vector<Measurement>& rows) {
  const auto holds = [](const Measurement& row) { return row.record->ratio.interval.is_sure(); };
  return std::all_of(rows.begin(), rows.end(), holds) ? "95 % interval" : "interval";
}
std::string checked_text(const Word<CheckVerdict>& v) {
  return v == CheckVerdict::none ? std::string(name(CheckVerdict::unchecked)) : v.text();
}

TableCell verdict_cell(const std::string& verdict) {
  const Tone tone = verdict == "FASTER" ? Tone::good : verdict == "SLOWER" ? Tone::bad : Tone::weak;
  return {verdict, NAN, tone};
}

}  // namespace attune
