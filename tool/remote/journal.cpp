// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/journal.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>

#include <fmt/format.h>

#include "tool/files.h"
#include "tool/json_value.h"

namespace attune {
namespace {

constexpr std::string_view kEvents[] = {"planned", "intent", "acquired", "ready", "pushed", "started", "row",
                                        "stopping", "ended", "pulled", "releasing", "release_failed", "released",
                                        "verified_gone", "billed", "failed", "done"};
static_assert(std::size(kEvents) == size_t(Event::done) + 1);

std::string line_text(const JournalLine& line) {
  Json j{{"time", line.time}, {"target", line.target}, {"event", name(line.event)}};
  if (!line.text.empty()) j["text"] = line.text;
  if (!line.id.empty()) j["id"] = line.id;
  if (!line.where.empty()) j["where"] = line.where;
  if (line.value != 0) j["value"] = line.value;
  return j.dump() + "\n";
}

bool read_line(std::string_view text, JournalLine& out) {
  JsonValue j;
  if (!JsonValue::parse(text, j).ok()) return false;
  const auto event = std::find(std::begin(kEvents), std::end(kEvents), j["event"].text());
  if (event == std::end(kEvents)) return false;
  out = {.time = j["time"].number().value_or(0), .target = int(j["target"].number().value_or(0)),
         .event = Event(event - std::begin(kEvents)), .text = j["text"].text(), .id = j["id"].text(),
         .where = j["where"].text(), .value = j["value"].number().value_or(0)};
  return true;
}

std::string folder_of(const char* variable, const char* below_home) {
  const char* const given = std::getenv(variable);
  if (given && *given == '/') return given;
  const char* const home = std::getenv("HOME");
  return home && *home ? std::string(home) + below_home : "";
}

}  // namespace

std::string_view name(Event e) { return kEvents[size_t(e)]; }

std::string runs_folder() {
  const std::string state = folder_of("XDG_STATE_HOME", "/.local/state");
  return state.empty() ? "" : state + "/attune/remote";
}
std::string run_folder(std::string_view id) { return join(runs_folder(), "/", id); }

std::string new_run_id() {
  const time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  unsigned char random[3] = {};
  if (::getrandom(random, sizeof random, 0) != ssize_t(sizeof random))
    random[0] = static_cast<unsigned char>(::getpid());
  return fmt::format("{:04}{:02}{:02}-{:02}{:02}{:02}-{:02x}{:02x}{:02x}", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, random[0], random[1], random[2]);
}

Journal::~Journal() {
  if (file_ >= 0) ::close(file_);
}

Status Journal::open(const std::string& folder) {
  path_ = folder + "/journal.jsonl";
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file_ < 0) return Status::failure(Code::device, path_, ": cannot be written: ", std::strerror(errno));
  char last = '\n';  // a killed writer may have left half a line
  struct stat about{};
  torn_ = ::fstat(file_, &about) == 0 && about.st_size > 0 && ::pread(file_, &last, 1, about.st_size - 1) == 1 &&
          last != '\n';
  return Status::good();
}

Status Journal::add(const JournalLine& given) {
  JournalLine line = given;
  if (line.time == 0) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    line.time = double(now.tv_sec) + double(now.tv_nsec / 1'000'000) * 1e-3;
  }
  const std::string text = (torn_ ? "\n" : "") + line_text(line);  // one write: lines of several processes do not mix
  const ssize_t written = ::write(file_, text.data(), text.size());
  if (written > 0) torn_ = written != ssize_t(text.size());
  if (written != ssize_t(text.size()) || ::fsync(file_) != 0)
    return Status::failure(Code::device, path_, ": cannot be written: ", std::strerror(errno));
  return Status::good();
}

Status Journal::read(const std::string& folder, std::vector<JournalLine>& out) {
  out.clear();
  std::string text;
  if (Status s = read_whole(folder + "/journal.jsonl", text); !s.ok()) return s;
  for (size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1) {
    JournalLine line;
    if (read_line(std::string_view(text).substr(at, end - at), line)) out.push_back(std::move(line));
  }
  return Status::good();
}

TargetState state_of(const std::vector<JournalLine>& lines, int target) {
  TargetState s;
  for (const JournalLine& l : lines) {
    if (l.target != target) continue;
    s.last = l.event;
    switch (l.event) {
      case Event::planned: s.planned_at = l.time; break;
      case Event::intent: s.intent = true, s.gone = false, s.lease.name = l.text, s.intent_at = l.time; break;
      case Event::acquired:
        s.acquired = true, s.acquired_at = l.time;
        s.lease.id = l.id, s.lease.where = l.where, s.lease.usd_an_hour = l.value;
        break;
      case Event::ready: s.ready_at = l.time; break;
      case Event::started: s.started = true, s.started_at = l.time; break;
      case Event::row: s.rows = int(l.value); break;
      case Event::ended: s.exit_code = int(l.value), s.ended_at = l.time; break;
      case Event::verified_gone: s.gone = true, s.gone_at = l.time; break;
      case Event::billed: s.billed = l.value; break;
      case Event::failed:
        if (s.failure.empty()) s.failure = l.text, s.failure_code = int(l.value);
        break;
      case Event::done: s.done = true; break;
      default: break;
    }
  }
  return s;
}

}  // namespace attune
