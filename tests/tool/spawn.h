// SPDX-License-Identifier: Apache-2.0
// Runs the command as a user does: a process, its two streams and its exit code.
#pragma once
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace attune {

struct Ran {
  int code = -1;
  std::string out{}, err{};
};

inline std::string text_of(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) return "";  // a device may be endless
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A file in a temporary folder of this test, which is removed with the process.
inline std::string temporary(const std::string& name) {
  static const struct Folder {
    std::string path{"/tmp/attune_test_XXXXXX"};
    Folder() { if (!mkdtemp(path.data())) path = "/nowhere"; }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  } folder;
  return folder.path + "/" + name;
}

inline Ran spawn(std::vector<std::string> words, const std::vector<std::string>& environment = {},
                 const std::string& stdout_to = temporary("out")) {
  const std::string err = temporary("err");
  const pid_t child = fork();
  if (child == 0) {
    for (const std::string& e : environment) putenv(strdup(e.c_str()));
    const int to = open(stdout_to.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int errors = open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(to, STDOUT_FILENO), dup2(errors, STDERR_FILENO);
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text_of(stdout_to), text_of(err)};
}

// Ignores the user's tuned files.
inline Ran attune_says(std::vector<std::string> words, std::vector<std::string> environment = {}) {
  words.insert(words.begin(), ATTUNE_BUILD_DIR "/attune");
  environment.insert(environment.begin(), "XDG_CONFIG_HOME=" + temporary(""));
  return spawn(std::move(words), environment);
}

// The command in the background; terminated explicitly or by the destructor.
class Background {
 public:
  explicit Background(std::vector<std::string> words) : out_(next_file()), child_(fork()) {
    if (child_) return;
    const int to = open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(to, STDOUT_FILENO), dup2(to, STDERR_FILENO);
    putenv(strdup(("XDG_CONFIG_HOME=" + temporary("")).c_str()));
    words.insert(words.begin(), ATTUNE_BUILD_DIR "/attune");
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  Background(const Background&) = delete;
  ~Background() {
    if (child_ > 0) kill(child_, SIGKILL), waitpid(child_, nullptr, 0);
  }
  std::string says() const { return text_of(out_); }  // both streams
  pid_t id() const { return child_; }
  void forget() { child_ = -1; }                      // it was waited for
  int ends(int signal) {                              // returns the exit code
    int status = 0;
    kill(child_, signal), waitpid(child_, &status, 0);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  std::string out_;
  pid_t child_;
  static std::string next_file() {  // separate files, so that outputs are not mixed up
    static int count = 0;
    return temporary("background" + std::to_string(count++));
  }
};

// Whether the condition becomes true. The limit of two minutes is not a performance requirement; it stops a broken test
// from hanging.
template <class What>
bool comes(What what) {
  for (int n = 0; n < 1200; ++n) {
    if (what()) return true;
    usleep(100'000);
  }
  return false;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

}  // namespace attune
