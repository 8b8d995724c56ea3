// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/run/worker.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>

#include "tool/files.h"
#include "tool/json.h"
#include "tool/record/store.h"
#include "tool/remote/run/bundle.h"
#include "tool/remote/drivers/drivers.h"
#include "tool/remote/drivers/shell.h"
#include "tool/remote/run/lease.h"
#include "tool/text.h"

namespace attune {

namespace fs = std::filesystem;

namespace {

constexpr double kSetUp_s = 1800;       // until a lease is ready, and until the bundle is there
constexpr double kPatience_s = 600;     // without a connection, while a command runs
constexpr double kGrace_s = 60;         // from the signal until the command has ended
constexpr double kLook_s = 20;           // between questions whether the lease is alive
constexpr const char* kLimit = "the limit of time or money is reached";
constexpr int kTimedOut = 124;          // exit code of `timeout`
constexpr int kBySignal = 128;          // a shell adds the signal that ended a command
constexpr int kScript_s = 60;
constexpr size_t kMostArtefacts = size_t(256) << 20;
constexpr size_t kMostUnpacked = size_t(4) << 30;

Status append_to(const std::string& path, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  Status s;
  if (file < 0) s = Status::no(path, ": cannot be written: ", std::strerror(errno));
  while (s.ok() && !bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n > 0) bytes.remove_prefix(size_t(n));
    else if (errno != EINTR) s = Status::no(path, ": cannot be written: ", std::strerror(errno));
  }
  if (file >= 0) ::fdatasync(file), ::close(file);
  return s;
}

std::uint64_t size_of(const std::string& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : size;
}

int lines_of_file(const std::string& path) {
  std::string text;
  if (!read_text(path, text, kMostRecords).ok()) return 0;
  return int(std::count(text.begin(), text.end(), '\n'));
}

// "rows 1234" of a script's answer.
std::optional<std::uint64_t> value_of(const std::string& out, std::string_view name) {
  const size_t at = ("\n" + out).find(join("\n", name, " "));
  std::uint64_t value = 0;
  if (at == std::string::npos) return std::nullopt;
  const char* const begin = out.data() + at + name.size() + 1;
  return std::from_chars(begin, out.data() + out.size(), value).ec == std::errc() ? std::optional(value)
                                                                                  : std::nullopt;
}

// Open MPI's processes find each other through PMIx, if this Slurm has it.
constexpr std::string_view kMpi = "mpi=$(srun --mpi=list 2>&1 | grep -qw pmix && echo --mpi=pmix)\n";

// What the machine runs. The command's folder is work/, its output is out and err, its exit code is in `code`.
struct Start {
  std::string bundle;  // folder of the bundle, as a word of a shell
  double seconds;
  bool resumes;
};
std::string run_script(const RemotePlan& p, const Leg& leg, const Start& start) {
  const Target& target = leg.target;
  std::string command;
  if (p.ranks > 1 || target.kind == "slurm") {
    command = target.kind == "slurm" ? join("srun --overlap --ntasks=", p.ranks, " --export=ALL $mpi ")
                                     : join("mpirun -n ", p.ranks, " ");
    if (p.ranks == 1) command.clear();
  }
  command += "\"$b/bin/attune\"";
  for (const std::string& word : p.command) command += " " + shell_word(word);
  if (means_gpu(p, target)) command += " --device cuda:0";
  if (leg.shares > 1) command += join(" --share ", leg.share, "/", leg.shares);
  if (writes_rows(p)) command += start.resumes ? " --out rows.jsonl --resume" : " --out rows.jsonl";
  return join(
      "umask 077\nb=", start.bundle, "\nLD_LIBRARY_PATH=\"$b/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\"\n",
      "export LD_LIBRARY_PATH\n", p.ranks > 1 && target.kind == "slurm" ? kMpi : "",
      "mkdir -p work && cd work || exit 1\ntimeout -s INT -k 30 ", int64_t(std::max(start.seconds, 1.0)), " ", command,
      " </dev/null >../out 2>../err &\necho $! >../command.part && mv ../command.part ../command.pid\nwait $!\n",
      "echo $? >../code.part && mv ../code.part ../code\n");
}

// When a worker that lives must hang. Of a machine that is paid for, half of the reserve for teardown is left then;
// what is being released is only taken over later.
double late_at(const Leg& leg, const TargetState& state) {
  constexpr double kLate_s = 180;
  const Limits& l = leg.limits;
  const bool paid = leg.offer.usd_an_hour > 0 && state.last < Event::releasing;
  return state.intent_at + (paid ? (l.kill_s + l.lease_s) / 2 : l.lease_s + kLate_s);
}

}  // namespace

