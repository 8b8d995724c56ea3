// SPDX-License-Identifier: Apache-2.0
#include "tool/record/ranking.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/variant/ring.h"
#include "plan/plan.h"
#include "tool/table.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr std::string_view kDense = "dense";

// What is equal in rows that may be compared, and what differs.
struct Place {
  std::string sizes{};   // of the whole problem; empty: the line cannot be read
  std::string group{};   // pass, timing, device: what a ranking is about
  std::string what{};
  bool module = false;
  bool is_dense() const { return what == kDense || what.ends_with(" dense"); }
};

// "a=1 tokens=9 b=2" without the parameters that follow from the sizes.
std::string without_sizes(std::string text) {
  for (const std::string_view name : {" tokens=", " begin="})
    if (const size_t at = text.find(name); at != text.npos) text.erase(at, text.find(' ', at + 1) - at);
  return text;
}

// "forward multihead f16 b1 s512 e512 h8 norm=1 | causal : ring ... tokens=2048 | 64x64 pattern"
void place_module(const Record& r, Place& p) {
  const size_t bar = r.problem.find(" | ");
  std::string head = r.problem.substr(0, bar), tail = bar == r.problem.npos ? "" : r.problem.substr(bar + 3);
  const std::string kind = head.substr(head.find(' ') + 1, head.find(' ', head.find(' ') + 1) - head.find(' ') - 1);
  const size_t variant = tail.find(" : "), list = tail.find(" | ");
  const std::string mask = tail.substr(0, std::min(variant, list));
  if (const size_t tokens = tail.find("tokens="); tokens != tail.npos)  // the line has those of a rank
    if (const size_t s = head.find(" s"); s != head.npos)
      head.replace(s + 2, head.find(' ', s + 2) - s - 2, tail.substr(tokens + 7, tail.find(' ', tokens) - tokens - 7));
  p.module = true, p.sizes = join(head, " | ", mask);
  p.what = join(kind, " ", list != tail.npos      ? tail.substr(list + 3)
                           : variant != tail.npos ? without_sizes(tail.substr(variant + 3))
                                                  : std::string(kDense));
}

std::string mask_text(const Problem& p) {
  const std::string line = name(p);
  const size_t at = line.find(" window");
  return at == line.npos ? "" : line.substr(at + 1, line.find(' ', at + 1) - at - 1);
}

Place place_of(const Record& r) {
  Place p;
  p.group = join(r.problem.substr(0, r.problem.find(' ')), ", ", timing_text(r), ", ", device_of(r),
                 r.threads ? join(", ", r.threads, r.threads == 1 ? " thread" : " threads") : "");
  Problem line;
  if (!parse(r.problem, line).ok()) {
    const size_t space = r.problem.find(' ');
    for (const std::string_view kind : {"multihead ", "llama ", "longnet_", "feed_forward "})
      if (space != r.problem.npos && r.problem.compare(space + 1, kind.size(), kind) == 0) place_module(r, p);
    return p;
  }
  const bool ring = word(line.variant) == "ring";
  const Problem whole = ring ? whole_of(line, ring_of(line)) : line;
  const std::string variant(line.variant.text), window = mask_text(line);
  const bool listed = line.mask.blocks.q != 0;
  p.what = !variant.empty() ? without_sizes(variant) + (listed ? " | " + r.pattern : "")
           : listed         ? r.pattern.empty() ? "block lists" : r.pattern
           : !window.empty() ? window
                             : std::string(kDense);
  // A window that ends at the query hides what a causal mask hides, and more.
  const bool causal = whole.mask.kind == MaskKind::causal ||
                      (whole.mask.kind == MaskKind::window && whole.mask.right == 0);
  Problem plain = whole;
  plain.mask = {.kind = causal ? MaskKind::causal : MaskKind::full, .align = whole.mask.align,
                .k_step = whole.mask.k_step, .k_phase = whole.mask.k_phase};
  plain.variant = {};
  p.sizes = name(plain);
  return p;
}

bool has_time(const Record& r) { return r.status == RecordStatus::ok && r.median_ns > 0; }

double memory_of(const Record& r) {
  const double beside = r.peer ? r.taken_bytes : double(r.workspace_bytes);
  return beside < 0 || r.tensor_bytes <= 0 ? 0 : r.tensor_bytes + beside;
}

std::string implementation(const Record& r, const Place& p) {
  if (p.module || p.what.starts_with(r.subject + " ") || p.what == r.subject) return p.what;
  return join(r.subject, ": ", p.what);
}

struct Groups {
  std::vector<Place> places{};                             // of each record
  std::map<std::string, std::vector<size_t>> by_sizes{};   // group and sizes
  std::map<std::string, size_t> base{};
};

bool is_slow(const Record& r) {  // runs only by name, so the planner never chooses it
  const Backend* const b = find_backend(r.subject);
  return b && b->only_by_name;
}

bool is_named(const std::string& base, const Record& r, const Place& p) {
  return base == r.subject || base == p.what || base == implementation(r, p) || p.what.starts_with(base + " ");
}

Groups groups_of(const std::vector<Record>& records, const std::string& base) {
  Groups g;
  for (const Record& r : records) g.places.push_back(place_of(r));
  for (size_t n = 0; n < records.size(); ++n)
    if (!g.places[n].sizes.empty()) g.by_sizes[join(g.places[n].group, "\n", g.places[n].sizes)].push_back(n);
  for (const auto& [key, members] : g.by_sizes)
    for (const size_t n : members) {
      const Record& r = records[n];
      const Place& p = g.places[n];
      const bool counts = base.empty() ? p.is_dense() && !r.peer && !is_slow(r) : is_named(base, r, p);
      if (!has_time(r) || !counts) continue;
      const auto [at, is_new] = g.base.try_emplace(key, n);
      if (!is_new && r.median_ns < records[at->second].median_ns) at->second = n;
    }
  return g;
}

