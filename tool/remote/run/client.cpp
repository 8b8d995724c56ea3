// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/run/client.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <ctime>
#include <filesystem>

#include "machine/library.h"
#include "tool/files.h"
#include "tool/json.h"
#include "tool/json_value.h"
#include "tool/record/record.h"
#include "tool/remote/drivers/drivers.h"
#include "tool/remote/journal.h"
#include "tool/remote/run/lease.h"
#include "tool/remote/money.h"
#include "tool/remote/offers.h"
#include "tool/remote/process.h"
#include "tool/remote/run/worker.h"
#include "tool/table.h"
#include "tool/text.h"

namespace attune {

namespace fs = std::filesystem;

namespace {

constexpr double kSetUp_s = 60, kTeardown_s = 60;  // of a plan's estimate, where money counts
constexpr double kFree_minutes = 24 * 60;

std::atomic<int> interrupts{0};

struct Interrupts {
  struct sigaction old[2]{};
  static constexpr int kSignals[] = {SIGINT, SIGTERM};
  Interrupts() {
    struct sigaction action{};
    action.sa_handler = [](int) { ++interrupts; };
    for (int n = 0; n < 2; ++n) sigaction(kSignals[n], &action, &old[n]);
  }
  ~Interrupts() {
    for (int n = 0; n < 2; ++n) sigaction(kSignals[n], &old[n], nullptr);
  }
};

std::vector<TargetState> states_of(const RemotePlan& p) {
  std::vector<JournalLine> lines;
  (void)Journal::read(run_folder(p.id), lines);
  std::vector<TargetState> all;
  for (int n = 0; n < int(p.legs.size()); ++n) all.push_back(state_of(lines, n));
  return all;
}

bool is_over(const TargetState& s) { return s.done && !s.may_exist(); }

// One line of progress, or nothing for a step that is not worth one.
std::string progress_text(const JournalLine& l) {
  switch (l.event) {
    case Event::acquired: return join("taken", l.value > 0 ? join(", ", digits_text(l.value), " USD an hour") : "");
    case Event::ready: return "ready";
    case Event::pushed: return "the bundle is there";
    case Event::started: return "the command runs";
    case Event::stopping: return join("told to end: ", l.text);
    case Event::ended: return join("the command ended with exit code ", int(l.value));
    case Event::release_failed: return join("not released yet: ", l.text);
    case Event::verified_gone: return "released; nothing is left";
    case Event::failed: return l.text;
    default: return "";
  }
}

class Progress {
 public:
  explicit Progress(const RemotePlan& p) : plan_(p), rows_(p.legs.size()), said_(p.legs.size()) {}
  void show() {
    std::vector<JournalLine> lines;
    if (!Journal::read(run_folder(plan_.id), lines).ok()) return;
    for (; seen_ < lines.size(); ++seen_) {
      const JournalLine& l = lines[seen_];
      if (l.target < 0 || size_t(l.target) >= rows_.size()) continue;
      if (l.event == Event::row) rows_[size_t(l.target)] = int(l.value);
      if (l.event == Event::ended) tell_rows(l.target);
      if (const std::string text = progress_text(l); !text.empty()) print(l.target, text);
    }
    if (now_s() < next_s_) return;
    next_s_ = now_s() + 5;
    for (int n = 0; n < int(rows_.size()); ++n) tell_rows(n);
  }

 private:
  const RemotePlan& plan_;
  size_t seen_ = 0;
  std::vector<int> rows_, said_;
  double next_s_ = now_s() + 2;