Worker::Worker(const RemotePlan& plan, int target)
    : plan_(plan), target_(target), folder_(run_folder(plan.id)), results_(results_folder(plan, target)),
      leg_(plan.legs[size_t(target)]), who_(leg_.target.name), driver_(driver_of(leg_.target, results_)),
      opened_(journal_.open(folder_)) {}

Status Worker::note(Event event, const std::string& text, double value) {
  return journal_.add({.target = target_, .event = event, .text = text, .value = value});
}

Status Worker::interrupted() {
  stopped_ = true, stop_code_ = 130;
  return Status::failure(Code::internal, who_, ": stopped by the user");
}

bool Worker::is_stop_asked() const { return ::access((folder_ + "/stop").c_str(), F_OK) == 0; }

// Repeats what failed for a reason that may pass. A lease that has ended ends the patience.
Status Worker::persist(const char* what, double patience_s, const std::function<Status()>& step) {
  const double end = std::min(now_s() + patience_s, kill_at_);  // after it, waiting costs more than the limit
  Backoff backoff(15);
  for (;;) {
    const Status s = step();
    if (s.ok() || s.code != Code::device) return s;
    if (!stopped_ && is_stop_asked()) return interrupted();
    Life life = Life::pending;
    std::string why;
    if (driver_->life(lease_, life, why).ok() && (life == Life::gone || life == Life::failed))
      return Status::failure(Code::internal, who_, ": the lease has ended", why.empty() || why == "gone" ? "" : ": ",
                             why == "gone" ? "" : why);
    if (now_s() > end) return s.after(what, ": ");
    backoff.wait();
  }
}

Status Worker::take() {
  const Target& t = leg_.target;
  const Wanted wanted{.gpu = t.gpu, .gpus = std::max(t.gpus, t.gpu.empty() ? 0 : 1), .ranks = plan_.ranks,
                      .minutes = leg_.limits.lease_s / 60, .max_usd = leg_.limits.usd, .silence_s = plan_.silence_s,
                      .name = lease_name(plan_, target_)};
  if (is_stop_asked()) return interrupted();
  if (Status s = note(Event::intent, wanted.name); !s.ok()) return s;
  lease_.name = wanted.name;
  const double asked = now_s();
  stop_at_ = asked + leg_.limits.stop_s, kill_at_ = asked + leg_.limits.kill_s;
  // A request without a reply is made again under the same name.
  Status s = Status::failure(Code::device, "");
  for (int attempt = 0; attempt < 5 && !s.ok() && s.code == Code::device; ++attempt) {
    if (attempt) sleep_s(attempt);
    s = driver_->acquire(wanted, leg_.offer, lease_);
  }
  if (!s.ok()) return s;
  lease_.name = wanted.name;
  const JournalLine line{.target = target_, .event = Event::acquired, .id = lease_.id, .where = lease_.where,
                         .value = lease_.usd_an_hour};
  if (s = journal_.add(line); !s.ok()) return s;
  if (lease_.usd_an_hour > leg_.offer.usd_an_hour * 1.001)
    return Status::failure(Code::out_of_memory, who_, ": ", digits_text(lease_.usd_an_hour), " USD an hour are wanted "
                           "for it, and ", digits_text(leg_.offer.usd_an_hour), " were offered");
  Backoff backoff(5);
  for (;;) {
    Life life = Life::pending;
    std::string why;
    if (s = driver_->life(lease_, life, why); s.ok() && life == Life::ready) break;
    if (s.ok() && life != Life::pending)
      return Status::failure(Code::device, who_, ": ",
                             life == Life::gone ? "the lease is gone before it was ready" : why);
    if (is_stop_asked()) return interrupted();
    if (now_s() > std::min(stop_at_, asked + kSetUp_s))
      return s.ok() ? Status::failure(Code::device, who_, ": not ready after ", seconds_text(now_s() - asked),
                                      why.empty() ? "" : ": ", why)
                    : s;
    backoff.wait();
  }
  return note(Event::ready);
}

