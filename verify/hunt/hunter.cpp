// SPDX-License-Identifier: Apache-2.0
#include "verify/hunt/hunter.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "machine/host.h"

namespace attune {
namespace {

constexpr size_t kMostShrunk = 12;     // findings that are shrunk
constexpr int kTriesAgain = 3;
constexpr double kShrinkLaunch = 3;    // watchdog seconds while shrinking: drawn cases take milliseconds
constexpr size_t kMostText = 1000;     // characters per line: a write() this short is atomic on a pipe

// A tolerance is three times the error of a naive computation in a few tries. Among thousands of random cases some
// exceed it slightly, which is not a finding: a wrong kernel is off by much more.
constexpr double kSlack = 3;
bool is_wrong(const Outcome& o) {
  return o.verdict == Verdict::fail && !(o.by_rounding && o.used() <= kSlack);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A child process and the lines it writes.
class Child {
 public:
  // Runs work(write_end) in the child. False: no process could be created.
  template <class Work>
  bool start(Work work) {
    int fds[2];
    if (pipe(fds) != 0) return false;
    pid_ = fork();
    if (pid_ == 0) {
      close(fds[0]);
      work(fds[1]);
      _exit(0);  // no destructors: they belong to the parent
    }
    close(fds[1]);
    read_ = fds[0];
    if (pid_ < 0) close(read_);
    return pid_ > 0;
  }
  // Reads the next line; false: none within `seconds`, or the stream ended (`ended`).
  bool line(std::string& to, double seconds) {
    const double until = now() + seconds;
    for (;;) {
      if (const size_t at = text_.find('\n'); at != std::string::npos) {
        to = text_.substr(0, at), text_.erase(0, at + 1);
        return true;
      }
      pollfd one{read_, POLLIN, 0};
      const int wait_ms = int(std::clamp((until - now()) * 1000, 0., 1e6));
      const int ready = poll(&one, 1, wait_ms);
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) return false;
      char piece[4096];
      const ssize_t got = read(read_, piece, sizeof piece);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return ended = true, false;
      text_.append(piece, size_t(got));
    }
  }
  // Its exit status as a sentence; "" if it ended normally.
  std::string stop() {
    if (!ended) kill(pid_, SIGKILL);
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}
    close(read_);
    if (WIFSIGNALED(status)) return join("the process was killed by signal ", WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status)) return join("the process exited with status ", WEXITSTATUS(status));
    return "";
  }
  bool ended = false;

 private:
  pid_t pid_ = -1;
  int read_ = -1;
  std::string text_;
};

void say(int to, const std::string& text) {
  std::string line = text.substr(0, kMostText);
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  for (ssize_t n; (n = write(to, line.data(), line.size())) < 0 && errno == EINTR;) {}
}

bool serves(const Backend& b, const Problem& p, const Device& d) {
  Plan plan;
  return plan_on(b, p, d, plan).ok();
}

// On a CPU only the reference's time limits the size, and small problems are enough: its tiles are small.
HuntLimits limits_of(const Device& d, const Hunt& asked) {
  HuntLimits limits{.kinds = asked.kinds};
  limits.units = d.kind == DeviceKind::cuda ? d.units : 16;
  if (d.kind == DeviceKind::cpu) limits.work /= 5;
  return limits;
}

// The child draws the cases, because only it opens the device. The parent reads each case as a line.
struct Worker {
  const Hunt& asked;
  const std::set<uint64_t>& over;  // cases that need not run
  const uint64_t first;
  const int to;
  const double began;              // start of the hunt: a new process does not reset the clock
  Device device{};
  std::atomic<uint64_t> next{0};
  std::mutex alone{};

  // False: nothing more can run in this process.
  bool run_case(uint64_t index) {
    const auto served = [&](const Problem& p) {
      return std::any_of(asked.backends.begin(), asked.backends.end(),
                         [&](const Backend* b) { return serves(*b, p, device); });
    };
    const Case c = hunted_case(asked.seed, index, limits_of(device, asked), served);
    Trial trial(c);
    if (const Status s = trial.prepare(); !s.ok()) {
      say(to, join("fail ", index, " 0 ", int(Ending::refused), " ", name(c), "\t", s.message));
      say(to, join("done ", index));
      return true;
    }
    if (!trial.compares()) {
      say(to, join("empty ", index));
      return true;
    }
    for (size_t n = 0; n < asked.backends.size(); ++n) {
      const Backend& b = *asked.backends[n];
      if (!serves(b, c.problem, device)) continue;
      trial.watch = [&, n](bool running) {
        say(to, running ? join("run ", index, " ", n, " ", name(c)) : join("ran ", index));
      };
      // CPU backends share the library's threads and run one at a time; GPU launches may overlap.
      const bool on_gpu = device.kind == DeviceKind::cuda;
      const Outcome o = trial.run(b, device, on_gpu ? nullptr : &alone);
      if (!o.unfit.empty()) continue;
      if (!is_wrong(o)) {
        say(to, join("pass ", index, " ", n, " ", o.verdict == Verdict::fail ? o.used() : 0.));
        continue;
      }
      // After a CUDA error every later call of the process fails too, in all threads. The parent runs each suspect
      // alone to find the one that caused it.
      const bool suspect = on_gpu && o.figures.empty();
      say(to, join(suspect ? "suspect " : "fail ", index, " ", n, " ", int(Ending::wrong), " ", name(c), "\t", o.why));
      if (suspect) return false;
    }
    say(to, join("done ", index));
    return true;
  }

