// SPDX-License-Identifier: Apache-2.0
#include "tool/tune/watch.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "machine/files.h"
#include "machine/host.h"
#include "tool/tune/curves.h"

namespace attune {
namespace {

volatile sig_atomic_t stopped = 0;
void stop(int) { stopped = 1; }

struct Signals {  // the destructor restores the previous handlers
  struct sigaction interrupt {}, terminate {};
  Signals() {
    struct sigaction ours {};
    ours.sa_handler = stop;
    stopped = 0;
    sigaction(SIGINT, &ours, &interrupt), sigaction(SIGTERM, &ours, &terminate);
  }
  ~Signals() { sigaction(SIGINT, &interrupt, nullptr), sigaction(SIGTERM, &terminate, nullptr); }
};

// The name of a device for `bench`: "cpu", "cuda:1"; "" if it is not in this machine.
std::string word_of(const std::string& device) {
  if (this_cpu().name == device) return "cpu";
  for (int n = 0; n < 64; ++n) {
    Device d;
    const std::string word = join("cuda:", n);
    if (!device_named(word, d).ok()) break;
    if (d.name == device) return word;
  }
  return "";
}

// Runs this program again on one problem. Its output goes to stderr, because stdout belongs to the caller.
Status bench(const LoggedCall& call, const std::string& device, const std::string& records) {
  const std::string words[] = {"attune", "bench", call.problem, "--backend", "all", "--device", device, "--out",
                               records, "--max-seconds", "1"};
  const pid_t child = fork();
  if (child < 0) return Status::no("cannot start a process for a measurement: ", std::strerror(errno));
  if (child == 0) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    std::vector<char*> argv;
    for (const std::string& w : words) argv.push_back(const_cast<char*>(w.c_str()));
    argv.push_back(nullptr);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) return Status::no("/proc/self/exe cannot be started");
  return Status::good();  // a problem that could not be measured has a record with the reason
}

// Pairs of device and problem: records of a CPU do not count for a GPU.
using Seen = std::set<std::pair<std::string, std::string>>;
Seen measured_in(const std::string& path) {
  Seen all;
  std::vector<Record> records;
  if (std::ifstream(path).good() && read_records(path, records).ok())
    for (const Record& r : records)
      if (r.status != RecordStatus::interrupted) all.emplace(machine_of(r), r.problem);
  return all;
}

}  // namespace

bool read_call(std::string_view line, LoggedCall& out) {
  constexpr std::string_view kFirst = "attune: ";
  if (!line.starts_with(kFirst)) return false;
  const size_t arrow = line.find(" -> "), on = line.find(" on ", arrow), end = line.find(": ", on);
  if (arrow == line.npos || on == line.npos || end == line.npos) return false;
  out.problem = line.substr(kFirst.size(), arrow - kFirst.size());
  out.device = line.substr(on + 4, end - on - 4);
  Problem p;
  return parse(out.problem, p).ok();
}

Status watch(const Watched& w, const std::function<void()>& tune) {
  const Signals signals;
  if (Status s = is_finite(w.log, true); !s.ok()) return s.after("--watch: ", w.log, " ");
  std::ifstream log(w.log);
  const int why = errno;
  if (!log) return Status::no("--watch: ", w.log, " cannot be read: ", std::strerror(why));
  Seen seen = measured_in(w.records);
  std::string line;
  bool any = !seen.empty();
  while (!stopped) {
    bool news = false;
    // A line without a newline is still being written, so it is read again later.
    for (std::streampos at = log.tellg(); !stopped && std::getline(log, line); at = log.tellg()) {
      if (log.eof() && !w.once) {
        log.clear(), log.seekg(at);
        break;
      }
      LoggedCall call;
      Problem p;
      RuleKey key;
      if (!read_call(line, call) || !parse(call.problem, p).ok() || !key_of(p, {1}, key).ok()) continue;
      const std::string device = word_of(call.device);
      if (device.empty() || !seen.emplace(call.device, call.problem).second) continue;
      if (const Status s = bench(call, device, w.records); !s.ok()) return s;
      news = true;
    }
    if (news || (any && w.once)) tune();
    any = any || news;
    if (w.once) return any ? Status::good() : Status::no("--watch: ", w.log, " has no problem that rules can cover");
    log.clear();
    for (int tenth = 0; tenth < 10 && !stopped; ++tenth) usleep(100'000);
  }
  return Status::good();
}

}  // namespace attune