Status Worker::set_up() {
  const Target& t = leg_.target;
  Bundle bundle;
  if (Status s = read_bundle(plan_.bundle, bundle); !s.ok()) return s;
  std::string out;
  int code = 0;
  const auto run = [&](const std::string& script, int limit_s) {
    return persist("set up", kPatience_s, [&] { return driver_->run(lease_, script, limit_s, out, code); });
  };
  if (Status s = run(kProbe, kScript_s); !s.ok()) return s;
  if (Status s = fits(bundle, out, !t.gpu.empty()); !s.ok()) return s.after(who_, ": ");
  // A machine of one's own keeps the bundle, under its hash; a rented one has it in the lease's folder.
  const std::string to = driver_->keeps_files()
                             ? join("\"${XDG_CACHE_HOME:-$HOME/.cache}/attune/installed/", bundle.hash, "\"")
                             : "\"$PWD/bundle\"";
  const std::string is_there = join("[ -x ", to, "/bin/attune ] && echo there");
  Status s = persist("set up", kPatience_s, [&] { return driver_->manage(lease_, is_there, kScript_s, out, code); });
  if (!s.ok()) return s;
  if (out.find("there") == out.npos) {
    s = persist("push", kPatience_s, [&] { return driver_->push(lease_, plan_.bundle, "bundle.tar.gz"); });
    if (!s.ok()) return s;
    const std::string unpack =
        join("set -e\nto=", to, "\nmkdir -p \"${to%/*}\" unpacked\ntar -C unpacked -xzf bundle.tar.gz\n",
             "rm bundle.tar.gz\n[ -x \"$to/bin/attune\" ] || mv -T unpacked \"$to\" 2>/dev/null || ",
             "[ -x \"$to/bin/attune\" ]\necho there");
    s = persist("set up", kPatience_s, [&] { return driver_->manage(lease_, unpack, 300, out, code); });
    if (!s.ok()) return s;
    if (code || out.find("there") == out.npos)
      return Status::failure(Code::device, who_, ": the bundle cannot be unpacked: ", last_line(out));
  }
  s = persist("set up", kPatience_s, [&] { return driver_->manage(lease_, "mkdir -p work", kScript_s, out, code); });
  if (!s.ok()) return s;
  std::vector<std::pair<std::string, std::string>> files;
  for (const std::string& path : plan_.sent) files.emplace_back(path, "work/" + fs::path(path).filename().string());
  const std::string rows = results_ + "/rows.jsonl";
  if (size_of(rows)) files.emplace_back(rows, "work/rows.jsonl");  // of the run that is resumed
  const std::string script = results_ + "/run.sh";
  s = write_file(script,
                 run_script(plan_, leg_, {.bundle = to, .seconds = kill_at_ - now_s(), .resumes = size_of(rows) > 0}));
  if (!s.ok()) return s;
  files.emplace_back(script, "run.sh");
  for (const auto& [from, name] : files) {
    s = persist("push", kPatience_s, [&, from = from, name = name] { return driver_->push(lease_, from, name); });
    if (!s.ok()) return s;
  }
  return note(Event::pushed);
}

