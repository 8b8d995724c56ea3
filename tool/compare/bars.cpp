// SPDX-License-Identifier: Apache-2.0
#include "tool/compare/bars.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "core/problem_line.h"
#include "core/variant/variants.h"
#include "core/work.h"
#include "tool/bench/axes.h"
#include "tool/check/audit.h"
#include "tool/record/store.h"
#include "tool/text.h"
#include "tool/toml.h"

namespace attune {
namespace {

constexpr double kRounded = 0.051;  // ns; samples are stored to a tenth of a nanosecond

// For TomlTable::words: why no row has this word; "" if one may have it.
std::string not_one_of(const std::string& word, std::span<const std::string_view> all) {
  if (std::find(all.begin(), all.end(), word) != all.end()) return "";
  const std::string_view meant = closest_word(word, all);
  return fmt::format("'{}' is not one of {}{}", word, fmt::join(all, ", "),
                     meant.empty() ? "" : join("; did you mean '", meant, "'?"));
}
std::string wrong_pass(const std::string& word) {
  constexpr std::string_view kAll[] = {"forward", "backward", "train"};
  return not_one_of(word, kAll);
}
std::string wrong_timing(const std::string& word) {
  constexpr std::string_view kAll[] = {"cold", "warm", "graph"};
  return not_one_of(word, kAll);
}
std::string wrong_state(const std::string& word) {
  constexpr std::string_view kAll[] = {"rested", "hot"};
  return not_one_of(word, kAll);
}
std::string wrong_dtype(const std::string& word) {
  constexpr std::string_view kAll[] = {"f64", "f32", "f16", "bf16", "e4m3"};
  for (const char* const pass : {"forward ", "backward "})
    if (Problem p; parse(join(pass, word, " b1 h1 q1 k1 d16 full"), p).ok()) {
      const std::string written = name(p.dtype);
      return written == word ? "" : join("'", word, "' is written '", written, "' in a problem line");
    }
  return not_one_of(word, kAll) + " and their mixes, as in a problem line";
}
std::string wrong_mask(const std::string& word) {
  constexpr std::string_view kAll[] = {"full", "causal", "window"};
  const std::string why = not_one_of(word, kAll);
  Problem p;
  if (why.empty() || !parse(join("forward f32 b1 h1 q64 k64 d16 ", word), p).ok())
    return why.empty() ? why : why + " and a mask of a problem line, such as window255,0";
  const std::string written = name(p.mask);
  return written == word ? "" : join("'", word, "' is written '", written, "' in a problem line");
}
std::string wrong_variant(const std::string& word) { return find_variant(word) ? "" : unknown_variant(word); }

Status read_rows(const toml::table& given, std::string_view file, BarRows& out) {
  TomlTable t{given, file};
  t.words("pass", out.passes, wrong_pass), t.words("dtype", out.dtypes, wrong_dtype);
  t.words("mask", out.masks, wrong_mask), t.list("device", out.devices);
  t.words("timing", out.timings, wrong_timing), t.words("variant", out.variants, wrong_variant);
  t.words("state", out.states, wrong_state);
  t.list("dim", out.dims), t.list("len", out.lengths), t.list("len_q", out.queries), t.list("batch", out.batches);
  t.list("heads", out.heads), t.whole("len_least", out.least_length), t.whole("len_most", out.most_length);
  t.finish();
  return t.status;
}

void read_of(TomlTable& t, Bar& out) {
  const toml::node* const node = t.take("of");
  if (!node) return;
  const toml::table* const words = node->as_table();
  if (!words || words->empty())
    return t.wrong(*node, "of", "accepted is a table of words: {\"window*\" = \"causal\", ragged = \"\"}");
  for (const auto& [from, to] : *words)
    if (const auto text = to.value_exact<std::string>()) out.of.emplace_back(from.str(), *text);
    else t.wrong(to, from.str(), "accepted is a text in quotes");
}

Status read_bar(const toml::table& given, std::string_view file, Bar& out) {
  TomlTable t{given, file};
  t.text("name", out.name), t.text("subject", out.subject), t.text("over", out.over);
  t.number("ratio", out.ratio), t.number("mean", out.mean), t.number("share", out.share);
  t.number("tflops", out.tflops), t.number("gbs", out.gbs), t.number("microseconds", out.microseconds);
  t.number("error", out.error), t.number("rate", out.rate), t.number("density", out.density);
  t.number("unfused", out.unfused);
  if (const toml::node* const node = t.take("less_floor")) {
    if (const auto value = node->value_exact<bool>()) out.less_floor = *value;
    else t.wrong(*node, "less_floor", "accepted is true or false");
  }
  read_of(t, out);
  int64_t count = 1;
  t.whole("count", count), out.count = int(count);
  const toml::node* const rows = t.take("rows");
  if (rows && !rows->is_table()) t.wrong(*rows, "rows", "accepted is a table: {pass = \"forward\", dim = 128}");
  t.finish();
  const bool compares = out.ratio || out.mean;
  const bool demands =
      compares || out.rate || out.density || out.unfused || out.tflops || out.gbs || out.microseconds || out.error;
  if (out.name.empty()) t.wrong(given, "bar", "has no name");
  out.name = in_one_line(out.name);  // a line break in it would forge the line of another bar
  if (!demands)
    t.wrong(given, out.name,
            "demands nothing; accepted are ratio, mean, rate, density, unfused, tflops, gbs, microseconds and error");
  if (compares == out.over.empty())
    t.wrong(given, out.name,
            compares ? "has a ratio and no 'over' to compare with" : "has 'over' and neither ratio nor mean");
  if (!out.subject.empty() && out.subject == out.over)
    t.wrong(given, out.name, "compares ", out.subject, " with itself: 'subject' and 'over' are the same");
  if (out.share && (!out.ratio || *out.share > 1)) t.wrong(given, out.name, "share is at most 1, and needs a ratio");
  if (out.rate.has_value() == out.of.empty())
    t.wrong(given, out.name, out.rate ? "has a rate and no 'of', the words of the row to compare with"
                                      : "has 'of' and no rate");
  if (out.less_floor && !out.ratio) t.wrong(given, out.name, "less_floor needs a ratio");
  if (!t.status.ok()) return t.status;
  return rows ? read_rows(*rows->as_table(), file, out.rows) : Status::good();
}

template <class T, class U>
bool accepts(const std::vector<T>& list, const U& value) {
  return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
}

bool concerns(const BarRows& rows, const Record& r) {
  Problem p;
  const bool train = train_problem(r.problem, p);
  if (!train && !parse(r.problem, p).ok()) return false;
  constexpr const char* kMasks[] = {"full", "causal", "window"};
  const std::string state = r.rest_s > 0 ? "rested" : r.heat_s > 0 ? "hot" : "";
  const auto device = [&](const std::string& d) { return d == r.device || d == machine_of(r); };
  return accepts(rows.passes, train ? std::string("train") : std::string(name(p.pass))) &&
         accepts(rows.dtypes, name(p.dtype)) &&
         (accepts(rows.masks, std::string(kMasks[int(p.mask.kind)])) || accepts(rows.masks, name(p.mask))) &&
         (rows.devices.empty() || std::any_of(rows.devices.begin(), rows.devices.end(), device)) &&
         accepts(rows.timings, r.mode) && accepts(rows.states, state) &&
         accepts(rows.variants, std::string(word(p.variant))) &&
         accepts(rows.dims, int64_t(p.dim_qk)) && accepts(rows.lengths, int64_t(p.len_k)) &&
         accepts(rows.queries, int64_t(p.len_q)) && accepts(rows.batches, int64_t(p.batch)) &&
         accepts(rows.heads, int64_t(p.heads_q)) && p.len_k >= rows.least_length &&
         (!rows.most_length || p.len_k <= rows.most_length);
}

// Why a record proves nothing; "" if it does.
std::string unmeasured(const Record& r) {
  if (r.status != RecordStatus::ok || !passed(r.parity.verdict))
    return r.message.empty() ? r.status.text() : r.message;
  if (r.samples_ns.empty()) return "it has no samples";
  for (const double ns : r.samples_ns)
    if (!(ns > 0 && std::isfinite(ns))) return fmt::format("a sample of {:g} ns is not a time", ns);
  const double of_samples = median(r.samples_ns);
  if (std::abs(r.median_ns - of_samples) > kRounded + 1e-9 * of_samples)
    return fmt::format("its median is recorded as {:g} ns, and that of its samples is {:g} ns", r.median_ns,
                       of_samples);
  return "";
}
bool is_measured(const Record& r) { return unmeasured(r).empty(); }

// The records of one row: subjects that were timed side by side.
using Row = std::vector<const Record*>;

const Record* other_of(const Bar& bar, const Row& row, std::string& why) {
  const Record* best = nullptr;
  for (const Record* r : row) {
    if (bar.over == "peers" ? !r->peer : r->subject != bar.over) continue;
    if (const std::string no = unmeasured(*r); !no.empty()) why = join(r->subject, ": ", no);
    else if (!best || r->median_ns < best->median_ns) best = r;
  }
  if (!best && why.empty()) why = bar.over == "peers" ? "no peer was measured" : bar.over + " was not measured";
  return best;
}

std::vector<double> without_floor(const Record& r) {
  std::vector<double> less = r.samples_ns;
  for (double& ns : less) ns -= r.floor_ns;
  return less;
}

// Why the machine was too busy to compare the two, one of which is a peer.
std::string held_up(const Record& r, const Record& other) {
  Record both = other;
  both.peer = r.peer || other.peer, both.baseline = r.subject;
  const std::string theirs = held_up_text(both);
  both.load = r.load;
  return theirs.empty() ? held_up_text(both) : theirs;
}

// The key of the row that the record would stand in if its problem were this one, without lists.
std::string key_of_other(Record r, std::string problem) {
  r.problem = std::move(problem), r.pattern.clear();
  return row_key(r);
}

// Unfused attention at the speed of the machine: the products of all pairs at the ceiling, and three passes over the
// scores in f32 at the rate of a copy.
double unfused_ns(const Record& r) {
  Problem p;
  if (!parse(r.problem, p).ok() || r.ceiling_gflops <= 0 || r.copy_gbs <= 0) return 0;
  Problem full = p;
  full.mask = {};
  const double scores = 4.0 * p.batch * p.heads_q * double(p.len_q) * p.len_k;
  return cost(full).flops / r.ceiling_gflops + 3 * scores / r.copy_gbs;
}

using RowsByKey = std::map<std::string, Row>;

// What the rows of one bar show.
struct Judge {
  const Bar& bar;
  const RowsByKey& rows;
  BarResult result;
  std::vector<double> ratios{};
  int below = 0, surely_below = 0, missed = 0;
  std::set<std::string> different{};  // rows: one that was measured in several runs counts once

