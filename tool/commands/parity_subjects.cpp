// SPDX-License-Identifier: Apache-2.0
// `attune parity --peer`: one row per problem line and subject.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/check.h"
#include "machine/host.h"
#include "tool/bench/axes.h"
#include "tool/bench/suites.h"
#include "tool/check/accuracy.h"
#include "tool/commands/parity.h"
#include "tool/json.h"
#include "tool/line.h"
#include "tool/machine.h"
#include "tool/subjects/ring_run.h"
#include "tool/text.h"

namespace attune {
namespace {

// Every row of the command line as a case. Plain lines have the tensors of `attune bench`, whose rows are not padded.
Status cases_of(const SubjectsAsked& asked, std::vector<AccuracyCase>& out) {
  const Variation plain{.layout = Layout::bhsd, .pad = 0};
  std::vector<BenchRow> rows;
  for (const std::string& line : lines_of(asked.lines))
    if (Status s = parse_row(line, rows.emplace_back()); !s.ok()) return s.message += caret_below(line), s;
  if (!asked.suite.empty())
    if (Status s = suite_rows(asked.suite, rows); !s.ok()) return s;
  Axes axes;
  std::vector<std::string> given;
  const auto keep = [&](const char* option, const std::string& value, std::string& axis) {
    if (!value.empty()) axis = value, given.emplace_back(option);
  };
  keep("--pass", asked.passes, axes.pass), keep("--len", asked.lengths, axes.len);
  keep("--mask", asked.masks, axes.mask);
  if (!rows.empty() || !given.empty())
    if (Status s = keep_rows(axes, given, rows); !s.ok()) return s;
  for (const BenchRow& row : rows)
    out.push_back({.one = {.problem = row.problem, .variation = plain}, .pattern = row.pattern, .line = name(row),
                   .unserved = !row.module.empty() ? "a module is more than attention; bench compares it with f32"
                               : is_ring(row.problem) ? "attention over ranks is compared by --ring" : ""});
  if (asked.text.empty()) return out.empty() ? Status::no("no problem is given; it takes lines, --case or --suite")
                                             : Status::good();
  AccuracyCase& one = out.emplace_back();
  if (Status s = parse(asked.text, one.one); !s.ok()) return s;
  if (asked.text.find(" | ") == std::string::npos) one.one.variation = plain;
  return one.line = name(one.one), Status::good();
}

std::string verdict_text(const Accuracy& a) {
  if (a.end == AccuracyEnd::unserved) return "-";
  if (a.end == AccuracyEnd::wrong) return name(Verdict::fail);
  return a.against == "reference" ? name(a.outcome.verdict) : "compared";
}

// What is wrong, or missing.
std::string remark(const Accuracy& a) {
  return a.outcome.mistake.empty() ? a.message : join(a.message, "; explained by ", a.outcome.mistake);
}

// The figures of a row: without lse, which peers do not write, so that all subjects are compared on the same outputs.
Outcome figures_of(const Accuracy& a) {
  Outcome o;
  for (const Figures& f : a.outcome.figures)
    if (f.role != Role::lse) o.figures.push_back(f);
  return o;
}

void print_head(size_t problem, size_t subject, size_t against) {
  fmt::print("{:<{}}  {:<{}}  {:<{}}  {:>9}  {:>9}  {:>11}  verdict\n", "problem", problem, "subject", subject,
             "against", against, "MAE", "max", "relative L2");
}

void print_row(const Accuracy& a, size_t problem, size_t subject, size_t against) {
  const Outcome all = figures_of(a);
  const bool has = !all.figures.empty();
  const auto figure = [&](double x) { return has ? fmt::format("{:.2e}", x) : std::string("-"); };
  std::string line = fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>9}  {:>9}  {:>11}  {}", a.problem, problem, a.subject,
                                 subject, a.against, against, figure(all.mae()), figure(all.max()),
                                 figure(all.relative_l2()), verdict_text(a));
  if (const std::string more = remark(a); !more.empty()) line += ": " + more;
  std::replace(line.begin(), line.end(), '\n', ' ');
  fmt::print("{}\n", line);
}

Json as_json(const Accuracy& a) {
  Json outputs = Json::array();
  for (const Figures& f : a.outcome.figures) {
    Json one = {{"output", name(f.role)}, {"mae", f.judged.mae}, {"max", f.judged.max},
                {"relative_l2", f.judged.relative_l2}};
    if (a.against == "reference")
      one["tolerance_used"] = f.judged.used, one["verdict"] = name(f.judged.verdict);
    outputs.push_back(std::move(one));
  }
  Json row = {{"problem", a.problem}, {"subject", a.subject}, {"against", a.against}, {"verdict", verdict_text(a)},
              {"message", a.message}, {"mistake", a.outcome.mistake}, {"outputs", outputs}};
  if (const Outcome all = figures_of(a); !all.figures.empty())
    row["mae"] = all.mae(), row["max"] = all.max(), row["relative_l2"] = all.relative_l2();
  return row;
}

