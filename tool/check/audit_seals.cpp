// SPDX-License-Identifier: Apache-2.0
// Seals and their chain: what was edited, dropped, moved or copied after bench wrote it. See record/seal.h.
#include <map>
#include <set>

#include "tool/check/parts.h"
#include "tool/text.h"

namespace attune {
namespace {

bool has_seal(const Record& r) {
  return !r.seal.empty() || !r.previous.empty() || r.planned_rows != 0 || r.closes || r.precision != 0;
}

struct Seals {
  std::vector<Finding>& found;
  std::map<std::string, const Line*> place{};               // by seal: where it is first
  std::map<std::string, std::vector<const Line*>> runs{};   // by id: records in the order of the file, without copies
  std::vector<std::string> order{};                         // of the runs
  std::set<std::string> continued{};                        // seals that the first record of another run names

  // Checks the seal of one line; true if it takes part in a chain.
  bool is_link(const Line& l) {
    const Record& r = l.record;
    const Reporter a{l, r, found};
    if (r.version < 3) {
      if (has_seal(r)) a.wrong("forged-version", "version ", r.version, " has neither seal nor precision");
      return false;
    }
    if (l.extract) return false;
    if (r.seal.empty())
      return a.wrong("missing-seal", "version ", r.version, " has a seal, and this record has none"), false;
    if (l.digest.empty())
      a.wrong("broken-seal", "the line does not end with its seal: it was formatted anew");
    else if (l.digest != r.seal)
      a.wrong("broken-seal", "the text of the line has another seal: it was changed after it was written");
    const auto [it, is_new] = place.emplace(r.seal, &l);
    if (!is_new) a.wrong("copied-record", "it is line ", it->second->number, " once more");
    return is_new;
  }

  void first_of_run(const Line& l) {
    const Record& r = l.record;
    const Reporter a{l, r, found};
    if (r.planned_rows == 0) return a.wrong("dropped-record", "the first records of its run are missing");
    if (r.previous.empty()) return;
    const auto before = place.find(r.previous);
    if (before == place.end())
      return a.wrong("dropped-record", "it continues a record that is not here, or that was sealed anew");
    if (before->second->number > l.number)
      a.wrong("moved-record", "it continues line ", before->second->number, ", but stands before it");
    else if (before->second->record.closes || runs[before->second->record.run].back() != before->second)
      a.wrong("moved-record", "it continues line ", before->second->number, ", which is not the end of its run");
  }

  // True if `l` follows `last`, the record before it in the file and the run.
  bool follows(const Line& l, const Line& last) {
    const Record& r = l.record;
    const Reporter a{l, r, found};
    if (r.previous != last.record.seal) {
      const auto before = place.find(r.previous);
      if (r.previous.empty())
        a.wrong("moved-record", "it is the first of its run, but line ", last.number, " is before it");
      else if (before == place.end())
        a.wrong("dropped-record", "the record before it is not here, or was sealed anew");
      else if (before->second->number > l.number)
        a.wrong("moved-record", "it follows line ", before->second->number, ", but stands before it");
      else
        a.wrong("moved-record", "it follows line ", before->second->number, ", but stands behind line ", last.number);
      return false;
    }
    if (r.planned_rows != 0) return a.wrong("moved-record", "it plans a run that has begun in an earlier line"), false;
    if (last.record.closes) return a.wrong("moved-record", "line ", last.number, " has closed its run"), false;
    return true;
  }

  void run(const std::vector<const Line*>& all) {
    const size_t before = found.size();
    first_of_run(*all[0]);
    std::set<std::string> rows;
    for (size_t n = 0; n < all.size(); ++n) {
      rows.insert(row_key(all[n]->record));
      if (n > 0) (void)follows(*all[n], *all[n - 1]);
    }
    if (found.size() > before) return;
    const Reporter last{*all.back(), all.back()->record, found};
    const auto planned = size_t(all[0]->record.planned_rows);
    if (last.r.closes ? rows.size() != planned : rows.size() > planned)
      last.wrong("dropped-record", "its run planned ", counted(planned, "row"), ", and ", rows.size(),
                 rows.size() == 1 ? " is here" : " are here");
    else if (!last.r.closes && !continued.contains(last.r.seal))
      last.caution("unfinished-run", "its run was interrupted, or the end of the file is missing: ", rows.size(),
                   " of ", counted(planned, "planned row"), rows.size() == 1 ? " is here" : " are here");
  }
};

}  // namespace

void audit_seals(std::span<const Line> lines, std::vector<Finding>& found) {
  Seals seals{found};
  size_t old = 0, extracts = 0;
  const Line *first_old = nullptr, *first_extract = nullptr;
  for (const Line& l : lines) {
    if (l.extract && !extracts++) first_extract = &l;
    if (!l.extract && l.record.version < 3 && !old++) first_old = &l;
    if (!seals.is_link(l)) continue;
    std::vector<const Line*>& run = seals.runs[l.record.run];
    if (run.empty()) seals.order.push_back(l.record.run);
    run.push_back(&l);
  }
  // First all heads, because they say which ends are continued.
  for (const std::string& id : seals.order) {
    const Record& head = seals.runs[id][0]->record;
    if (head.planned_rows > 0 && !head.previous.empty()) seals.continued.insert(head.previous);
  }
  for (const std::string& id : seals.order) seals.run(seals.runs[id]);
  const auto of_file = [&](const Line* l, const char* name, const auto&... sentence) {
    if (l) found.push_back({l->number, name, false, join(sentence...)});
  };
  of_file(first_old, "unsealed", old, old == 1 ? " record has" : " records have",
          " a version before 3, without a seal");
  of_file(first_extract, "extract", extracts, extracts == 1 ? " record is an extract" : " records are extracts",
          " without samples and seal: only work, rates, ratios and verdicts can be checked");
}

}  // namespace attune