Status Worker::start() {
  if (is_stop_asked()) return interrupted();
  // Starting twice would run the command twice: without a reply, the pid file tells.
  std::string out;
  int code = 0;
  const Status s = driver_->start(lease_);
  if (!s.ok()) {
    sleep_s(2);
    const Status asked = persist("start", kPatience_s, [&] {
      return driver_->manage(lease_, "[ -e command.pid ] || [ -e go ] && echo runs", kScript_s, out, code);
    });
    if (!asked.ok() || out.find("runs") == out.npos) return s;
  }
  return note(Event::started);
}

// Appends what is new of a file there to a file here. Of rows only whole lines are taken, so the copy is at every time
// a prefix of the file there.
Status Worker::take_new(const std::string& file, const std::string& to, size_t most, bool whole_lines) {
  for (;;) {
    std::string bytes;
    const size_t have = size_of(to);
    if (Status s = driver_->read(lease_, file, have, bytes); !s.ok()) return s;
    const bool more = bytes.size() >= kReadBytes;
    bytes.resize(std::min(bytes.size(), most - std::min(most, have)));
    if (whole_lines) bytes.resize(bytes.rfind('\n') + 1);  // npos + 1 is 0
    if (bytes.empty()) return Status::good();
    if (Status s = append_to(to, bytes); !s.ok()) return s;
    if (whole_lines)
      if (Status s = note(Event::row, "", lines_of_file(to)); !s.ok()) return s;
    if (!more) return Status::good();
  }
}

Status Worker::poll(bool& ended) {
  std::string out;
  int code = 0;
  const std::string script =
      ": >beat\n[ -e code ] && echo \"code $(cat code)\"\n"
      "for f in work/rows.jsonl out err; do echo \"${f##*/} $(stat -c %s $f 2>/dev/null || echo 0)\"; done";
  if (Status s = driver_->manage(lease_, script, kScript_s, out, code); !s.ok()) return s;
  const auto code_there = value_of(out, "code");
  const std::pair<const char*, const char*> files[] = {
      {"work/rows.jsonl", "rows.jsonl"}, {"out", "out"}, {"err", "err"}};
  for (const auto& [there, here] : files) {
    const std::string to = join(results_, "/", here);
    const bool rows = here == files[0].second;
    // A machine that sends without end must not fill this one.
    const size_t most = rows ? kMostRecords : kMostText;
    if (std::min<std::uint64_t>(value_of(out, here).value_or(0), most) > size_of(to))
      if (Status s = take_new(there, to, most, rows); !s.ok()) return s;
  }
  ended = code_there.has_value();
  if (ended) ended_with_ = int(*code_there);
  if (ended && *code_there == kTimedOut && !stopped_) stopped_ = true, stop_code_ = 4, told_ = kLimit;
  return ended ? note(Event::ended, "", double(*code_there)) : Status::good();
}

Status Worker::stop_command(const std::string& why, int exit_code) {
  if (stopped_) return Status::good();
  std::string out;
  int code = 0;
  stopped_ = true, told_ = why, stop_code_ = exit_code;
  if (Status s = note(Event::stopping, why); !s.ok()) return s;
  // The pid is that of `timeout`, which sends the signal on. On a cluster it means something on the node only.
  return driver_->run(lease_, "kill -INT \"$(cat command.pid)\"", kScript_s, out, code);
}

// A command that a signal has ended: its machine was taken away, or only the command was killed.
Status Worker::why_it_ended() {
  if (stopped_ || ended_with_ <= kBySignal) return Status::good();
  Life life = Life::pending;
  std::string why;
  // A machine that is being taken away may count as alive for some seconds.
  for (const double end = now_s() + std::min(driver_->settle_s() + 2, 15.0); now_s() < end; sleep_s(0.5))
    if (driver_->life(lease_, life, why).ok() && (life == Life::gone || life == Life::failed))
      return Status::failure(Code::device, who_, ": the lease has ended: ", why);
  return Status::failure(Code::device, who_, ": the command was ended by signal ", ended_with_ - kBySignal);
}