  void run() {
    if (const Status s = device_named(asked.device, device); !s.ok()) return say(to, "device " + s.message);
    if (device.index < 0)
      return say(to, join("device device '", asked.device, "' is not present; it can only be planned for"));
    say(to, "name " + device.name);
    next = first;
    const auto work = [&] {
      for (uint64_t n; (n = next++) < asked.cases;) {
        if (over.contains(n)) continue;
        if (asked.max_seconds > 0 && now() - began > asked.max_seconds) break;
        if (!run_case(n)) {
          say(to, "again");
          _exit(0);
        }
      }
    };
    std::vector<std::thread> helpers;
    const int wanted = asked.threads ? asked.threads : int(std::thread::hardware_concurrency());
    for (int n = 1; n < wanted; ++n) helpers.emplace_back(work);
    work();
    for (std::thread& t : helpers) t.join();
    say(to, "end");
  }
};

// The parent's side: runs one child after another until every case is done.
struct Parent {
  const Hunt& asked;
  Hunted result{};
  std::set<uint64_t> over{};
  double began = now();

  struct Launch { size_t backend = 0; std::string line, why; double since = 0; };
  std::map<uint64_t, Launch> open{};      // launches in flight, by case
  std::map<uint64_t, Launch> suspects{};  // launches that ended in an error another may have caused

  void found(uint64_t index, size_t backend, Ending ending, const std::string& line, std::string why) {
    HuntFinding f{.index = index, .backend = asked.backends[backend], .ending = ending, .why = std::move(why)};
    if (const Status s = parse(line, f.drawn); !s.ok()) f.why += join(" (", s.message, ")");
    f.smallest = f.drawn;
    if (asked.on_finding) asked.on_finding(f);
    result.findings.push_back(std::move(f));
  }
  void finish(uint64_t index) {
    if (over.insert(index).second) ++result.cases;
    if (asked.progress) asked.progress(result.cases, result.findings.size());
  }

  // Handles one line of the child. False: it is the last.
  bool heard(const std::string& text) {
    std::istringstream in(text);
    std::string word;
    uint64_t index = 0;
    size_t backend = 0;
    in >> word;
    const auto rest = [&] {
      std::string all;
      std::getline(in >> std::ws, all);
      return all;
    };
    if (word == "device") {
      result.status = Status::no(rest()), result.device_is_wrong = true;
      return false;
    }
    if (word == "name") result.device_name = rest();
    if (word == "end" || word == "again") return false;
    in >> index;
    if (word == "run") {
      in >> backend;
      open[index] = {backend, rest(), "", now()};
    }
    if (word == "ran") open.erase(index);
    if (word == "pass") {
      double over = 0;
      in >> backend >> over, ++result.runs[backend];
      result.over += over > 0, result.most_over = std::max(result.most_over, over);
    }
    if (word == "empty") ++result.empty, finish(index);
    if (word == "done") finish(index);
    if (word == "fail" || word == "suspect") {
      int ending = 0;
      in >> backend >> ending;
      const std::string all = rest(), line = all.substr(0, all.find('\t')), why = all.substr(all.find('\t') + 1);
      if (word == "suspect") suspects[index] = {backend, line, why, now()};
      else ++result.runs[backend], found(index, backend, Ending(ending), line, why);
    }
    return true;
  }

  // Runs launches that were in flight when the process died, or that ended in an error, each in its own process. Those
  // that fail there are findings. If none does, the first to start is the finding, which may not be reproducible.
  void try_alone(std::map<uint64_t, Launch> all, Ending seen, const std::string& why) {
    const size_t before = result.findings.size();
    for (const auto& [index, launch] : all) {
      Case c;
      std::string alone;
      if (!parse(launch.line, c).ok()) continue;
      const Ending e = attempt(asked, *asked.backends[launch.backend], c, alone);
      if (e == Ending::pass || e == Ending::refused) continue;
      ++result.runs[launch.backend];
      found(index, launch.backend, e, launch.line, alone);
      finish(index);
    }
    if (result.findings.size() > before || all.empty()) return;
    const auto first = std::min_element(all.begin(), all.end(),
                                        [](const auto& a, const auto& b) { return a.second.since < b.second.since; });
    const Launch& launch = first->second;
    ++result.runs[launch.backend];
    found(first->first, launch.backend, seen, launch.line, launch.why.empty() ? why : launch.why);
    finish(first->first);
  }