  void ratio_of(const Record& r, const Row& row) {
    std::string why;
    const Record* const other = other_of(bar, row, why);
    if (!other) {
      result.evidence.push_back(join(line_text(r), ": nothing to compare ", r.subject, " with: ", why));
      return void(++missed);
    }
    Ratio ratio = median_ratio(other->samples_ns, r.samples_ns);
    if (bar.less_floor) {
      // A floor takes nothing off the interval of a time, which is then a larger share of what is left.
      const Ratio less = median_ratio(without_floor(*other), without_floor(r));
      ratio = less.interval.confidence > 0 ? less : Ratio{.value = 0, .interval = {0, 0, ratio.interval.confidence}};
    }
    ratios.push_back(ratio.value);
    if (const std::string busy = held_up(r, *other); !busy.empty()) {
      result.evidence.push_back(
          join(line_text(r), ": ", r.subject, " against ", other->subject, " under load: ", busy));
      return void(++below);
    }
    if (!ratio.interval.is_sure()) {
      const size_t fewest = std::min(r.samples_ns.size(), other->samples_ns.size());
      result.evidence.push_back(fmt::format("{}: {} against {}: {}: a verdict needs {}", line_text(r), r.subject,
                                            other->subject, counted(fewest, "sample"), kFewestSamples));
      return void(++below);
    }
    if (!bar.ratio || ratio.value >= *bar.ratio) return;
    ++below;
    const bool surely = ratio.interval.high < *bar.ratio;
    surely_below += surely;
    result.evidence.push_back(fmt::format("{}: {} {} [{}, {}] of {}{}", line_text(r), r.subject,
                                          factor_text(ratio.value), digits_text(ratio.interval.low),
                                          digits_text(ratio.interval.high), other->subject,
                                          surely ? "" : ", within its interval"));
  }
  // The same subject in the row of this line; null if it was not measured.
  const Record* same_in(const Record& r, const std::string& line) const {
    const auto it = rows.find(key_of_other(r, line));
    if (it == rows.end()) return nullptr;
    for (const Record* other : it->second)
      if (other->subject == r.subject && is_measured(*other)) return other;
    return nullptr;
  }
  void no_other(const Record& r, const std::string& line) {
    result.evidence.push_back(
        join(line_text(r), ": nothing to compare ", r.subject, " with: it was not measured at ", line));
    ++missed;
  }
  // False if the row is only what others are compared with.
  bool counts(const Record& r) const {
    if (bar.rate && other_line(bar.of, r.problem) == r.problem) return false;
    if (r.subject == bar.over) return false;
    return !bar.density || r.shown_blocks > 0;
  }
  void other_rows(const Record& r) {
    if (bar.rate) {
      const std::string line = other_line(bar.of, r.problem);
      const Record* const other = same_in(r, line);
      if (!other || other->gflops <= 0) no_other(r, line);
      else limit(r, bar.rate, r.gflops / other->gflops, "of the rate of " + line, true);
    }
    if (bar.density) {
      const std::string line = r.problem.substr(0, r.problem.find(" blocks"));
      const Record* const other = same_in(r, line);
      if (!other || r.density <= 0) no_other(r, line);
      else
        limit(r, bar.density, r.median_ns / (r.density * other->median_ns), "of density x the time of " + line, false);
    }
    if (bar.unfused) limit(r, bar.unfused, unfused_ns(r) / r.median_ns, "of unfused attention's bound", true);
  }
  void limit(const Record& r, const std::optional<double>& most, double value, const std::string& what, bool at_least) {
    if (!most || (at_least ? value >= *most : value <= *most)) return;
    result.evidence.push_back(fmt::format("{}: {} {} {}, {} {} {}", line_text(r), r.subject, digits_text(value), what,
                                          at_least ? "at least" : "at most", digits_text(*most), what));
    ++missed;
  }
  void row(const Record& r, const Row& all) {
    if (!counts(r)) return;
    different.insert(trend_key(r));
    if (const std::string no = unmeasured(r); !no.empty()) {
      result.evidence.push_back(join(line_text(r), ": ", r.subject, " was not measured: ", no));
      return void(++missed);
    }
    ++result.rows;
    if (!bar.over.empty()) ratio_of(r, all);
    other_rows(r);
    limit(r, bar.tflops, r.gflops / 1e3, "TFLOP/s", true), limit(r, bar.gbs, r.gbs, "GB/s", true);
    limit(r, bar.microseconds, r.median_ns / 1e3, "us", false);
    limit(r, bar.error, r.parity.error, "tolerances", false);
  }
  void decide() {
    double log_mean = 0;
    for (const double x : ratios) log_mean += std::log(x) / double(ratios.size());
    const double mean = std::exp(log_mean);
    const bool below_mean = bar.mean && !ratios.empty() && mean < *bar.mean;
    result.sentence = fmt::format("{} row{}", result.rows, result.rows == 1 ? "" : "s");
    if (!ratios.empty())
      result.sentence += fmt::format(", least {}, mean {}",
                                     factor_text(*std::min_element(ratios.begin(), ratios.end())), factor_text(mean));
    const double allowed = (1 - bar.share.value_or(1)) * double(ratios.size()) + 1e-9;
    const int reach = int(ratios.size()) - below;
    if (bar.share) result.sentence += fmt::format(", {} of {} reach the bar", reach, ratios.size());
    if (int(different.size()) < bar.count) {
      result.status = BarStatus::empty;
      if (int(different.size()) < result.rows) result.sentence += fmt::format(", {} different", different.size());
      result.sentence += fmt::format(" of {} that must be there", bar.count);
    } else if (missed || surely_below > allowed || below_mean) {
      result.status = BarStatus::missed;
      if (below_mean) result.sentence += fmt::format(", below a mean of {}", factor_text(*bar.mean));
    } else {
      result.status = below > allowed ? BarStatus::unclear : BarStatus::met;
    }
  }
};

}  // namespace

std::string name(BarStatus s) {
  constexpr const char* kName[] = {"MET", "MISSED", "UNCLEAR", "EMPTY"};
  return kName[int(s)];
}

Status read_bars(const std::string& text, std::string_view file, std::vector<Bar>& out,
                 std::span<const std::string> others) {
  toml::table table;
  if (Status s = parse_toml(text, file, table); !s.ok()) return s;
  for (const auto& [key, node] : table)
    if (key.str() != "bar" && std::find(others.begin(), others.end(), key.str()) == others.end())
      return Status::no(file, ":", node.source().begin.line, ": ", key.str(), ": is not one of bar; accepted ",
                        others.empty() ? "is [[bar]]" : "are [[bar]] and the options of attune bench");
  const toml::array* const bars = table.get_as<toml::array>("bar");
  if (!bars || bars->empty()) return Status::no(file, ": holds no [[bar]]");
  for (const toml::node& node : *bars) {
    if (!node.is_table()) return Status::no(file, ":", node.source().begin.line, ": bar: accepted is [[bar]]");
    if (Status s = read_bar(*node.as_table(), file, out.emplace_back()); !s.ok()) return s;
  }
  return Status::good();
}

std::string other_line(const std::vector<std::pair<std::string, std::string>>& of, const std::string& line) {
  std::string out;
  for (size_t at = 0; at < line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    std::string word = line.substr(at, end - at);
    at = end + 1;
    for (const auto& [from, to] : of) {
      const bool prefix = from.ends_with('*');
      if (prefix ? word.starts_with(from.substr(0, from.size() - 1)) : word == from) {
        word = to;
        break;
      }
    }
    if (!word.empty()) out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

std::vector<BarResult> judge(const std::vector<Bar>& bars, const std::vector<Record>& records) {
  RowsByKey rows;
  std::vector<const std::string*> order;
  for (const Record& r : records) {
    const auto [it, is_new] = rows.try_emplace(row_key(r));
    if (is_new) order.push_back(&it->first);
    it->second.push_back(&r);
  }
  std::vector<BarResult> results;
  for (const Bar& bar : bars) {
    Judge judge{bar, rows, {.bar = &bar}};
    for (const std::string* key : order) {
      const Row& row = rows.at(*key);
      for (const Record* r : row)
        if ((bar.subject.empty() ? !r->peer : r->subject == bar.subject) && concerns(bar.rows, *r)) judge.row(*r, row);
    }
    judge.decide();
    const auto is_subject = [&](const Record& r) { return r.subject == bar.subject; };
    if (!bar.subject.empty() && std::none_of(records.begin(), records.end(), is_subject))
      judge.result.sentence += join("; no record is of ", bar.subject);
    results.push_back(std::move(judge.result));
  }
  return results;
}

}  // namespace attune
