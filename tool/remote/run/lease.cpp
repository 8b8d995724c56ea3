// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/run/lease.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <ctime>
#include <exception>
#include <optional>
#include <vector>

#include "tool/files.h"

namespace attune {

RunLock::~RunLock() {
  if (file_ >= 0) ::close(file_);
}

namespace {

// A lock of the open file: children share it, and it goes with the last of them. Asking about it does not take it.
bool lock_call(int file, int command, struct flock& lock) {
  lock = {};
  lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET;
  return ::fcntl(file, command, &lock) == 0;
}

}  // namespace

bool RunLock::take(const std::string& path) {
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (struct flock lock{}; file_ >= 0 && lock_call(file_, F_OFD_SETLK, lock)) return true;
  if (file_ >= 0) ::close(file_);
  file_ = -1;
  return false;
}

void RunLock::note_owner() const {
  const std::string text = join(::getpid(), "\n");
  if (::ftruncate(file_, 0) != 0 || ::pwrite(file_, text.data(), text.size(), 0) < 0) return;  // it only informs
}

std::string worker_lock(const std::string& folder, int target) { return join(folder, "/worker-", target, ".lock"); }
std::string reaper_lock(const std::string& folder) { return folder + "/reaper.lock"; }

bool is_held(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return false;
  struct flock lock{};
  const bool held = lock_call(file, F_OFD_GETLK, lock) && lock.l_type != F_UNLCK;
  ::close(file);
  return held;
}

int owner_of(const std::string& path) {
  std::string text;
  int id = 0;
  if (is_held(path) && read_file(path, text).ok()) std::from_chars(text.data(), text.data() + text.size(), id);
  return id;
}

Status detach(RunLock& lock, const std::string& log, const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child < 0) return Status::failure(Code::device, "a process cannot be started: ", std::strerror(errno));
  if (child > 0) {
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return Status::good();
  }
  ::setsid();
  if (::fork() != 0) ::_exit(0);  // the second child has no parent here and no terminal
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int said = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  ::dup2(nothing, 0), ::dup2(nothing, 1), ::dup2(said >= 0 ? said : nothing, 2);
  for (int file = 3; file < 256; ++file)  // pipes and locks of the caller would stay open
    if (file != lock.file_) ::close(file);
  for (const int signal : {SIGINT, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(signal, SIG_IGN);
  ::signal(SIGTERM, SIG_DFL);
  if (::chdir("/") != 0) ::_exit(1);
  int code = 1;
  lock.note_owner();
  try {
    code = body();
  } catch (const std::exception& error) {
    const std::string text = join("attune remote: ", error.what(), "\n");
    if (::write(2, text.data(), text.size()) < 0) code = 1;
  }
  ::_exit(code);
}

void Backoff::wait() {
  sleep_s(next_s_);
  next_s_ = std::min(next_s_ * 2, most_s_);
}

double now_s() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

void sleep_s(double seconds) {
  timespec rest{time_t(seconds), long((seconds - double(time_t(seconds))) * 1e9)};
  ::nanosleep(&rest, nullptr);
}

namespace {

// The lease of this name, if one is listed.
Status find_named(Driver& driver, const std::string& name, std::optional<Lease>& out) {
  std::vector<Lease> all;
  Status s = driver.find(name, all);
  const auto it = std::find_if(all.begin(), all.end(), [&](const Lease& l) { return l.name == name; });
  out = s.ok() && it != all.end() ? std::optional(*it) : std::nullopt;
  return s;
}

// When a lease is listed that may be there. A request without a reply may still be on its way, and SkyPilot accepts a
// launch before it lists the cluster.
double listed_from(Driver& driver, const TargetState& state) {
  std::optional<Lease> there;
  if (!state.acquired) return now_s() + driver.settle_s();
  if (state.ready_at > 0 || (find_named(driver, state.lease.name, there).ok() && there)) return 0;
  return state.acquired_at + driver.settle_s();
}

// One attempt. `gone` is set only where nothing of this name is left.
Status try_release(Driver& driver, Lease lease, bool& gone) {
  gone = false;
  if (lease.id.empty()) {
    std::optional<Lease> there;
    if (Status s = find_named(driver, lease.name, there); !s.ok()) return s;
    if (!there) return gone = true, Status::good();
    lease.id = there->id, lease.where = there->where;
  }
  if (Status s = driver.release(lease); !s.ok()) return s;
  Life life = Life::pending;
  std::string why;
  if (Status s = driver.life(lease, life, why); !s.ok()) return s;
  gone = life == Life::gone;
  return Status::good();
}

}  // namespace

Status Release::until_gone(const TargetState& state) const {
  if (!state.may_exist()) return Status::good();
  // A full disk must not keep what is paid for: only the last line has to be written.
  (void)journal.add({.target = target, .event = Event::releasing});
  const double end = now_s() + patience_s, listed = listed_from(driver, state);
  Backoff backoff(60);
  std::string said;
  for (;;) {
    bool gone = false;
    const Status s = try_release(driver, state.lease, gone);
    if (gone && now_s() < listed) {
      sleep_s(0.5);
      continue;
    }
    if (gone) {
      (void)journal.add({.target = target, .event = Event::released});
      return journal.add({.target = target, .event = Event::verified_gone, .text = state.lease.name});
    }
    const std::string now = s.ok() ? "it is still there" : s.message;
    if (now != said) (void)journal.add({.target = target, .event = Event::release_failed, .text = now});
    said = now;
    if (now_s() > end)
      return Status::failure(Code::device, state.lease.name, " could not be released: ", said, "; attune remote reap "
                             "tries again");
    backoff.wait();
  }
}

}  // namespace attune
