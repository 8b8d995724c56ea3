// SPDX-License-Identifier: Apache-2.0
// `attune parity`: compares every backend with the reference in double, on the cases that the tests use too. The output
// is a table, the command that repeats each failure, what compared nothing, and the last line "N passed, N failed".
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "core/check.h"
#include "machine/host.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/line.h"
#include "tool/machine.h"
#include "tool/commands/parity.h"
#include "tool/table.h"
#include "tool/terminal.h"
#include "tool/text.h"
#include "verify/cases/coverage.h"
#include "verify/cases/kernels.h"

namespace attune {
namespace {

constexpr const char* kNothing =
    "attune parity: nothing was compared: no query of the case sees a key; a case that is meant to be so says 'empty'";

struct Asked {
  std::string device = "cpu", backend, text;
  int threads = 0;
  bool quick = false, kernels = false, coverage = false, ring = false, levels = false;
  std::vector<int> ranks{1, 2, 4, 8};
  double seconds = 60;
  HuntAsked hunt{};
  SubjectsAsked subjects{};
};

// Results of one backend with one dtype.
struct Tally {
  int runs = 0, verdicts[kVerdicts] = {};
  double mae = 0, max = 0, relative_l2 = 0, used = 0;

  void add(const Outcome& o) {
    const auto raise = [](double& most, double x) { if (!(x <= most)) most = x; };  // NaN is the worst
    ++runs, ++verdicts[int(o.verdict)];
    raise(mae, o.mae()), raise(max, o.max()), raise(relative_l2, o.relative_l2()), raise(used, o.used());
  }
  int of(Verdict v) const { return verdicts[int(v)]; }
};

using Tallies = std::map<std::pair<size_t, DType>, Tally>;  // by the backend's index in the list

Tallies tallies(const Suite& suite, const std::vector<Attempt>& all) {
  Tallies t;
  for (const Attempt& a : all) {
    const auto at = std::find(suite.backends.begin(), suite.backends.end(), a.backend) - suite.backends.begin();
    t[{size_t(at), suite.cases[a.case_index].problem.dtype.q}].add(a.outcome);
  }
  return t;
}

Status make_suite(const Asked& asked, Suite& suite, Exit& code) {
  code = kUsage;
  Place place{asked.device, {}, asked.threads};
  if (Status s = device_named(asked.device, place.device); !s.ok()) {
    code = exit_of_device(asked.device);
    return s.after("attune parity: ");
  }
  if (asked.threads) place.device.units = asked.threads;
  if (place.device.index < 0) {
    code = kMachine;
    return Status::no("attune parity: --device: ", asked.device, " is not in this machine; it can be planned for, but ",
                      "not run; name a GPU of this machine as cuda:0");
  }
  suite.places = {place};
  if (asked.levels) {
    if (asked.device != "cpu")
      return Status::no("attune parity: --levels: given with --device ", asked.device, "; it needs cpu");
    suite.places = cpu_places();
    suite.places.push_back(busy_cpu());
  }
  for (const Backend* b : backends())
    if (asked.backend.empty() ? !b->only_by_name : b->name == asked.backend) suite.backends.push_back(b);
  if (suite.backends.empty())
    return Status::no("attune parity: backend ", not_one_of(asked.backend, backend_names()));
  if (asked.text.empty()) {
    suite.cases = cases(asked.quick);
    if (asked.kernels) suite.cases = case_of_each_kernel(suite.cases, suite.backends, place.device);
    return Status::good();
  }
  if (Status s = parse(asked.text, suite.cases.emplace_back()); !s.ok())
    return Status::no("attune parity: ", s.message, caret_below(asked.text));
  return Status::good();
}

void print_table(const Suite& suite, const Tallies& all) {
  constexpr Cells number = Cells::number;
  TextTable table{.columns = {{"backend"}, {"dtype"}, {"runs", number}, {"PASS", number}, {"AT-FLOOR", number},
                              {"EMPTY", number}, {"FAIL", number}, {"MAE", number}, {"max", number}, {"L2", number},
                              {"of tolerance", number}}};
  const auto error = [](double x) { return fmt::format("{:.2e}", x); };
  for (const auto& [key, t] : all)
    table.rows.push_back({std::string(suite.backends[key.first]->name), std::string(name(key.second)), join(t.runs),
                          join(t.of(Verdict::pass)), join(t.of(Verdict::pass_at_floor)), join(t.of(Verdict::empty)),
                          join(t.of(Verdict::fail)), error(t.mae), error(t.max), error(t.relative_l2),
                          fmt::format("{:.0f}%", 100 * t.used)});
  fmt::print("{}", to_text(std::move(table), terminal_width(STDOUT_FILENO)));
}

size_t count(const std::vector<Attempt>& all, Verdict v) {
  return size_t(std::count_if(all.begin(), all.end(), [v](const Attempt& a) { return a.outcome.verdict == v; }));
}

// Each case that compared nothing, once, whatever ran it.
void print_empty(const Suite& suite, const std::vector<Attempt>& all) {
  constexpr size_t kMost = 40;
  std::set<size_t> cases;
  for (const Attempt& a : all)
    if (a.outcome.verdict == Verdict::empty) cases.insert(a.case_index);
  size_t printed = 0;
  for (const size_t n : cases)
    if (++printed <= kMost) fmt::print("\nEMPTY  {}\n", name(suite.cases[n]));
  if (cases.size() > kMost) fmt::print("\nand {} more cases that compare nothing\n", cases.size() - kMost);
}

void print_failures(const Suite& suite, const std::vector<Attempt>& all) {
  constexpr int kMost = 40;
  int failed = 0;
  for (const Attempt& a : all) {
    if (a.outcome.verdict != Verdict::fail || ++failed > kMost) continue;
    fmt::print("\nFAIL  {}\n", a.outcome.why);
    if (!a.outcome.mistake.empty()) fmt::print("      explained by {}\n", a.outcome.mistake);
    fmt::print("      {}\n", command(suite, a));
  }
  if (failed > kMost) fmt::print("\nand {} more failures\n", failed - kMost);
}

// For a single case: the figures of every output of every backend, and the refusals of the others.
void print_figures(const Suite& suite, const std::vector<Attempt>& all) {
  for (const Attempt& a : all)
    for (const Figures& f : a.outcome.figures)
      fmt::print("{:<14} {:<8} MAE {:.2e}  max {:.2e}  relative L2 {:.2e}  {:.0f}% of the tolerance  {}\n",
                 a.backend->name, name(f.role), f.judged.mae, f.judged.max, f.judged.relative_l2, 100 * f.judged.used,
                 name(a.outcome.verdict == Verdict::empty ? Verdict::empty : f.judged.verdict));
  for (const Backend* b : suite.backends) {
    Plan plan;
    const Status s = plan_on(*b, suite.cases[0].problem, suite.places[0].device, plan);
    if (!s.ok()) fmt::print("{}\n", s.message);
  }
  fmt::print("\n");
}

// The cells of one pass: topics down, dtypes and key sources across. Refusals are letters, explained below the table.
void print_coverage(const Backend& b, Pass pass, const std::vector<Cell>& cells) {
  std::vector<std::string> sentences;
  const auto letter = [&](const std::string& sentence) {
    const auto at = std::find(sentences.begin(), sentences.end(), sentence);
    const size_t n = size_t(at - sentences.begin());
    if (at == sentences.end()) sentences.push_back(sentence);
    return n < 26 ? std::string(1, char('a' + n)) : fmt::format("z{}", n - 25);
  };
  const auto in_pass = [&](const Cell& c) { return c.pass == pass; };
  if (std::none_of(cells.begin(), cells.end(), [&](const Cell& c) { return in_pass(c) && c.refusal.empty(); })) {
    for (const Cell& c : cells)
      if (in_pass(c)) letter(c.refusal);
    fmt::print("\n{}, {}: all cells are refused\n", b.name, name(pass));
    for (const std::string& s : sentences) fmt::print("  {}\n", s);
    return;
  }
  fmt::print("\n{}, {}: number of runs, or a letter for a refusal\n{:<12}", b.name, name(pass), "");
  for (const char* dtype : {"f32", "f16", "bf16"}) fmt::print(" {:^23}", dtype);
  fmt::print("\n{:<12}", "");
  for (int n = 0; n < 9; ++n) fmt::print(" {:>7}", name(KeySource(n % 3)));
  std::string_view topic;
  for (const Cell& c : cells) {
    if (!in_pass(c)) continue;
    if (c.topic != topic) fmt::print("\n{:<12}", topic = c.topic);
    fmt::print(" {:>7}", c.runs ? std::to_string(c.runs) : c.empty() ? "EMPTY" : letter(c.refusal));
  }
  fmt::print("\n");
  for (const std::string& s : sentences) fmt::print("  {}: {}\n", letter(s), s);
}

Json as_json(const Outcome& o) {
  Json figures = Json::array();
  for (const Figures& f : o.figures)
    figures.push_back({{"output", name(f.role)},
                       {"mae", f.judged.mae},
                       {"max", f.judged.max},
                       {"relative_l2", f.judged.relative_l2},
                       {"tolerance_used", f.judged.used},
                       {"verdict", name(f.judged.verdict)}});
  return {{"verdict", name(o.verdict)}, {"why", o.why}, {"mistake", o.mistake}, {"outputs", figures}};
}

Json as_json(const Suite& suite, const std::vector<Attempt>& all) {
  Json backends = Json::array(), runs = Json::array();
  for (const auto& [key, t] : tallies(suite, all))
    backends.push_back({{"backend", suite.backends[key.first]->name}, {"dtype", name(key.second)}, {"runs", t.runs},
                        {"pass", t.of(Verdict::pass)}, {"pass_at_floor", t.of(Verdict::pass_at_floor)},
                        {"empty", t.of(Verdict::empty)}, {"fail", t.of(Verdict::fail)}, {"worst_mae", t.mae},
                        {"worst_max", t.max}, {"worst_relative_l2", t.relative_l2}, {"tolerance_used", t.used}});
  for (const Attempt& a : all) {
    const Place& at = suite.places[a.place_index];
    Json run = {{"case", name(suite.cases[a.case_index])}, {"backend", a.backend->name}, {"device", at.word}};
    if (at.threads) run["threads"] = at.threads;
    run.update(as_json(a.outcome));
    if (a.outcome.verdict == Verdict::fail) run["command"] = command(suite, a);
    runs.push_back(std::move(run));
  }
  return {{"device", suite.places[0].word}, {"name", suite.places[0].device.name}, {"gate", kGate},
          {"backends", backends}, {"runs", runs}};
}

Json as_json(const Backend& b, const Place& at, const Cell& c) {
  Json cell = {{"backend", b.name}, {"device", at.word}, {"topic", c.topic}, {"pass", name(c.pass)},
               {"dtype", name(c.dtype)}, {"keys", name(c.keys)}, {"runs", c.runs}};
  if (at.threads) cell["threads"] = at.threads;
  if (!c.refusal.empty()) cell["refusal"] = c.refusal;
  return cell;
}

// Why a backend requested by name had nothing to run: preferably a plan refused after `supports` agreed, else the first
// refusal. Begins with ": "; "" if unknown.
std::string why_nothing(const Suite& suite) {
  if (suite.backends.size() != 1) return "";
  const Backend& b = *suite.backends[0];
  const Device& d = suite.places[0].device;
  std::string first;
  const std::vector<Case> all = suite.cases.empty() ? cases(true) : suite.cases;  // empty with --kernels
  for (const Case& c : all) {
    Plan plan;
    const Status s = plan_on(b, c.problem, d, plan);
    if (s.ok()) continue;
    if (b.supports(c.problem, d).ok()) return ": " + s.message;
    if (first.empty()) first = ": " + s.message;
  }
  return first;
}

void parity(const Asked& asked, Context& context) {
  if (asked.ring)
    return ring_parity({asked.device, asked.text, asked.ranks, asked.seconds, asked.quick}, context);
  if (asked.hunt.cases) {
    HuntAsked hunt = asked.hunt;
    hunt.device = asked.device, hunt.backend = asked.backend, hunt.threads = asked.threads;
    return hunt_parity(hunt, context);
  }
  if (const SubjectsAsked& given = asked.subjects;
      !given.peers.empty() || !given.against.empty() || !given.lines.empty() || !given.suite.empty()) {
    SubjectsAsked all = given;
    all.device = asked.device, all.backend = asked.backend, all.text = asked.text, all.threads = asked.threads;
    return subjects_parity(all, context);
  }
  Suite suite;
  Exit code = kUsage;
  if (Status s = make_suite(asked, suite, code); !s.ok()) return fail(context, code, s.message);
  const bool live = isatty(STDERR_FILENO) == 1;
  if (live)
    suite.progress = [&](size_t done, size_t failed) {
      fmt::print(stderr, "{}{} of {} cases, {} failed", kErase, done, suite.cases.size(), failed);
    };
  const std::vector<Attempt> all = suite.run();
  if (live) fmt::print(stderr, "{}", kErase);

  const size_t failed = count(all, Verdict::fail), nothing = count(all, Verdict::empty);
  const size_t passed = all.size() - failed - nothing;
  size_t holes = 0;
  Json document;
  if (context.json) document = as_json(suite, all);
  else if (!asked.text.empty()) print_figures(suite, all);
  if (!context.json) {
    print_table(suite, tallies(suite, all));
    print_failures(suite, all);
    print_empty(suite, all);
  }
  for (size_t n = 0; asked.coverage && n < suite.backends.size(); ++n) {
    const Backend& b = *suite.backends[n];
    for (size_t place = 0; place < suite.places.size(); ++place) {
      const std::vector<Cell> cells = coverage(suite, all, b, place);
      const auto empty = size_t(std::count_if(cells.begin(), cells.end(), [](const Cell& c) { return c.empty(); }));
      holes += empty;
      for (const Cell& c : cells)
        if (context.json) document["coverage"].push_back(as_json(b, suite.places[place], c));
      if (context.json || (place && !empty)) continue;  // other levels are shown only if they have a hole
      if (place) fmt::print("\n{}:", suite.places[place].word);
      for (const Pass pass : {Pass::forward, Pass::backward}) print_coverage(b, pass, cells);
    }
  }
  if (context.json) {
    document["passed"] = passed, document["empty"] = nothing, document["failed"] = failed;
    if (asked.coverage) document["empty_cells"] = holes;
    fmt::print("{}\n", document.dump(2));
  }
  if (holes)
    fail(context, kFailed,
         join("attune parity: ", holes, " cells of the coverage are empty: supported, but never run"));
  if (all.empty()) fail(context, kFailed, join("attune parity: no backend ran", why_nothing(suite)));
  if (!all.empty() && nothing == all.size()) fail(context, kFailed, kNothing);
  if (failed && context.exit_code == kOk) context.exit_code = kFailed;
  if (!context.json) fmt::print("\n{} empty\n{} passed, {} failed\n", nothing, passed, failed);
}

}  // namespace

namespace {

// Options of peers and of backends on given lines. They exclude `others`.
void add_subjects(const Command& command, SubjectsAsked& asked, const std::vector<Argument>& others) {
  const auto alone = [&](const Argument& a) {
    for (const Argument& other : others) a.excludes(other);
    a.excludes("--coverage"), a.excludes("--levels");
  };
  alone(command.add_option("problems", asked.lines, "Compare --peer and --backend on these problem lines")
            .type_name("LINE"));
  alone(command.add_option("--suite", asked.suite, "Compare them on the rows of this suite of bench")
            .type_name("NAME"));
  alone(command.add_option("--peer", asked.peers,
                           "Compare these peers, as in bench, with the reference: one row per problem and peer")
            .delimiter(',')
            .one_word()
            .type_name("LIST"));
  alone(command.add_option("--against", asked.against,
                           "Compare with this peer or backend instead of the reference, at any length")
            .type_name("NAME"));
  command.add_option("--mask", asked.masks, "Keep only these rows: full, causal, window, compressed or a whole mask")
      .type_name("LIST");
  command.add_option("--len", asked.lengths, "Keep only rows of these numbers of keys").type_name("LIST");
  command.add_option("--pass", asked.passes, "Keep only rows of this pass: forward, backward").type_name("LIST");
  command.add_option("--python", asked.python, "Run peers in this Python").type_name("PROGRAM").show_default();
}

}  // namespace

void add_parity(CLI::App& app, Context& context) {
  auto asked = std::make_shared<Asked>();
  const Command command = add_command(
      app, "parity", "Compare every backend with the fp64 reference on all cases");
  command.add_option("--device", asked->device,
                     "Run on cpu, on one of its levels (cpu:scalar, cpu:neon, ...), or on a GPU: cuda:0")
      .show_default();
  command.add_option("--backend", asked->backend, "Run only this backend");
  const Argument one = command.add_option(
      "--case", asked->text, "Run only this case: a problem line, then ' | ' and words about the arguments");
  const Argument quick = command.add_flag("--quick", asked->quick, "Run a short list of cases");
  const Argument kernels = command.add_flag(
      "--kernels", asked->kernels, "Run the smallest case of every kernel, for slow tools such as compute-sanitizer");
  kernels.excludes(one).excludes(quick);
  command.add_flag("--coverage", asked->coverage, "Also print what was tried, of everything a backend supports")
      .excludes(one)
      .excludes(quick)
      .excludes(kernels);
  const Argument ring = command.add_flag(
      "--ring", asked->ring, "Compare attention over ranks with the whole: ranks are threads, or processes of mpirun");
  ring.excludes("--backend").excludes(kernels).excludes("--coverage");
  command.add_option("--ranks", asked->ranks, "With --ring: use these numbers of ranks; under mpirun its processes")
      .delimiter(',').between(1, 64).needs(ring).show_default();
  command.add_option("--limit", asked->seconds, "With --ring: let a rank wait this many seconds for another")
      .between(0.001, 1e6).needs(ring).show_default();
  const Argument threads =
      command.add_option("--threads", asked->threads, "Run with this many threads; default all of the CPU")
          .between(1, 1024);
  command.add_flag("--levels", asked->levels, "Also run every lower level of this CPU, and this one with 7 threads")
      .excludes(threads)
      .excludes(ring)
      .excludes(kernels);
  const Argument hunt = command.add_option(
      "--hunt", asked->hunt.cases, "Run this many random problems, biased to short tiles, and shrink what fails");
  hunt.between(1, 100000000).excludes(one).excludes(quick).excludes(kernels).excludes(ring).excludes("--coverage");
  hunt.excludes("--levels");
  command.add_option("--seed", asked->hunt.seed, "With --hunt: draw the same problems each time; default a fresh seed")
      .between(0, 2147483647)
      .needs(hunt);
  command.add_option("--kinds", asked->hunt.kinds, "With --hunt: draw only these kinds of problems")
      .delimiter(',')
      .needs(hunt)
      .one_of(hunt_kinds());
  command.add_option("--watchdog", asked->hunt.launch_seconds,
                     "With --hunt: count a run as hanging after this many seconds")
      .between(0.1, 1e6)
      .needs(hunt)
      .show_default();
  command.add_option("--max-seconds", asked->hunt.max_seconds,
                     "With --hunt: start no new problem after this many seconds")
      .between(0.1, 1e6)
      .needs(hunt);
  add_subjects(command, asked->subjects, {quick, kernels, ring, hunt});
  command.footer(
      "A case is PASS if its mean absolute error is at most 5e-5, PASS-AT-FLOOR if it is above that but no worse than\n"
      "three times a naive computation in the same precision, else FAIL. A case in which no query sees a key is\n"
      "EMPTY: it compares nothing and does not count as passed. Exit code 0 only if something was compared and nothing "
      "failed.\n\n"
      "Examples:\n"
      "  attune parity --device cpu --levels\n"
      "  attune parity --device cuda:0 --coverage\n"
      "  attune parity --ring --ranks 2,4\n"
      "  attune parity --device cuda:0 --hunt 2000 --max-seconds 120\n"
      "  mpirun -n 4 attune parity --ring\n"
      "  attune parity --peer examples/my_attention.py:attention --backend cpu_forward --suite regress\n"
      "  attune parity --device cuda:0 --peer flash_attn --against torch:sdpa --suite fa2-vs-sdpa --mask window\n"
      "  attune parity --backend cpu_forward --case \"forward bf16 b2 h4/2 q31 k129 d64 causal | seed=3 drawn bhsd "
      "cache\"");
  command.callback([asked, &context] { parity(*asked, context); });
}

}  // namespace attune