  void print(int n, std::string_view text) const {
    const std::string who = plan_.legs[size_t(n)].target.name + ": ";
    fmt::print(stderr, "{}{}\n", text.starts_with(who) ? "" : who, in_one_line(text));
    std::fflush(stderr);
  }
  void tell_rows(int n) {
    const int rows = rows_[size_t(n)];
    if (rows != said_[size_t(n)]) print(n, join(rows, rows == 1 ? " record" : " records"));
    said_[size_t(n)] = rows;
  }
};

// Links are left out: a machine may send one that names a file of this machine.
std::string copy_tree(const std::string& from, const std::string& to) {
  constexpr auto kHow = fs::copy_options::recursive | fs::copy_options::overwrite_existing |
                        fs::copy_options::skip_symlinks;
  std::error_code error;
  fs::copy(from, to, kHow, error);
  return error ? join("'", to, "' cannot be written: ", error.message()) : "";
}

// What the results became: files to print.
struct Results {
  std::string report{}, folder{};
  std::vector<std::string> tuned{}, notes{};
};

void run_self(std::vector<std::string> words, const std::string& written, const std::string& what, Results& r,
              std::vector<std::string>* made) {
  words.insert(words.begin(), own_file());
  ProgramResult result;
  const Status s = run_program({.words = std::move(words), .environment = {"ATTUNE_BACKEND="}, .limit_s = 300}, result);
  std::error_code error;
  if (!s.ok()) r.notes.push_back(join(what, ": ", s.message));
  else if (result.code && !fs::exists(written, error)) r.notes.push_back(join(what, ": ", last_line(result.err)));
  else if (made) made->push_back(written);
}

// Into the folder of --out; what cannot be copied stays where it is.
void copy_results(const RemotePlan& p, Results& r) {
  std::error_code error;
  fs::create_directories(p.out, error);
  for (int n = 0; n < int(p.legs.size()); ++n) {
    const std::string from = results_folder(p, n);
    const std::string why = copy_tree(from, p.out + "/" + fs::path(from).filename().string());
    if (!why.empty()) return r.notes.push_back(why);
  }
  if (!r.report.empty())
    if (const std::string why = copy_tree(r.report, p.out + "/report.html"); !why.empty())
      return r.notes.push_back(why);
  const auto moved = [&](std::string& path) { path = p.out + path.substr(r.folder.size()); };
  if (!r.report.empty()) moved(r.report);
  for (std::string& path : r.tuned) moved(path);
  r.folder = p.out;
}

// The page of all devices, and a tuned file for each.
Results make_results(const RemotePlan& p, const std::vector<TargetState>& states) {
  Results r{.folder = run_folder(p.id)};
  std::vector<std::string> page{"report"};
  std::vector<std::string> rows;  // of one target: all its shares
  for (int n = 0; n < int(p.legs.size()) && writes_rows(p); ++n) {
    const Leg& leg = p.legs[size_t(n)];
    if (leg.share == 1) rows.clear();
    if (states[size_t(n)].rows) rows.push_back(results_folder(p, n) + "/rows.jsonl"), page.push_back(rows.back());
    if (leg.share < leg.shares || rows.empty()) continue;
    const std::string tuned = results_folder(p, n + 1 - leg.shares) + "/tuned.tsv";
    std::vector<std::string> words{"tune", "--fresh", "--out", tuned};
    words.insert(words.end(), rows.begin(), rows.end());
    run_self(std::move(words), tuned, leg.target.name + ": no tuned file", r, &r.tuned);
  }
  if (page.size() > 1) {
    r.report = run_folder(p.id) + "/report.html";
    page.insert(page.end(), {"--out", r.report});
    run_self(page, r.report, "no report", r, nullptr);
    std::error_code error;
    if (!fs::exists(r.report, error)) r.report.clear();
  }
  if (!p.out.empty()) copy_results(p, r);
  return r;
}

std::vector<Spent> spending_of(const RemotePlan& p, const std::vector<TargetState>& states) {
  std::vector<Spent> all;
  for (size_t n = 0; n < p.legs.size(); ++n) {
    const Leg& leg = p.legs[n];
    const double hour = states[n].acquired ? states[n].lease.usd_an_hour : leg.offer.usd_an_hour;
    all.push_back(spent_by(leg.target.name, {.usd_an_hour = hour}, states[n]));
    if (leg.dearest_usd_an_hour > 0) all.back().dearest_an_hour = leg.dearest_usd_an_hour;
  }
  return all;
}

// What a command said of its failure: the last line of attune, which may be followed by the place.
std::string last_error(const RemotePlan& p, int n) {
  std::string said;
  if (!read_whole(results_folder(p, n) + "/err", said).ok()) return "";
  const size_t at = ("\n" + said).rfind("\nattune ");
  return at == said.npos ? "" : in_one_line(said.substr(at, said.find('\n', at) - at));
}

void print_results(const RemotePlan& p, const std::vector<TargetState>& states, const Results& r, Context& context) {
  if (context.json) {
    Json targets = Json::array();
    for (int n = 0; n < int(p.legs.size()); ++n) {
      const TargetState& s = states[size_t(n)];
      const std::string folder = join(r.folder, "/", fs::path(results_folder(p, n)).filename().string());
      Json j{{"target", p.legs[size_t(n)].target.name}, {"rows", s.rows}, {"gone", !s.may_exist()},
             {"failure", s.failure}, {"results", folder}};
      j["exit_code"] = s.exit_code ? Json(*s.exit_code) : Json();
      targets.push_back(j);
    }
    Json j{{"run", p.id}, {"targets", targets}, {"report", r.report}, {"tuned", r.tuned}, {"notes", r.notes}};
    j["spending"] = spending_json(spending_of(p, states), p.cap);
    fmt::print("{}\n", j.dump(2));
    return;
  }
  for (int n = 0; n < int(p.legs.size()); ++n) {  // what a command other than bench says
    std::string said;
    if (!writes_rows(p) && read_whole(results_folder(p, n) + "/out", said).ok() && !said.empty())
      fmt::print("{}{}{}", p.legs.size() > 1 ? join(p.legs[size_t(n)].target.name, ":\n") : "", said,
                 said.ends_with('\n') ? "" : "\n");
  }
  for (int n = 0; n < int(p.legs.size()); ++n)
    if (const std::string why = last_error(p, n); states[size_t(n)].exit_code.value_or(0) && !why.empty())
      fmt::print(stderr, "{}: {}\n", p.legs[size_t(n)].target.name, why);
  fmt::print("{}", spending_text(spending_of(p, states), p.cap, terminal_width(STDOUT_FILENO)));
  for (const std::string& note : r.notes) fmt::print("{}\n", note);
  for (const std::string& path : r.tuned) fmt::print("tuned    {}\n", path);
  if (!r.report.empty()) fmt::print("report   {}\n", r.report);
  fmt::print("results  {}\n", r.folder);
}

}  // namespace

Status estimate(const RemotePlan& p, double& seconds) {
  seconds = 0;
  if (!writes_rows(p)) return Status::good();
  ProgramCall call{.words = p.command, .limit_s = 60};
  call.words.insert(call.words.begin(), own_file());
  call.words.insert(call.words.end(), {"--dry-run", "--json"});
  ProgramResult r;
  JsonValue answer;
  if (const Status s = run_program(call, r); !s.ok()) return s;
  // A device that is not here cannot be estimated; a wrong word is wrong everywhere.
  if (r.code == kUsage) return Status::no(r.err.substr(r.err.starts_with("attune ") ? 7 : 0, r.err.find('\n') - 7));
  if (r.code == kOk && JsonValue::parse(last_line(r.out), answer).ok())
    seconds = 60 * answer["estimated_minutes"].number().value_or(0);
  return Status::good();
}

Status choose_offers(RemotePlan& p, double estimated_s) {
  std::vector<PlannedTarget> planned;
  for (Leg& leg : p.legs) {
    const Target& t = leg.target;
    const auto driver = driver_of(t, "");
    // Whatever the target lacks, the command line was right.
    const auto no = [](Status s) { return s.code == Code::invalid ? (s.code = Code::device, s) : s; };
    if (Status s = driver->check(); !s.ok()) return no(std::move(s));
    std::vector<RemoteOffer> offers;
    const Wanted wanted{.gpu = t.gpu, .gpus = std::max(t.gpus, t.gpu.empty() ? 0 : 1), .ranks = p.ranks};
    if (Status s = driver->offers(wanted, offers); !s.ok()) return no(std::move(s));
    if (offers.empty()) return Status::failure(Code::device, t.name, ": nothing is offered");
    leg.offer = offers[0];
    for (const RemoteOffer& o : offers) leg.dearest_usd_an_hour = std::max(leg.dearest_usd_an_hour, o.usd_an_hour);
    PlannedTarget plan{.name = t.name, .rate = {.usd_an_hour = leg.offer.usd_an_hour}};
    if (leg.offer.usd_an_hour > 0) {
      std::optional<double> there;
      if (Status s = estimated_on(p.command, leg.offer.gpu, there); !s.ok()) return s;
      if (!there)  // a GPU that the planner does not know is taken for the slowest one that it knows
        if (Status s = estimated_on(p.command, "t4", there); !s.ok()) return s;
      plan.time = {.provision_s = leg.offer.setup_s, .setup_s = kSetUp_s,
                   .run_s = there.value_or(estimated_s) / leg.shares, .teardown_s = kTeardown_s};
    }
    planned.push_back(plan);
  }
  std::vector<Limits> limits;
  Cap cap = p.cap;
  const bool free = std::all_of(p.legs.begin(), p.legs.end(), [](const Leg& l) { return l.offer.usd_an_hour <= 0; });
  if (free && !cap.minutes) cap.minutes = kFree_minutes;
  if (Status s = limits_of(cap, planned, limits); !s.ok()) return s;
  for (size_t n = 0; n < p.legs.size(); ++n) {
    Limits& l = p.legs[n].limits = limits[n];
    if (const double most = 60 * p.legs[n].offer.most_minutes; most > 0 && l.lease_s > most)
      l.lease_s = l.kill_s = most, l.stop_s = kStopShare * most;
  }
  return Status::good();
}

Status launch(const RemotePlan& p) {
  if (Status s = write_plan(p); !s.ok()) return s;
  Journal journal;
  if (Status s = journal.open(run_folder(p.id)); !s.ok()) return s;
  for (int n = 0; n < int(p.legs.size()); ++n) {
    if (Status s = journal.add({.target = n, .event = Event::planned}); !s.ok()) return s;
    if (!p.resumed.empty()) {  // the rows that are there already
      RemotePlan old;
      std::error_code error;
      if (Status s = read_plan(p.resumed, old); !s.ok()) return s;
      const std::string rows = results_folder(old, n) + "/rows.jsonl", kept = results_folder(p, n) + "/rows.jsonl";
      if (!fs::exists(rows, error)) continue;
      fs::copy_file(rows, kept, error);
      // The row in flight is cut off here, as bench would do there: the copy stays a prefix of the file there.
      RecordFile file;
      std::vector<Record> records;
      if (Status s = file.open(kept); !s.ok()) return s;
      if (Status s = file.resume(records); !s.ok()) return s;
    }
  }
  for (int n = 0; n < int(p.legs.size()); ++n)
    if (Status s = start_worker(p, n); !s.ok()) return s;
  ensure_reaper(p);
  return Status::good();
}

void follow_run(const RemotePlan& p, Context& context) {
  const Interrupts here;
  Progress progress(p);
  std::vector<TargetState> states;
  bool asked = false;
  for (;;) {
    states = states_of(p);
    progress.show();
    if (std::all_of(states.begin(), states.end(), is_over)) break;
    ensure_reaper(p);
    if (interrupts && !asked) {
      asked = true;
      (void)write_file(run_folder(p.id) + "/stop", "");
      fmt::print(stderr, "the run is asked to end; Ctrl-C again leaves it to end by itself\n");
    }
    if (interrupts > 1) {
      fmt::print(stderr, "attune remote attach {} shows it again\n", p.id);
      context.exit_code = kSignal + SIGINT;
      return;
    }
    sleep_s(0.1);
  }
  const Results results = make_results(p, states);
  print_results(p, states, results, context);
  for (const TargetState& s : states) {
    if (context.exit_code != kOk) break;
    if (!s.failure.empty()) context.exit_code = s.failure_code ? s.failure_code : int(kMachine);
    else if (s.exit_code.value_or(0)) context.exit_code = *s.exit_code;
  }
}

std::vector<std::string> revive_dead_runs() {
  std::vector<std::string> dead;
  for (const std::string& id : run_ids()) {
    RemotePlan p;
    if (is_held(reaper_lock(run_folder(id))) || !read_plan(id, p).ok()) continue;
    const std::vector<TargetState> states = states_of(p);
    if (std::all_of(states.begin(), states.end(), is_over)) continue;
    dead.push_back(id);
    ensure_reaper(p);
  }
  return dead;
}

void list_runs(Context& context) {
  Json all = Json::array();
  TextTable table{.columns = {{"run"}, {"target"}, {"state"}, {"records", Cells::number}, {"command"}}, .group = 0};
  for (const std::string& id : run_ids()) {
    RemotePlan p;
    if (!read_plan(id, p).ok()) continue;
    const std::vector<TargetState> states = states_of(p);
    std::string command;
    for (const std::string& word : p.command) command += join(command.empty() ? "" : " ", in_one_line(word));
    for (int n = 0; n < int(states.size()); ++n) {
      const TargetState& s = states[size_t(n)];
      const std::string state = is_over(s) ? s.failure.empty() ? join("ended with ", s.exit_code.value_or(0)) : "failed"
                                           : std::string(name(s.last));
      const std::string& target = p.legs[size_t(n)].target.name;
      table.rows.push_back({id, target, state, join(s.rows), command});
      all.push_back({{"run", id}, {"target", target}, {"state", state}, {"rows", s.rows}, {"over", is_over(s)},
                     {"command", p.command}});
    }
  }
  if (context.json) fmt::print("{}\n", all.dump(2));
  else if (table.rows.empty()) fmt::print("there are no runs yet\n");
  else fmt::print("{}", to_text(std::move(table), terminal_width(STDOUT_FILENO)));
}

void print_logs(const RemotePlan& p, Context& context) {
  std::vector<JournalLine> lines;
  if (const Status s = Journal::read(run_folder(p.id), lines); !s.ok())
    return fail(context, kMachine, join("attune remote logs: ", s.message));
  if (context.json) {
    Json all = Json::array();
    for (const JournalLine& l : lines)
      all.push_back({{"time", l.time}, {"target", l.target}, {"event", name(l.event)}, {"text", l.text},
                     {"value", l.value}});
    return fmt::print("{}\n", all.dump(2));
  }
  const double begin = lines.empty() ? 0 : lines[0].time;
  for (const JournalLine& l : lines) {
    if (l.target < 0 || size_t(l.target) >= p.legs.size()) continue;
    fmt::print("{:8.1f} s  {}  {}{}{}\n", l.time - begin, p.legs[size_t(l.target)].target.name, name(l.event),
               l.value != 0 ? " " + digits_text(l.value) : "", l.text.empty() ? "" : "  " + in_one_line(l.text));
  }
  for (int n = 0; n < int(p.legs.size()); ++n)
    for (const char* file : {"out", "err"}) {
      std::string said;
      if (!read_whole(join(results_folder(p, n), "/", file), said).ok() || said.empty()) continue;
      fmt::print("\n{}, {}:\n{}{}", p.legs[size_t(n)].target.name, file[0] == 'o' ? "stdout" : "stderr", said,
                 said.ends_with('\n') ? "" : "\n");
    }
}

namespace {

constexpr double kInUse_s = 120;     // a worker that was heard so recently lives, on another machine
constexpr double kStarting_s = 1800;  // a machine so young may be starting for a worker elsewhere

// Seconds since the run of this lease began, by the time in its id.
double age_of(const std::string& run) {
  std::tm utc{};
  if (!strptime(run.c_str(), "%Y%m%d-%H%M%S", &utc)) return 1e9;
  return now_s() - double(timegm(&utc));
}

// Whether another machine's worker may be using this lease, in words; "" if not.
std::string why_in_use(Driver& driver, const Lease& lease, const std::string& run) {
  Life life = Life::pending;
  std::string why;
  double silence = 0;
  const Status known = driver.life(lease, life, why);
  if (known.ok() && (life == Life::gone || life == Life::failed)) return "";
  if (driver.silent_for(lease, silence).ok())
    return silence < kInUse_s ? "is in use by another machine" : "";
  return age_of(run) < kStarting_s ? "may be starting for another machine; it is released when it is 30 minutes old"
                                   : "";
}

// Leases on this target whose run is not known here, or is over: a request whose reply was lost may have been obeyed
// after its run had ended. What has another name is not ours.
Status reap_strangers(const Target& target, const std::string& folder, std::vector<std::string>& released) {
  const auto driver = driver_of(target, folder);
  std::vector<Lease> all;
  if (Status s = driver->find(kLeasePrefix, all); !s.ok()) return s;
  for (const Lease& lease : all) {
    const std::optional<NamedLease> of = parse_lease_name(lease.name);
    if (!of) continue;
    RemotePlan p;
    const bool known = read_plan(of->run, p).ok() && size_t(of->target) < p.legs.size();
    if (known && !is_over(states_of(p)[size_t(of->target)])) continue;  // its own journal says what to do
    if (const std::string why = known ? "" : why_in_use(*driver, lease, of->run); !why.empty()) {
      fmt::print(stderr, "{}: {} {}\n", target.name, lease.name, why);
      continue;
    }
    Backoff backoff(5);
    const double end = now_s() + 60;
    for (Life life = Life::pending; life != Life::gone; backoff.wait()) {
      std::string why;
      Status s = driver->release(lease);
      if (s.ok()) s = driver->life(lease, life, why);
      if (now_s() > end) return s.ok() ? Status::failure(Code::device, lease.name, ": it is still there") : s;
    }
    released.push_back(lease.name);
  }
  return Status::good();
}

}  // namespace

void reap(const std::vector<Target>& targets, Context& context) {
  std::vector<std::string> released;
  if (runs_folder().empty())
    return fail(context, kMachine, "attune remote reap: neither XDG_STATE_HOME nor HOME is set");
  (void)revive_dead_runs();
  for (const std::string& id : run_ids()) {
    RemotePlan p;
    if (!read_plan(id, p).ok()) continue;
    std::vector<TargetState> states = states_of(p);
    const auto over = [&] { return std::all_of(states.begin(), states.end(), is_over); };
    const auto is_worked = [&] {
      for (int n = 0; n < int(p.legs.size()); ++n)
        if (!is_over(states[size_t(n)]) && is_held(worker_lock(run_folder(id), n)) &&
            owner_of(worker_lock(run_folder(id), n)) != owner_of(reaper_lock(run_folder(id))))
          return true;
      return false;
    };
    if (over() || is_worked()) continue;
    for (; !over() && !interrupts; states = states_of(p)) sleep_s(0.1);
    released.push_back(id);
  }
  const std::string folder = join(runs_folder(), "/reap-", ::getpid());  // for what drivers write; not a run
  std::error_code error;
  if (!targets.empty()) fs::create_directories(folder, error), ::chmod(folder.c_str(), 0700);
  for (const Target& t : targets)
    if (const Status s = reap_strangers(t, folder, released); !s.ok())
      fail(context, kMachine, join("attune remote reap: ", s.message));
  fs::remove_all(folder, error);
  if (context.json) return fmt::print("{}\n", Json{{"released", released}}.dump());
  for (const std::string& name : released) fmt::print("released {}\n", name);
  if (released.empty() && context.exit_code == kOk) fmt::print("nothing is left to release\n");
}

}  // namespace attune
