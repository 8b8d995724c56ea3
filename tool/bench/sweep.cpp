// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/sweep.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "plan/plan.h"
#include "tool/bench/estimate.h"
#include "tool/record/seal.h"
#include "tool/text.h"

namespace attune {
namespace {

double seconds_now() {
  static const Clock clock = host_clock();
  return double(clock.now()) * 1e-9;
}

// Name of the backend that the planner chooses, which is the subject in its record; "attune" if it refuses.
std::string chosen(const Problem& p, const Bench& b) {
  Plan plan;
  const Planner planner{.device = b.device, .rules = b.rules};
  return planner.plan(p, plan).ok() ? std::string(plan.backend->name) : "attune";
}

// True if every subject requested now has a record. A record of "attune" stands for the whole row, which did not fit or
// failed; as the planner's refusal it counts only for rows that leave the choice to the planner. Peers run only if some
// backend supported the row.
bool has_all_subjects(const std::vector<Record>& made, const BenchRow& row, const Bench& b) {
  const auto find = [&](std::string_view name) -> const Record* {
    const auto it = std::find_if(made.begin(), made.end(), [&](const Record& r) { return r.subject == name; });
    return it == made.end() ? nullptr : &*it;
  };
  const Record* const whole = find("attune");
  if (whole && (whole->status != RecordStatus::unsupported || whole->left_out != LeftOut::no)) return true;
  if (!row.label.empty() && !row.train) return false;
  bool taken = false;
  for (const std::string& word : wanted_backends(row.problem, b)) {
    const Record* const r = find(word.empty() ? chosen(row.problem, b) : word);
    if (!r) return false;
    taken = taken || r->status != RecordStatus::unsupported;
  }
  return !taken || std::all_of(b.peers.begin(), b.peers.end(), [&](const attune_peer* p) { return find(p->name); });
}

// The subject that compare() in row.cpp would take for these records.
std::string baseline_of(const std::vector<Record>& made, const std::string& named) {
  const Record* base = nullptr;
  for (const Record& r : made) {
    if (r.samples_ns.empty() || r.status != RecordStatus::ok) continue;
    if (!base || (r.peer && r.median_ns < base->median_ns)) base = &r;
  }
  return !named.empty() ? named : base ? base->subject : "";
}

// How complete records of a row differ from what is requested now; "" if they answer it. What a record does not hold,
// such as --max-seconds, does not count.
std::string difference(const std::vector<Record>& made, const Bench& b) {
  const TimingSettings& t = b.timing;
  const double usual = std::min(std::max(1.0, 10 * t.warm_up_seconds), t.max_seconds / 4);
  const double most = t.warm_up_all ? t.max_seconds : usual;
  const std::string base = baseline_of(made, b.baseline);
  for (const Record& r : made) {
    if (b.check && r.parity.verdict == CheckVerdict::unchecked && r.parity.message == kNotAskedFor)
      return "their results were not checked";
    if (r.samples_ns.empty() || r.status != RecordStatus::ok) continue;
    if (!r.baseline.empty() && r.baseline != base) return "their baseline was another";
    if (r.precision > 1.001 * t.precision) return "their --precision was coarser";
    if (r.most_samples > 0 && r.most_samples != t.max_samples) return "their --samples were others";
    // Half of the median: warm-up calls are not timed one by one.
    const double warm_up = std::max(t.warm_up_seconds, 0.5e-9 * t.warm_up_calls * r.median_ns);
    if (r.warm_up_s < 0.99 * std::min(warm_up, most)) return "their warm-up was shorter";
    if (b.timer && b.energy_seconds > 0 && r.sustained_ns <= 0) return "their energy was not measured";
  }
  return "";
}

double seconds_of(const BenchRow& row, const Bench& b) {
  if (is_too_slow(row, b)) return 0;
  return estimated_seconds(row.problem, b, b.peers.size());
}

Record left_out(const BenchRow& row, const Bench& b, LeftOut as, std::string why) {
  Record r = blank_record(row, b);
  r.subject = "attune", r.row_records = 1;
  r.status = RecordStatus::unsupported, r.left_out = as, r.message = join(name(as), ": ", why);
  return r;
}

std::vector<Record> too_slow(const BenchRow& row, const Bench& b) {
  return {left_out(row, b, LeftOut::not_tried,
                   join("one call is estimated at ", seconds_text(call_seconds(row, b)), ", suites allow ",
                        seconds_text(row.most_call_s), "; give it as a problem line to measure it"))};
}

}  // namespace

void Sweep::keep(std::vector<Record> records) {
  for (Record& r : records) {
    std::vector<Record>& row = kept[resume_key(r)];
    if (!row.empty() && row[0].run != r.run) row.clear();
    row.push_back(std::move(r));
  }
}

const std::vector<Record>* Sweep::complete(const BenchRow& row, const Bench& b) const {
  if (kept.empty()) return nullptr;
  const auto it = kept.find(resume_key(blank_record(row, b)));
  return it != kept.end() && has_all_subjects(it->second, row, b) ? &it->second : nullptr;
}

std::vector<Record> Sweep::kept_of(const BenchRow& row, const Bench& b) const {
  const std::vector<Record>* const made = complete(row, b);
  return made && difference(*made, b).empty() ? *made : std::vector<Record>{};
}

std::string Sweep::not_answered() const {
  size_t count = 0;
  std::set<std::string> why;
  for (const Bench& b : benches)
    for (const BenchRow& row : rows)
      if (const std::vector<Record>* const made = complete(row, b))
        if (const std::string what = difference(*made, b); !what.empty()) ++count, why.insert(what);
  if (!count) return "";
  std::string text = join(count, count == 1 ? " row is" : " rows are", " measured again: ");
  for (const std::string& what : why) text += join(what == *why.begin() ? "" : ", ", what);
  return text;
}

size_t Sweep::done() const {
  size_t count = 0;
  for (const Bench& b : benches)
    for (const BenchRow& row : rows) count += !kept_of(row, b).empty();
  return count;
}

bool Sweep::changed_sources() const {
  for (const Bench& b : benches)
    for (const BenchRow& row : rows)
      for (const Record& r : kept_of(row, b))
        if (r.provenance.dirty || b.provenance.dirty) return true;
  return false;
}

double Sweep::seconds_left() const {
  double seconds = 0;
  for (const Bench& b : benches)
    for (const BenchRow& row : rows)
      if (kept_of(row, b).empty()) seconds += seconds_of(row, b);
  return seconds;
}

Status Sweep::run(std::vector<Record>& out) {
  Chain chain(rows.size() * benches.size() - done(), after);
  int number = -1;
  for (Bench& b : benches) {
    if (progress) {
      b.timing.progress = [](void* p, double share) { static_cast<Progress*>(p)->share(share, seconds_now()); };
      b.timing.progress_context = progress;
    }
    for (const BenchRow& row : rows) {
      note_row(++number);
      std::vector<Record> made = kept_of(row, b);
      if (made.empty()) {
        if (b.timing.stop && *b.timing.stop) continue;  // kept rows still appear in the table
        if (progress) progress->begin(name(row), seconds_of(row, b), seconds_now());
        b.pattern = row.pattern;
        std::optional<AnswerKept> kept;
        if (!b.peers.empty()) kept.emplace();
        made = is_too_slow(row, b)  ? too_slow(row, b)
               : row.train          ? measure_train(row, b)
               : row.module.empty() ? measure_row(row.problem, b)
                                    : measure_module(row, b);
        kept.reset();
        chain.add(made);
        for (RecordFile* const to : {file, session})
          if (Status s = to ? to->write(made) : Status::good(); !s.ok()) return s;
        if (progress) progress->clear(), progress->end(made);
      } else if (progress && shows_kept) {
        progress->kept(made);
      }
      for (Record& r : made) {
        if (each) each(r);
        out.push_back(std::move(r));
      }
    }
  }
  return Status::good();
}

}  // namespace attune