Status Worker::follow() {
  double wait_s = 0.2, last_end = 0, looked = now_s();
  for (bool ended = false;;) {
    if (Status s = persist("poll", kPatience_s, [&] { return poll(ended); }); !s.ok()) return s;
    if (ended) return why_it_ended();
    if (!stopped_ && is_stop_asked()) (void)stop_command("asked by the user", 130);
    if (!stopped_ && now_s() > stop_at_) (void)stop_command(kLimit, 4);
    if (stopped_ && last_end == 0) last_end = std::min(now_s() + kGrace_s, std::max(kill_at_, now_s() + 1));
    if (stopped_ && now_s() > last_end)
      return Status::failure(Code::device, who_, ": the command did not end in time after the signal");
    if (now_s() > looked + kLook_s) {  // rarely: it is work for the machine that measures
      ensure_reaper(plan_);
      Life life = Life::ready;
      std::string why;
      const bool told = driver_->life(lease_, life, why).ok();
      looked = now_s();
      if (told && (life == Life::gone || life == Life::failed)) {
        (void)poll(ended);  // what was written last
        if (ended && ended_with_ <= kBySignal) return Status::good();
        return Status::failure(Code::device, who_, ": the lease has ended: ", why);
      }
    }
    sleep_s(stopped_ ? 0.2 : wait_s);
    wait_s = std::min(wait_s * 1.3, 3.0);
  }
}

// An archive that cannot be unpacked is kept. What it holds is limited: zeros shrink to a thousandth.
Status Worker::unpack(const std::string& archive) {
  const std::string script =
      join("gzip -dc <", shell_word(archive), " | head -c ", kMostUnpacked, " | tar -C ",
           shell_word(results_ + "/files"), " --no-same-owner --no-same-permissions -xf -");
  ProgramResult r;
  Status s = run_program({.words = {"sh", "-c", script}, .limit_s = 300}, r);
  if (s.ok() && r.code) s = Status::failure(Code::internal, last_line(r.err));
  s.code = s.ok() ? s.code : Code::internal;
  return s.after(who_, ": the command's files are kept packed in '", archive, "': ");
}

// The files that the command wrote, besides rows.
Status Worker::pull() {
  std::string out;
  int code = 0;
  const std::string pack =
      join("[ -d work ] && [ -n \"$(ls -A work | grep -vx rows.jsonl)\" ] || exit 0\n",
           // tar says 1 where a file changed while it was read: the rest is whole.
           "tar -C work --exclude=./rows.jsonl -czf files.tar.gz . || [ $? = 1 ] || exit 1\n"
           "stat -c 'size %s' files.tar.gz");
  if (Status s = driver_->manage(lease_, pack, 300, out, code); !s.ok()) return s;
  const auto size = value_of(out, "size");
  if (code) return Status::failure(Code::internal, who_, ": the command's files cannot be packed: ", last_line(out));
  if (size && *size > kMostArtefacts)
    return Status::failure(Code::device, who_,
                           ": the files of the command are left behind: ", bytes_text(double(*size)), "; at most ",
                           bytes_text(double(kMostArtefacts)), " are fetched");
  if (size && *size > 0) {
    const std::string archive = results_ + "/files.tar.gz";
    std::error_code error;
    fs::remove(archive, error);
    while (size_of(archive) < *size) {
      const std::uint64_t before = size_of(archive);
      if (Status s = take_new("files.tar.gz", archive, size_t(*size), false); !s.ok()) return s;
      if (size_of(archive) == before)
        return Status::failure(Code::device, who_, ": the files of the command are cut off");
    }
    if (Status s = unpack(archive); !s.ok()) return s;
    fs::remove(archive, error);
  }
  return note(Event::pulled);
}

