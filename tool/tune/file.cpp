// SPDX-License-Identifier: Apache-2.0
#include "tool/tune/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tool/text.h"

namespace attune {
namespace {

constexpr std::string_view kKeyMark = "# key\t", kRowMark = "# row\t";

RuleKey key_of(const Rule& r) {
  return {.pass = r.pass, .dtype = r.dtype, .dim_qk = r.dim_qk, .dim_v = r.dim_v, .mask = r.mask, .decode = r.decode,
          .min_heads = r.min_heads, .max_heads = r.max_heads};
}
Rule rule_of(const RuleKey& k, int length, const std::string& backend, int64_t work = 0) {
  return {.pass = k.pass, .dtype = k.dtype, .dim_qk = k.dim_qk, .dim_v = k.dim_v, .mask = k.mask,
          .min_heads = k.min_heads, .max_heads = k.max_heads, .decode = k.decode, .min_len = length, .min_work = work,
          .backend = backend};
}
// A problem of this length that the rules of the key decide.
Problem sample_of(const RuleKey& k, int length) {
  Problem p{.pass = k.pass};
  p.dtype.q = k.dtype, p.dim_qk = k.dim_qk, p.dim_v = k.dim_v, p.mask.kind = k.mask;
  p.len_q = k.decode ? 1 : kDecodeQueries + 1, p.len_k = length,
  p.batch = int32_t(std::min<int64_t>(k.min_heads, INT32_MAX));
  return p;
}
bool overlaps(const RuleKey& a, const RuleKey& b) {
  RuleKey same = a;
  same.min_heads = b.min_heads, same.max_heads = b.max_heads;
  return same == b && a.min_heads <= b.max_heads && b.min_heads <= a.max_heads;
}

std::string percent(double share) { return without_zeros(fmt::format("{:.1f}", 100 * share)) + " %"; }

std::string sentence_of(const Curves& c, const TuneChoice& choice, const TuneSettings& s) {
  const std::string& baseline = c.backends[c.baseline].backend;
  if (c.backends.size() == 1) return join("only ", baseline, " was measured: nothing to choose from");
  std::string text = fmt::format("against {}, margin {}", baseline, percent(s.margin));
  for (size_t b = 0; b < c.backends.size(); ++b)
    if (b != c.baseline)
      text += fmt::format("{} {} {}", text.find(": ") == text.npos ? ":" : ",", c.backends[b].backend,
                          choice.from[b] ? fmt::format("from {}", *choice.from[b]) : "never");
  return text;
}

// Rules by work instead of length. If the same backends may be used at every length, heads decide between them as much
// as keys: on a GPU, 8 x 2048 and 16 x 1024 fill the SMs equally. Returns rules by work if the measured rows take less
// time with them than with rules by length, by more than the A/A spread; else none.
std::vector<Rule> by_work(const KeyCurves& k, const TuneChoice& choice, const std::vector<Rule>& before,
                          const TuneSettings& settings) {
  const Curves& c = k.curves;
  const auto heads = [](const Evidence& e) { return e.work / e.length; };
  if (std::all_of(k.rows.begin(), k.rows.end(), [&](const Evidence& e) { return heads(e) == heads(k.rows[0]); }))
    return {};
  const auto at_every_length = [&](const TuneChoice& of) {
    std::vector<bool> may;
    for (const auto& from : of.from) may.push_back(from && *from == c.lengths[0]);
    return may;
  };
  // Whether rules are by work follows from the records alone, so the same records again give the same file.
  const TuneChoice fresh = choose(c, settings);
  const std::vector<bool> may = at_every_length(fresh);
  const std::vector<size_t>& by_length = fresh.at;
  if (!std::all_of(by_length.begin(), by_length.end(), [&](size_t b) { return may[b]; })) return {};
  const std::vector<size_t> at = choose_by_work(k.by_work, may);
  double gain = 0;
  for (const Evidence& e : k.rows) {
    const auto n = size_t(std::lower_bound(c.lengths.begin(), c.lengths.end(), e.length) - c.lengths.begin());
    const std::vector<int64_t>& works = k.by_work.works;
    const auto w = size_t(std::lower_bound(works.begin(), works.end(), e.work) - works.begin());
    const bool old = e.backend == c.backends[by_length[n]].backend, now = e.backend == c.backends[at[w]].backend;
    if (old != now) gain += (old ? 1 : -1) * std::log(e.median_ns);
  }
  const auto changes = [](const std::vector<size_t>& of) {
    double many = 0;
    for (size_t n = 1; n < of.size(); ++n) many += of[n] != of[n - 1];
    return many;
  };
  gain += change_cost() * (changes(by_length) - changes(at));
  const double spread = *std::max_element(c.spread.begin(), c.spread.end());
  if (!(gain > std::log1p(std::min(spread, kMostSpread)))) return {};
  Curves w = k.by_work;
  for (const int64_t work : w.works) {
    const auto row = std::find_if(k.rows.begin(), k.rows.end(), [&](const Evidence& e) { return e.work == work; });
    Problem p;
    const Rule* const rule = parse(row->problem, p).ok() ? match(p, before) : nullptr;
    w.used.push_back(rule ? rule->backend : "");
  }
  std::vector<Rule> rules;
  const std::vector<size_t> chosen = choose_by_work(w, at_every_length(choice));
  for (size_t n = 0; n < chosen.size(); ++n) {
    if (n && chosen[n] == chosen[n - 1]) continue;
    // Between two measured works, the nearer one decides.
    const int64_t from = n ? int64_t(std::ceil(std::sqrt(double(w.works[n - 1]) * double(w.works[n])))) : 0;
    rules.push_back(rule_of(k.key, c.lengths[0], w.backends[chosen[n]].backend, from));
  }
  return rules;
}

// Replaces control characters such as tabs and newlines, because the text is one field.
std::string field(std::string text) {
  for (char& c : text)
    if ((unsigned char)(c) < ' ' || c == 127) c = ' ';
  return text;
}
std::string row_text(const Evidence& e) {
  std::string gain = "-";
  if (e.speed_up.interval.confidence > 0)
    gain = std::isinf(e.speed_up.value) ? "the baseline cannot run"
                                        : fmt::format("{} [{}, {}]", factor_text(e.speed_up.value),
                                                      digits_text(e.speed_up.interval.low),
                                                      digits_text(e.speed_up.interval.high));
  return join(field(e.problem), "\t", field(e.timing), "\t", e.backend, "\t",
              e.median_ns > 0 ? seconds_text(e.median_ns * 1e-9) : "-", "\t", gain,
              e.note.empty() ? "" : "\t" + field(e.note));
}

}  // namespace

std::vector<Rule> TunedFile::rules() const {
  std::vector<Rule> all;
  for (const TunedKey& k : keys) all.insert(all.end(), k.rules.begin(), k.rules.end());
  return all;
}

TunedFile tune(const DeviceCurves& device, const std::vector<Rule>& before, const TuneSettings& settings) {
  TunedFile file{.device = device.device, .measured = device.measured};
  for (const KeyCurves& k : device.keys) {
    Curves c = k.curves;
    c.used.clear();
    for (const int length : c.lengths) {
      const Rule* const rule = k.key.apart ? nullptr : match(sample_of(k.key, length), before);
      c.used.push_back(rule ? rule->backend : "");
    }
    const TuneChoice choice = choose(c, settings);
    TunedKey tuned{.key = k.key, .sentence = sentence_of(c, choice, settings)};
    tuned.decided = c.backends.size() > 1 && k.without.empty();
    if (c.backends.size() > 1 && !k.without.empty())
      tuned.sentence = k.without + " was not measured: no baseline for the others";
    for (size_t n = 0; n < c.lengths.size() && !k.key.apart && tuned.decided; ++n) {
      const Curve& chosen = c.backends[choice.at[n]];
      const bool is_new = tuned.rules.empty() || tuned.rules.back().backend != chosen.backend;
      if (chosen.points[n].measured && is_new) tuned.rules.push_back(rule_of(k.key, c.lengths[n], chosen.backend));
    }
    if (tuned.decided && !k.key.apart)
      if (std::vector<Rule> rules = by_work(k, choice, before, settings); !rules.empty())
        tuned.rules = std::move(rules), tuned.sentence += "; between them by work";
    for (const Evidence& e : k.rows) tuned.rows.push_back(row_text(e));
    for (const auto& from : choice.from)
      if (from) tuned.from = std::min(*from, tuned.from.value_or(*from));
    file.keys.push_back(std::move(tuned));
  }
  return file;
}

void keep(const TunedFile& before, TunedFile& now) {
  std::vector<TunedKey> kept;
  for (const TunedKey& old : before.keys) {
    const bool replaced = std::any_of(now.keys.begin(), now.keys.end(), [&](const TunedKey& k) {
      return !k.rules.empty() && overlaps(old.key, k.key);
    });
    if (!replaced) kept.push_back(old);
  }
  for (TunedKey& k : now.keys)
    if (std::any_of(kept.begin(), kept.end(), [&](const TunedKey& old) { return overlaps(old.key, k.key); }))
      k.sentence += "; the existing rules stay";
  now.keys.insert(now.keys.end(), kept.begin(), kept.end());
  std::stable_sort(now.keys.begin(), now.keys.end(),
                   [](const TunedKey& a, const TunedKey& b) { return a.key < b.key; });
}

std::string to_text(const TunedFile& f) {
  std::string s = write_tuned({.device = f.device, .measured = f.measured});
  for (const TunedKey& k : f.keys) {
    s += join("\n", kKeyMark, name(k.key), ": ", field(k.sentence), "\n");
    for (const Rule& r : k.rules) s += line_of(r) + "\n";
    for (const std::string& row : k.rows) s += join(kRowMark, row, "\n");
  }
  return s;
}

Status from_text(std::string_view text, std::string_view path, TunedFile& out) {
  Tuned tuned;
  if (Status s = read_tuned(text, path, tuned); !s.ok()) return s;
  TunedFile file{.device = tuned.device, .measured = tuned.measured};
  size_t next = 0;  // index into the rules
  std::string title;
  TunedKey* current = nullptr;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with(kKeyMark)) {
      current = nullptr;
      const size_t colon = line.find(": ");
      title = colon == line.npos ? "" : std::string(line.substr(colon + 2));
    } else if (line.starts_with(kRowMark)) {
      if (current) current->rows.emplace_back(line.substr(kRowMark.size()));
    } else if (line.starts_with("rule\t")) {
      const Rule& r = tuned.rules[next++];
      auto own = std::find_if(file.keys.begin(), file.keys.end(),
                              [&](const TunedKey& k) { return k.key == key_of(r); });
      if (own == file.keys.end()) {
        own = file.keys.insert(own, TunedKey{.key = key_of(r), .sentence = title});
        title.clear();
      }
      own->rules.push_back(r);
      current = &*own;
    }
  }
  out = std::move(file);
  return Status::good();
}

const TunedKey* find(const TunedFile& f, const Problem& p) {
  for (const TunedKey& k : f.keys)
    for (const Rule& r : k.rules)
      if (Rule any = r; any.min_len = 1, any.min_work = 0, match(p, std::span(&any, 1))) return &k;
  return nullptr;
}

}  // namespace attune