// The subjects by name, the other one last if it is given. Peers are opened.
Status subjects_of(const SubjectsAsked& asked, bool gpu, std::vector<AccuracySubject>& out, Exit& code) {
  code = kUsage;
  std::vector<std::string> words = asked.peers, names;
  const bool other_is_backend = find_backend(asked.against) != nullptr;
  if (!asked.against.empty() && !other_is_backend) words.push_back(asked.against);
  if (Status s = peers_named(words, gpu, names); !s.ok()) {
    const bool may_be_backend = !asked.against.empty() && !other_is_backend;
    return Status::no(s.message, may_be_backend ? join("; --against also takes ", backend_names()) : "");
  }
  if (!asked.backend.empty() && !find_backend(asked.backend))
    return Status::no("backend ", not_one_of(asked.backend, backend_names()));
  if (asked.against == "torch") return Status::no("--against: 'torch' is several; give one, such as torch:sdpa");
  code = kMachine;
  std::vector<const attune_peer*> peers;
  if (Status s = open_peers(names, asked.python, peers); !s.ok()) return s;
  code = kUsage;
  for (const attune_peer* p : peers) out.push_back({.name = p->name, .peer = p});
  if (!asked.backend.empty()) out.push_back({.name = asked.backend, .backend = find_backend(asked.backend)});
  if (asked.against.empty()) return Status::good();
  if (other_is_backend) {
    if (asked.backend == asked.against) out.pop_back();
    out.push_back({.name = asked.against, .backend = find_backend(asked.against)});
  } else {
    const auto is_other = [&](const AccuracySubject& s) { return s.peer && s.name == peer_name(asked.against); };
    const auto at = std::find_if(out.begin(), out.end(), is_other);
    std::rotate(at, at + 1, out.end());
  }
  return out.size() > 1 ? Status::good()
                        : Status::no("--against: ", asked.against, " is the only subject; give another with --peer or "
                                     "--backend");
}

}  // namespace

void subjects_parity(const SubjectsAsked& asked, Context& context) {
  const auto no = [&](Exit code, const Status& s) { fail(context, code, join("attune parity: ", s.message)); };
  Device device;
  if (Status s = device_named(asked.device, device); !s.ok()) return no(exit_of_device(asked.device), s);
  if (device.index < 0)
    return no(kMachine, Status::no("--device: ", asked.device, " is not in this machine; it can be planned for, but "
                                   "not run"));
  if (asked.threads) device.units = asked.threads;
  std::vector<AccuracyCase> cases;
  if (Status s = cases_of(asked, cases); !s.ok()) return no(kUsage, s);
  std::vector<AccuracySubject> subjects;
  Exit code = kUsage;
  if (Status s = subjects_of(asked, device.kind == DeviceKind::cuda, subjects, code); !s.ok()) return no(code, s);
  if (subjects.empty()) return no(kUsage, Status::no("no subject is given; it takes --peer and --backend"));
  std::optional<AccuracySubject> other;
  if (!asked.against.empty()) other = subjects.back(), subjects.pop_back();

  const std::string against = other ? other->name : "reference";
  size_t widest = 7, subject = 7, passed = 0, failed = 0, unserved = 0;
  for (const AccuracyCase& c : cases) widest = std::max(widest, c.line.size());
  for (const AccuracySubject& s : subjects) subject = std::max(subject, s.name.size());
  const size_t last = std::max<size_t>(7, against.size());
  Json rows = Json::array();
  if (!context.json) print_head(widest, subject, last);
  const auto judged = [&](const AccuracyCase& c) {
    const AnswerKept kept;
    return accuracy(c, subjects, other ? &*other : nullptr, device);
  };
  for (const AccuracyCase& c : cases)
    for (const Accuracy& a : judged(c)) {
      ++(a.end == AccuracyEnd::compared ? passed : a.end == AccuracyEnd::wrong ? failed : unserved);
      if (context.json) rows.push_back(as_json(a));
      else print_row(a, widest, subject, last), std::fflush(stdout);
    }
  if (context.json)
    fmt::print("{}\n", Json{{"device", asked.device}, {"name", device.name}, {"against", against},
                            {"rows", rows}, {"passed", passed}, {"unserved", unserved}, {"failed", failed}}.dump(2));
  else
    fmt::print("\n{} not served\n{} passed, {} failed\n", unserved, passed, failed);
  if (failed) context.exit_code = kFailed;
  else if (!passed) fail(context, kFailed, "attune parity: nothing was compared");
}

}  // namespace attune
