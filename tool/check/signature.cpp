// SPDX-License-Identifier: Apache-2.0
#include "tool/check/signature.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "tool/files.h"

extern char** environ;

namespace attune {
namespace {

constexpr const char* kNamespace = "attune";

// A file in memory. The program reads it from the start.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view text = {}) : file_(memfd_create("attune", MFD_CLOEXEC)) {
    while (file_ >= 0 && !text.empty()) {
      const ssize_t n = ::write(file_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) ::close(file_), file_ = -1;
      else text.remove_prefix(size_t(n));
    }
    if (file_ >= 0) (void)::lseek(file_, 0, SEEK_SET);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() {
    if (file_ >= 0) ::close(file_);
  }
  int number() const { return file_; }
  std::string text() const {
    std::string all;
    char part[4096];
    for (ssize_t n; (n = ::pread(file_, part, sizeof part, off_t(all.size()))) > 0;) all.append(part, size_t(n));
    return all;
  }

 private:
  int file_;
};

// Runs ssh-keygen with `text` on its stdin. Fails if it cannot be started; `code` is its exit code.
struct Answer {
  int code = 0;
  std::string out{}, err{};
  // The first line that is not about what it is doing.
  std::string why() const {
    for (size_t at = 0; at < err.size();) {
      const size_t end = std::min(err.find_first_of("\r\n", at), err.size());
      const std::string line = err.substr(at, end - at);
      if (!line.empty() && !line.starts_with("Signing ")) return line;
      at = end + 1;
    }
    return join("exit code ", code);
  }
};
Status ssh_keygen(std::vector<std::string> words, std::string_view text, Answer& answer) {
  const MemoryFile in(text), out, err;
  const auto no = [](int why) {
    const char* const text = why == ENOENT ? "it is not in PATH; its package is openssh-client" : std::strerror(why);
    return Status::failure(Code::device, "ssh-keygen cannot be started: ", text);
  };
  if (in.number() < 0 || out.number() < 0 || err.number() < 0) return no(errno);
  words.insert(words.begin(), "ssh-keygen");
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.number(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.number(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.number(), STDERR_FILENO);
  pid_t child = -1;
  const int failed = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed) return no(failed);
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return no(errno);
  answer = {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out.text(), err.text()};
  return answer.code == 127 && answer.out.empty() ? no(ENOENT) : Status::good();
}

}  // namespace

Status sign(std::string_view text, const std::string& key, std::string& signature) {
  if (::access(key.c_str(), R_OK) != 0)
    return Status::failure(Code::device, "the key '", key, "' cannot be read: ", std::strerror(errno));
  Answer said;
  if (Status s = ssh_keygen({"-Y", "sign", "-n", kNamespace, "-f", key}, text, said); !s.ok()) return s;
  if (said.code != 0) return Status::no("the key '", key, "' cannot sign: ", said.why());
  signature = said.out;
  return Status::good();
}

Status can_sign(const std::string& path, const std::string& key) {
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  if (there && !std::filesystem::is_regular_file(path, error))
    return Status::no("'", path, "' is not a regular file; a signature covers a whole file, so give a new one");
  if (there && std::filesystem::file_size(path, error) > 0)
    return Status::no("'", path, "' holds records of earlier runs; a signature covers a whole file, so give a new one");
  std::string ignored;
  return sign("", key, ignored);
}

Status sign_file(const std::string& path, const std::string& key) {
  std::string text, signature;
  if (Status s = read_file(path, text); !s.ok()) return s;
  if (Status s = sign(text, key, signature); !s.ok()) return s;
  return replace_file(signature_path(path), signature);
}

Status are_signers(const std::string& path) {
  std::string text;
  Status s = read_file(path, text);
  if (s.ok() && text.find_first_not_of(" \t\r\n") == text.npos) s = Status::no("'", path, "' is empty");
  if (s.ok()) return s;
  s.message = join("--signers: ", s.message, "; accepted is a file of allowed signers, see ssh-keygen(1)");
  return s;
}

Status check_signature(std::string_view text, const std::string& file, const std::string& signers, std::string& who) {
  const std::string path = signature_path(file);
  if (Status s = are_signers(signers); !s.ok()) return s;
  if (::access(path.c_str(), F_OK) != 0) return Status::no("it is not signed: '", path, "' does not exist");
  const auto run = [&](std::vector<std::string> words, std::string_view stdin_text, Answer& said) {
    words.insert(words.end(), {"-s", path});
    return ssh_keygen(std::move(words), stdin_text, said);
  };
  Answer any, names, one;
  if (Status s = run({"-Y", "check-novalidate", "-n", kNamespace}, text, any); !s.ok()) return s;
  if (any.code != 0)
    return Status::no("'", path, "' is not its signature: one of the two was changed since it was signed (",
                      any.why(), ")");
  const size_t with = any.out.find(" with "), end = any.out.find('\n');
  const std::string key = with == any.out.npos ? "a key" : any.out.substr(with + 6, end - with - 6);
  if (Status s = run({"-Y", "find-principals", "-f", signers}, {}, names); !s.ok()) return s;
  if (names.code != 0) return Status::no("it is signed by ", key, ", which '", signers, "' does not name");
  for (size_t at = 0; at < names.out.size();) {
    const size_t until = std::min(names.out.find('\n', at), names.out.size());
    const std::string name = names.out.substr(at, until - at);
    at = until + 1;
    if (name.empty()) continue;
    if (Status s = run({"-Y", "verify", "-n", kNamespace, "-f", signers, "-I", name}, text, one); !s.ok()) return s;
    if (one.code == 0) return who = join(name, ", ", key), Status::good();
  }
  return Status::no("it is signed by ", key, ", which '", signers, "' does not allow to sign records (", one.why(),
                    ")");
}

}  // namespace attune