  // True: nothing is left to do.
  bool run_child(uint64_t first) {
    open.clear(), suspects.clear();
    Child child;
    if (!child.start([&](int to) { Worker{asked, over, first, to, began}.run(); })) {
      result.status = Status::failure(Code::device, "hunt: a process could not be started: ", std::strerror(errno));
      return true;
    }
    for (std::string text;;) {
      double until = now() + 60;
      for (const auto& [index, launch] : open) until = std::min(until, launch.since + asked.launch_seconds);
      if (child.line(text, std::max(0., until - now()))) {
        if (heard(text)) continue;
        child.stop();
        if (text == "again") try_alone(suspects, Ending::wrong, "");
        return text != "again";
      }
      const auto late = [&](const auto& one) { return now() >= one.second.since + asked.launch_seconds; };
      if (!child.ended && std::none_of(open.begin(), open.end(), late)) continue;  // golden results take time
      const bool hangs = !child.ended;
      const std::string end = child.stop();
      const std::string why = hangs ? join("a run did not finish within ", asked.launch_seconds, " s") : end;
      if (open.empty()) {
        result.status = Status::failure(Code::device, "hunt: the worker process ended: ", why);
        return true;
      }
      try_alone(open, hangs ? Ending::hang : Ending::crash, why);
      return false;
    }
  }

  void run() {
    result.runs.assign(asked.backends.size(), 0);
    for (uint64_t first = 0;; ) {
      while (over.contains(first)) ++first;
      if (first >= asked.cases || run_child(first)) break;
      if (asked.max_seconds > 0 && now() - began > asked.max_seconds) break;
    }
    result.seconds = now() - began;
  }
};

// Finds a smaller case with the same ending: tries candidates until none fails or `latest` is reached.
void shrink(const Hunt& asked, HuntFinding& f, double latest) {
  Hunt quick = asked;
  quick.launch_seconds = std::min(asked.launch_seconds, kShrinkLaunch);
  const double until = std::min(now() + asked.shrink_seconds, latest);
  std::string why;
  for (; f.tries < kTriesAgain && now() < until; ++f.tries)
    f.again += attempt(quick, *f.backend, f.drawn, why) == f.ending;
  if (!f.again) return;  // not reproducible every time: keep the drawn case
  bool smaller = true;
  for (int step = 0; smaller && step < asked.shrink_steps; ++step) {
    smaller = false;
    for (const Case& c : smaller_cases(f.smallest)) {
      if (now() > until) return;
      if (attempt(quick, *f.backend, c, why) != f.ending) continue;
      f.smallest = c, smaller = true;
      if (!why.empty()) f.why = why;
      break;
    }
  }
}

}  // namespace

std::string name(Ending e) {
  switch (e) {
    case Ending::pass: return "PASS";
    case Ending::wrong: return "WRONG";
    case Ending::hang: return "HANG";
    case Ending::crash: return "CRASH";
    default: return "REFUSED";
  }
}

Ending attempt(const Hunt& asked, const Backend& b, const Case& c, std::string& why) {
  why.clear();
  Child child;
  const auto work = [&](int to) {
    Device d;
    if (!device_named(asked.device, d).ok() || !serves(b, c.problem, d)) return say(to, "refused");
    Trial trial(c);
    if (!trial.prepare().ok()) return say(to, "refused");
    trial.watch = [to](bool running) { say(to, running ? "run" : "ran"); };
    const Outcome o = trial.run(b, d);
    say(to, !o.unfit.empty() ? "refused" : is_wrong(o) ? "wrong " + o.why : "pass");
  };
  if (!child.start(work)) return Ending::refused;
  bool running = false;
  for (std::string text;;) {
    const bool heard = child.line(text, running ? asked.launch_seconds : 60);
    if (!heard) {
      const bool hangs = !child.ended;
      const std::string end = child.stop();
      why = hangs ? join("a run did not finish within ", asked.launch_seconds, " s") : end;
      return !running ? Ending::refused : hangs ? Ending::hang : Ending::crash;
    }
    if (text == "run" || text == "ran") {
      running = text == "run";
      continue;
    }
    child.stop();
    if (text.starts_with("wrong ")) why = text.substr(6);
    return text == "pass" ? Ending::pass : text == "refused" ? Ending::refused : Ending::wrong;
  }
}

Hunted hunt(const Hunt& asked) {
  Parent parent{.asked = asked};
  parent.run();
  size_t shrunk = 0;
  const double latest = asked.max_seconds > 0 ? now() + asked.shrink_seconds : std::numeric_limits<double>::infinity();
  for (HuntFinding& f : parent.result.findings)
    if (shrunk++ < kMostShrunk) shrink(asked, f, latest);
  return std::move(parent.result);
}

}  // namespace attune