// Sums of one implementation over the sizes.
struct Sums {
  int rows = 0, sized = 0;
  double log_speed = 0, log_memory = 0, least = INFINITY, most = 0;
  bool is_base = false;
};

void set_places(std::vector<Ranked>& all) {
  const auto order = [&](double Ranked::*figure, int Ranked::*place) {
    std::vector<Ranked*> by;
    for (Ranked& r : all)
      if (r.*figure > 0) by.push_back(&r);
    std::stable_sort(by.begin(), by.end(), [&](const Ranked* a, const Ranked* b) { return a->*figure > b->*figure; });
    for (size_t n = 0; n < by.size(); ++n)
      by[n]->*place = n && by[n - 1]->*figure == by[n]->*figure ? by[n - 1]->*place : int(n) + 1;
  };
  order(&Ranked::speed_up, &Ranked::by_speed), order(&Ranked::memory, &Ranked::by_memory);
  std::stable_sort(all.begin(), all.end(), [](const Ranked& a, const Ranked& b) { return a.by_speed < b.by_speed; });
}

}  // namespace

Status is_base(const std::string& base, const std::vector<Record>& records) {
  std::set<std::string> known;
  for (const Record& r : records) {
    const Place p = place_of(r);
    if (is_named(base, r, p)) return Status::good();
    known.insert(p.what);
    if (!r.subject.empty()) known.insert(r.subject);
  }
  known.erase("");
  std::string all;
  for (const std::string& one : known) all += join(all.empty() ? "" : ", ", one);
  return Status::no("--base: ", not_one_of(base, all));
}

std::string what_of(const Record& r) { return place_of(r).what; }

std::vector<Counterpart> counterparts(const std::vector<Record>& records, const std::string& base) {
  const Groups g = groups_of(records, base);
  std::vector<Counterpart> all(records.size());
  for (const auto& [key, members] : g.by_sizes) {
    const auto at = g.base.find(key);
    if (at == g.base.end()) continue;
    const Record& from = records[at->second];
    for (const size_t n : members) {
      // Subjects of one line are compared by their baseline; only another line needs a counterpart.
      const bool same = line_text(records[n]) == line_text(from);
      if (n == at->second || !has_time(records[n]) || (same && base.empty())) continue;
      all[n] = {&from, median_ratio(from.samples_ns, records[n].samples_ns)};
    }
  }
  return all;
}

std::vector<Ranking> rankings(const std::vector<Record>& records, const std::string& base) {
  const Groups g = groups_of(records, base);
  std::map<std::string, std::map<std::string, Sums>> sums;  // by group, then by implementation
  std::map<std::string, std::set<std::string>> sizes, whats;
  for (const auto& [key, members] : g.by_sizes) {
    const auto at = g.base.find(key);
    if (at == g.base.end()) continue;
    const Record& from = records[at->second];
    std::map<std::string, size_t> fastest;  // one row of each implementation
    for (const size_t n : members) {
      if (!has_time(records[n])) continue;
      const auto [it, is_new] = fastest.try_emplace(implementation(records[n], g.places[n]), n);
      if (!is_new && records[n].median_ns < records[it->second].median_ns) it->second = n;
    }
    const std::string group = key.substr(0, key.find('\n')) + (g.places[at->second].module ? ", modules" : "");
    for (const auto& [name, n] : fastest) {
      Sums& s = sums[group][name];
      const double speed = from.median_ns / records[n].median_ns;
      ++s.rows, s.log_speed += std::log(speed), s.least = std::min(s.least, speed), s.most = std::max(s.most, speed);
      s.is_base = s.is_base || n == at->second;
      if (const double mine = memory_of(records[n]), theirs = memory_of(from); mine > 0 && theirs > 0)
        ++s.sized, s.log_memory += std::log(theirs / mine);
      whats[group].insert(g.places[n].what);
    }
    sizes[group].insert(key);
  }
  std::vector<Ranking> all;
  for (const auto& [group, by_name] : sums) {
    if (whats[group].size() < 2) continue;
    Ranking& ranking = all.emplace_back(Ranking{.title = group, .sizes = int(sizes[group].size())});
    ranking.base = base.empty() ? "the fastest dense row of each size" : base;
    for (const auto& [name, s] : by_name)
      ranking.all.push_back({.name = name, .is_base = s.is_base, .rows = s.rows,
                             .speed_up = std::exp(s.log_speed / s.rows), .least = s.least, .most = s.most,
                             .memory = s.sized ? std::exp(s.log_memory / s.sized) : 0});
    set_places(ranking.all);
  }
  return all;
}

std::string ranking_text(const std::vector<Ranking>& all, int width) {
  std::string text;
  for (const Ranking& ranking : all) {
    text += fmt::format("\nimplementations, {}, against {}, {} size{}\n", ranking.title, ranking.base, ranking.sizes,
                        ranking.sizes == 1 ? "" : "s");
    constexpr Cells number = Cells::number;
    TextTable t{.columns = {{"speed", number}, {"name"}, {"speed-up", number}, {"range", number},
                            {"by memory", number}, {"memory", number}, {"sizes", number}}};
    for (const Ranked& r : ranking.all)
      t.rows.push_back({join(r.by_speed), r.name, factor_text(r.speed_up),
                        join(digits_text(r.least), " - ", digits_text(r.most)), r.by_memory ? join(r.by_memory) : "-",
                        r.memory > 0 ? factor_text(r.memory) : "-", join(r.rows)});
    text += to_text(std::move(t), width);
  }
  return text;
}

}  // namespace attune