void Worker::write_summary() {
  std::vector<JournalLine> lines;
  if (!Journal::read(folder_, lines).ok()) return;
  const TargetState s = state_of(lines, target_);
  const auto between = [](double from, double to) { return from > 0 && to > from ? to - from : 0; };
  const double wall = between(s.intent_at, s.gone_at > 0 ? s.gone_at : now_s());
  const double paid = between(s.acquired_at, s.gone_at > 0 ? s.gone_at : now_s());
  const double run = between(s.started_at, s.ended_at), usd = paid / 3600 * s.lease.usd_an_hour;
  Json j{{"run", plan_.id}, {"target", who_}, {"command", plan_.command}, {"rows", s.rows}, {"wall_s", wall},
         {"provision_s", between(s.intent_at, s.ready_at)}, {"set_up_s", between(s.ready_at, s.started_at)},
         {"run_s", run}, {"idle_s", std::max(0.0, paid - between(s.acquired_at, s.started_at) - run)},
         {"usd_an_hour", s.lease.usd_an_hour}, {"usd", usd}, {"usd_a_row", s.rows ? usd / s.rows : 0}};
  j["exit_code"] = s.exit_code ? Json(*s.exit_code) : Json();
  j["billed_usd"] = s.billed ? Json(*s.billed) : Json();
  if (!s.failure.empty()) j["failure"] = s.failure;
  (void)write_file(results_ + "/run.json", j.dump(2) + "\n");
}

int Worker::finish(const Status& s, int code) {
  if (!s.ok()) (void)note(Event::failed, s.message, code);
  std::vector<JournalLine> lines;
  if (Status read = Journal::read(folder_, lines); !read.ok()) return 3;
  const TargetState state = state_of(lines, target_);
  if (const Status gone = Release{*driver_, journal_, target_}.until_gone(state); !gone.ok())
    return (void)note(Event::failed, gone.message, 3), 3;
  std::optional<double> usd;
  if (state.acquired && driver_->bill(state.lease, usd).ok() && usd) (void)note(Event::billed, "", *usd);
  write_summary();
  if (plan_.store && writes_rows(plan_) && size_of(results_ + "/rows.jsonl")) {
    std::vector<Record> records;
    Store store;
    size_t added = 0;
    Status kept = read_records(results_ + "/rows.jsonl", records);
    if (kept.ok()) kept = store.open(default_store(), true);
    if (kept.ok()) kept = store.add(records, added);
    if (!kept.ok()) (void)append_to(results_ + "/err", join("attune remote: not stored: ", kept.message, "\n"));
  }
  (void)note(Event::done);
  return s.ok() ? state.exit_code.value_or(0) : code;
}

int Worker::work() {
  if (!opened_.ok()) return 3;
  // Nothing is requested before somebody watches this process.
  for (const double end = now_s() + 5; !is_held(reaper_lock(folder_)) && now_s() < end;) sleep_s(0.02);
  ensure_reaper(plan_);
  Status s = take();
  if (s.ok()) s = set_up();
  bool started = false;
  if (s.ok()) s = start(), started = s.ok();
  if (s.ok()) s = follow();
  if (started) {
    const double patience_s = s.ok() ? kPatience_s : 0;
    if (const Status pulled = persist("pull", patience_s, [&] { return pull(); }); s.ok()) s = pulled;
  }
  if (s.ok() && stopped_) return finish(Status::failure(Code::device, who_, ": ended early: ", told_), stop_code_);
  const bool late = !s.ok() && !stopped_ && stop_at_ > 0 && now_s() >= stop_at_;
  if (late) return finish(s.after(who_, ": ", kLimit, ": "), 4);
  return finish(s, stopped_ ? stop_code_ : s.code == Code::out_of_memory ? 4 : 3);
}

