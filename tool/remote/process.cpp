// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "tool/text.h"

extern char** environ;

namespace attune {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  int ends[2] = {-1, -1};
  bool open() { return ::pipe2(ends, O_CLOEXEC) == 0; }
  void close(int n) {
    if (ends[n] >= 0) ::close(ends[n]);
    ends[n] = -1;
  }
  ~Pipe() { close(0), close(1); }
};

struct Words {
  std::vector<char*> all{};
  explicit Words(const std::vector<std::string>& words) {
    for (const std::string& w : words) all.push_back(const_cast<char*>(w.c_str()));
    all.push_back(nullptr);
  }
};

std::vector<std::string> environment_with(const std::vector<std::string>& more) {
  std::vector<std::string> all;
  for (char** e = environ; *e; ++e) {
    const std::string_view old = *e;
    const auto same = [&](const std::string& m) { return old.starts_with(m.substr(0, m.find('=') + 1)); };
    if (std::none_of(more.begin(), more.end(), same)) all.emplace_back(old);
  }
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// In the child: only functions that are safe after fork.
[[noreturn]] void become(const char* path, char* const* words, char* const* environment, int in, int out, int err,
                         pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_DFL);
  ::dup2(in, 0), ::dup2(out, 1), ::dup2(err, 2);
  ::execve(path, words, environment);
  ::_exit(127);
}

std::string path_of(const std::string& program) {
  if (program.find('/') != program.npos) return ::access(program.c_str(), X_OK) == 0 ? program : "";
  const char* const given = std::getenv("PATH");
  std::string all = given ? given : "/usr/bin:/bin";
  all += ":/usr/sbin:/sbin";
  for (size_t at = 0; at <= all.size();) {
    const size_t end = std::min(all.find(':', at), all.size());
    const std::string folder = all.substr(at, end - at), path = folder + "/" + program;
    if (folder.starts_with('/') && ::access(path.c_str(), X_OK) == 0) return path;
    at = end + 1;
  }
  return "";
}

// One end of the child's output; the text beyond the limit is read and dropped.
void take(Pipe& pipe, std::string& to, size_t most) {
  char buffer[65536];
  const ssize_t n = ::read(pipe.ends[0], buffer, sizeof buffer);
  if (n > 0) to.append(buffer, std::min(size_t(n), most - std::min(most, to.size())));
  else if (n == 0 || errno != EINTR) pipe.close(0);
}

void feed(Pipe& pipe, const std::string& input, size_t& sent) {
  const ssize_t n = ::write(pipe.ends[1], input.data() + sent, input.size() - sent);
  if (n > 0) sent += size_t(n);
  if ((n < 0 && errno != EINTR && errno != EAGAIN) || sent == input.size()) pipe.close(1);
}

}  // namespace

bool is_on_path(const std::string& program) { return !path_of(program).empty(); }

std::string last_line(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
  const size_t begin = text.rfind('\n');
  return in_one_line(begin == text.npos ? text : text.substr(begin + 1));
}

Status run_program(const ProgramCall& call, ProgramResult& result) {
  const auto no = [](const auto&... why) { return Status::failure(Code::device, why...); };
  result = {};
  const std::string path = path_of(call.words[0]);
  if (path.empty()) return no("the program '", call.words[0], "' is not here");
  Pipe in, out, err;
  if (!in.open() || !out.open() || !err.open()) return no("a pipe cannot be made: ", std::strerror(errno));
  int file = -1;
  if (!call.input_file.empty() && (file = ::open(call.input_file.c_str(), O_RDONLY | O_CLOEXEC)) < 0)
    return no("'", call.input_file, "' cannot be read: ", std::strerror(errno));
  const std::vector<std::string> variables = environment_with(call.environment);
  const Words words(call.words), environment(variables);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0)
    become(path.c_str(), words.all.data(), environment.all.data(), file >= 0 ? file : in.ends[0], out.ends[1],
           err.ends[1], parent);
  if (file >= 0) ::close(file);
  if (child < 0) return no("a process cannot be started: ", std::strerror(errno));
  ::setpgid(child, child);
  in.close(0), out.close(1), err.close(1);
  if (file >= 0 || call.input.empty()) in.close(1);
  else ::fcntl(in.ends[1], F_SETFL, O_NONBLOCK);
  const auto pipes = std::signal(SIGPIPE, SIG_IGN);
  const auto end = Clock::now() + std::chrono::seconds(call.limit_s);
  size_t sent = 0;
  int status = 0;
  bool late = false, ended = false;
  // A grandchild, such as ssh's shared connection, may keep a pipe open: the child's end counts.
  while (!ended || out.ends[0] >= 0 || err.ends[0] >= 0) {
    if (!ended && ::waitpid(child, &status, WNOHANG) == child) ended = true;
    pollfd files[3] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}, {in.ends[1], POLLOUT, 0}};
    const int ready = ::poll(files, 3, ended ? 0 : 20);
    if (ready > 0) {
      if (files[0].revents) take(out, result.out, call.most_bytes);
      if (files[1].revents) take(err, result.err, call.most_bytes);
      if (files[2].revents) feed(in, call.input, sent);
    } else if (ended) {
      break;
    }
    if (!ended && Clock::now() > end) {
      late = true;
      ::kill(-child, SIGKILL);
      while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
      break;
    }
  }
  std::signal(SIGPIPE, pipes);
  if (late) return no("'", call.words[0], "' did not end within ", call.limit_s, " s");
  result.killed = WIFSIGNALED(status);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return Status::good();
}

}  // namespace attune
