// SPDX-License-Identifier: Apache-2.0
#include "tool/subjects/peer_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>

namespace attune {
namespace {

constexpr const char* kVariable = "ATTUNE_PEER_PROCESS";  // "<pid that waits> <notes> <records>", two descriptors
constexpr int kMostPeers = 64, kMostExits = 256;
constexpr int kMostExitsOfPeer = 3;                       // then it is not started again

struct Text {
  char bytes[240];
  void set(std::string_view text) { bytes[text.copy(bytes, sizeof bytes - 1)] = 0; }
};
struct Exit {
  int row, peer;  // -1: before the first row
  Text how;
};
// Shared memory, zero at first.
struct Notes {
  Text peers[kMostPeers];
  int peer_count, exit_count;
  Exit exits[kMostExits];
  int row;                        // counted from 1; 0: none has begun
  volatile int running;           // number of a peer, counted from 1; 0: none
  volatile sig_atomic_t interrupted;
  int finished;
  size_t printed;
};

Notes* shared(int file) {
  void* const at = mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return at == MAP_FAILED ? nullptr : static_cast<Notes*>(at);
}

struct Here {
  Notes* notes = nullptr;
  int records = -1;
  Here() {
    const char* const text = getenv(kVariable);
    int parent = 0, file = -1, second = -1;
    struct stat about{};
    // A program that a peer starts inherits the variable, but its parent is another.
    if (!text || std::sscanf(text, "%d %d %d", &parent, &file, &second) != 3 || parent != getppid()) return;
    if (fstat(file, &about) || about.st_size != off_t(sizeof(Notes))) return;
    notes = shared(file), records = second;
    fcntl(file, F_SETFD, FD_CLOEXEC), fcntl(second, F_SETFD, FD_CLOEXEC);
    unsetenv(kVariable);
  }
};
Here& here() {
  static Here it;
  return it;
}

std::string_view short_name(std::string_view word) { return word.substr(word.rfind('/') + 1); }

int index_of(const Notes& n, std::string_view name) {
  for (int k = 0; k < n.peer_count; ++k)
    if (short_name(n.peers[k].bytes) == short_name(name)) return k;
  return -1;
}

int exits_of(const Notes& n, int peer) {
  return int(std::count_if(n.exits, n.exits + n.exit_count, [&](const Exit& e) { return e.peer == peer; }));
}

bool is_given_up(const Notes& n, int peer) {
  const auto before_rows = [&](const Exit& e) { return e.peer == peer && e.row < 0; };
  return exits_of(n, peer) >= kMostExitsOfPeer || std::any_of(n.exits, n.exits + n.exit_count, before_rows);
}

std::string how(int status) {
  if (WIFEXITED(status)) return fmt::format("with exit code {}", WEXITSTATUS(status));
  const struct { int number; const char* name; } known[] = {
      {SIGABRT, "SIGABRT"}, {SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
      {SIGILL, "SIGILL"},   {SIGTRAP, "SIGTRAP"}, {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"},
      {SIGKILL, "SIGKILL, which the system sends when memory runs out"}};
  const int signal = WTERMSIG(status);
  for (const auto& k : known)
    if (k.number == signal) return fmt::format("with {}", k.name);
  return fmt::format("with signal {}", signal);
}

// Blocks the signals that this process waits for, and restores what was.
struct Blocked {
  sigset_t set{}, before{};
  Blocked() {
    std::signal(SIGCHLD, SIG_DFL);  // a caller that ignores it would hide the end
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, s);
    pthread_sigmask(SIG_BLOCK, &set, &before);
  }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;
  ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
};

// Waits for the end of the process. A signal to this process alone goes on to the other; a terminal and `timeout` send
// theirs to both. Returns the wait status, and in `signal` the signal that asked for the end.
int wait_for(pid_t child, const Notes& notes, const Blocked& blocked, int& signal) {
  constexpr timespec kSoon{0, 100'000'000}, kNow{0, 0};
  for (int status = 0;;) {
    if (waitpid(child, &status, WNOHANG) == child) return status;
    const int got = sigwaitinfo(&blocked.set, nullptr);
    if (got <= 0 || got == SIGCHLD) continue;
    if (!signal) nanosleep(&kSoon, nullptr);
    while (!signal && sigtimedwait(&blocked.set, nullptr, &kNow) > 0) {}  // the same one, sent twice
    if (signal || !notes.interrupted) kill(child, got);
    signal = got;
  }
}

struct Descriptors {
  int notes = memfd_create("attune notes", 0), records = memfd_create("attune records", 0);
  Descriptors() = default;
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors() {
    if (notes >= 0) ::close(notes);
    if (records >= 0) ::close(records);
  }
};

[[noreturn]] void become(const PeerProcess& process, const Notes& n, const Descriptors& files, pid_t parent,
                         const Blocked& blocked) {
  pthread_sigmask(SIG_SETMASK, &blocked.before, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv(kVariable, fmt::format("{} {} {}", parent, files.notes, files.records).c_str(), 1);
  std::vector<std::string> left;
  for (const std::string& name : process.names)
    if (!is_given_up(n, index_of(n, name))) left.push_back(name);
  const Status s = process.start(left);
  fmt::print(stderr, "attune bench: {}\n", s.message);
  _exit(3);
}

}  // namespace

Status await(const PeerProcess& process, int& code) {
  const Descriptors files;
  if (files.notes < 0 || files.records < 0 || ftruncate(files.notes, sizeof(Notes)) != 0)
    return Status::no("--peer: no memory to share with the process of the peers: ", std::strerror(errno));
  Notes* const notes = shared(files.notes);
  if (!notes) return Status::no("--peer: no memory to share with the process of the peers: ", std::strerror(errno));
  for (const std::string& name : process.names)
    if (notes->peer_count < kMostPeers) notes->peers[notes->peer_count++].set(name);
  const Blocked blocked;
  for (;;) {
    std::fflush(nullptr);
    notes->row = 0, notes->finished = 0;
    notes->running = 0;
    const pid_t self = getpid(), child = fork();
    if (child < 0) return Status::no("--peer: no process can be started: ", std::strerror(errno));
    if (child == 0) become(process, *notes, files, self, blocked);
    int signal = 0;
    const int status = wait_for(child, *notes, blocked, signal);
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    const int peer = notes->running - 1;
    const bool started = notes->row > 0 || peer >= 0;
    if (notes->finished || signal || notes->interrupted || (!started && WIFEXITED(status))) return Status::good();
    if (peer < 0 || notes->exit_count == kMostExits)
      return Status::no("the process of the peers ended ", how(status), " while none of them ran");
    Exit& e = notes->exits[notes->exit_count++];
    e.row = notes->row > 0 ? notes->row : -1, e.peer = peer;
    e.how.set(how(status));
  }
}

bool is_peer_process() { return here().notes; }
bool is_started_again() { return here().notes && here().notes->exit_count > 0; }
std::string session_path() { return fmt::format("/proc/self/fd/{}", here().records); }
size_t& printed_records() {
  static size_t alone = 0;
  return here().notes ? here().notes->printed : alone;
}
void note_row(int row) {
  if (here().notes) here().notes->row = row + 1;
}
void note_interrupt() noexcept {
  if (here().notes) here().notes->interrupted = 1;
}

std::string how_it_ended(std::string_view peer) {
  const Notes* const n = here().notes;
  const int which = n ? index_of(*n, peer) : -1;
  if (which < 0) return "";
  const Exit* last = nullptr;
  for (const Exit* e = n->exits; e != n->exits + n->exit_count; ++e) {
    if (e->peer != which) continue;
    last = e;
    if (e->row == n->row) return fmt::format("it ended its process {}", e->how.bytes);
  }
  if (!last || !is_given_up(*n, which)) return "";
  if (last->row < 0) return fmt::format("it ended its process {} while it was loaded", last->how.bytes);
  return fmt::format("not run again: it ended its process {} times, at last {}", exits_of(*n, which), last->how.bytes);
}

bool is_given_up(std::string_view peer) {
  const Notes* const n = here().notes;
  const int which = n ? index_of(*n, peer) : -1;
  return which >= 0 && is_given_up(*n, which);
}

RunGuard::~RunGuard() {
  if (here().notes) here().notes->finished = 1;
}

AnswerKept::AnswerKept() {
  std::fflush(stdout);
  answer_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (answer_ >= 0) dup2(STDERR_FILENO, STDOUT_FILENO);
}
AnswerKept::~AnswerKept() {
  if (answer_ < 0) return;
  std::fflush(stdout);  // what a peer printed in C
  dup2(answer_, STDOUT_FILENO), ::close(answer_);
}

int number_of_peer(std::string_view name) { return here().notes ? index_of(*here().notes, name) + 1 : 0; }
PeerCall::PeerCall(int number) {
  if (here().notes) here().notes->running = number;
}
PeerCall::~PeerCall() {
  if (here().notes) here().notes->running = 0;
}

}  // namespace attune