int Worker::rescue() {
  kill_at_ = now_s() + kGrace_s;
  if (!opened_.ok()) return 3;
  std::vector<JournalLine> lines;
  if (const Status s = Journal::read(folder_, lines); !s.ok()) return 3;
  const TargetState state = state_of(lines, target_);
  if (state.done) return 0;
  lease_ = state.lease;
  Life life = Life::pending;
  std::string why;
  // One call may fail for a reason that passes; the rows are worth a few more.
  const auto again = [](const std::function<Status()>& step) {
    Status s = step();
    for (int n = 1; n < 6 && !s.ok() && s.code == Code::device; ++n) sleep_s(0.2 * n), s = step();
  };
  if (state.may_exist() && state.acquired && now_s() < late_at(leg_, state))
    again([&] { return driver_->life(lease_, life, why); });
  if (life == Life::ready && !state.exit_code) {
    bool ended = false;
    again([&] { return stopped_ = false, stop_command("the worker was killed", 3); });
    for (const double end = now_s() + 15; now_s() < end && !ended; sleep_s(0.3)) (void)poll(ended);
  }
  if (life == Life::ready) again([&] { return pull(); });
  if (state.exit_code && state.last >= Event::ended) return finish(Status::good());
  return finish(Status::failure(Code::device, who_, ": the worker was killed; its rows are kept"));
}

// ---- The reaper.
namespace {

// What finishes a target: a machine that does not answer must not keep the others waiting.
struct Rescue {
  std::future<int> code{};
  double next_s = 0;  // not before, where the last one failed
};

// Ends when the target is done or its worker lives after all. A rescue that could not finish is made again.
int rescue(const RemotePlan& plan, int n) {
  RunLock lock;
  if (!lock.take(worker_lock(run_folder(plan.id), n))) return 0;
  lock.note_owner();
  try {
    return Worker(plan, n).rescue();
  } catch (const std::exception&) {
    return 3;
  }
}

// True if this target needs nothing any more.
bool look_after(const RemotePlan& plan, int n, const TargetState& state, Rescue& now) {
  constexpr double kPause_s = 10;
  if (now.code.valid()) {
    if (now.code.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
    if (now.code.get()) now.next_s = now_s() + kPause_s;
    return false;
  }
  const std::string path = worker_lock(run_folder(plan.id), n);
  if (state.done && !state.may_exist()) return true;
  if (is_held(path)) {
    const bool late = state.intent && now_s() > late_at(plan.legs[size_t(n)], state);
    if (const int worker = owner_of(path); late && worker > 0 && worker != ::getpid()) ::kill(worker, SIGKILL);
  } else if (now_s() >= now.next_s) {
    now.code = std::async(std::launch::async, [&plan, n] { return rescue(plan, n); });
  }
  return false;
}

}  // namespace

int watch_over(const RemotePlan& plan) {
  std::vector<Rescue> rescues(plan.legs.size());
  for (;;) {
    std::vector<JournalLine> lines;
    if (const Status s = Journal::read(run_folder(plan.id), lines); !s.ok()) return 3;
    bool all = true;
    for (int n = 0; n < int(plan.legs.size()); ++n)
      all = look_after(plan, n, state_of(lines, n), rescues[size_t(n)]) && all;
    if (all) return 0;
    sleep_s(0.3);
  }
}

void ensure_reaper(const RemotePlan& plan) {
  RunLock lock;
  const std::string folder = run_folder(plan.id);
  if (lock.take(reaper_lock(folder))) (void)detach(lock, folder + "/log", [&plan] { return watch_over(plan); });
}

Status start_worker(const RemotePlan& plan, int target) {
  RunLock lock;
  const std::string folder = run_folder(plan.id);
  if (!lock.take(worker_lock(folder, target))) return Status::failure(Code::internal, folder, ": a worker is there");
  return detach(lock, folder + "/log", [&plan, target] { return Worker(plan, target).work(); });
}

}  // namespace attune
