// SPDX-License-Identifier: Apache-2.0
#include "tool/subjects/peer.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>

#include "core/check.h"
#include "core/score.h"
#include "machine/library.h"
#include "tool/files.h"
#include "tool/json.h"
#include "tool/subjects/native_peer.h"
#include "tool/text.h"

namespace attune {
namespace {

std::deque<attune_peer>& registered() {  // addresses stay valid
  static std::deque<attune_peer> peers;
  return peers;
}

// The JSON that setup() of a peer receives:
// {"problem": line, "pass", "len_q", "len_k", "mask": m, "options": [word, ...], "keys", "page", "variant", "scale",
// "softcap", "threads", "gpu": index or -1, "stream": address, "tensors": {role: t}, "results": {role: t}} with
// m = {"kind", "left", "right": null for no limit, "align", "k_step", "k_phase", "blocks": null or [q, k, bound]} and
// t = {"data": address, "dtype", "extent": [batch, seq, head, dim], "stride": [batch, seq, head], in elements}.
Json tensor_json(const Tensor& t) {
  return {{"data", reinterpret_cast<uintptr_t>(t.data)},
          {"dtype", name(t.dtype)},
          {"extent", {t.extent.batch, t.extent.seq, t.extent.head, t.extent.dim}},
          {"stride", {t.stride.batch, t.stride.seq, t.stride.head}}};
}

Json mask_json(const Mask& m) {
  constexpr const char* kKinds[] = {"full", "causal", "window"};
  constexpr const char* kAligns[] = {"bottom_right", "top_left", "absolute"};
  const auto side = [](int32_t x) { return x == kNoLimit ? Json(nullptr) : Json(x); };
  return {{"kind", kKinds[int(m.kind)]},
          {"left", side(m.left)},
          {"right", side(m.right)},
          {"align", kAligns[int(m.align)]},
          {"k_step", m.k_step},
          {"k_phase", m.k_phase},
          {"blocks", m.blocks.q ? Json({m.blocks.q, m.blocks.k, m.blocks.bound}) : Json(nullptr)}};
}

// Where a peer finds a tensor; null: it makes its own forward and its own lists by key block.
const char* part_of(Role role, Pass pass) {
  if (role == Role::out) return pass == Pass::forward ? "results" : nullptr;
  if (role == Role::lse || role == Role::block_begin_k || role == Role::block_row_k) return nullptr;
  const bool is_gradient = (role >= Role::dq && role <= Role::d_sinks) || role >= Role::d_variant;
  return is_gradient ? "results" : "tensors";
}

std::string problem_json(const Problem& p, const Args& a, const PeerPlace& place) {
  Json j = {{"problem", name(p)},       {"pass", place.train ? "train" : name(p.pass)},   {"len_q", p.len_q},
            {"len_k", p.len_k},         {"mask", mask_json(p.mask)}, {"options", Json::array()},
            {"keys", name(p.keys)},     {"page", p.page},         {"variant", word(p.variant)},
            {"scale", scale_of(p, a)},  {"softcap", a.softcap},   {"threads", place.threads},
            {"gpu", place.gpu},         {"stream", reinterpret_cast<uintptr_t>(place.stream)},
            {"tensors", Json::object()}, {"results", Json::object()}};
  for (int n = 0; n < int(Option::count); ++n)
    if (p.has(Option(n))) j["options"].push_back(name(Option(n)));
  for (int n = 0; n < int(Role::count); ++n)
    if (const Role role = Role(n); a.given(role))
      if (const char* const part = part_of(role, p.pass)) j[part][name(role)] = tensor_json(a[role]);
  return j.dump();
}

// In the order of the help text.
constexpr std::string_view kPeers[] = {"torch:sdpa",      "torch:math", "torch:flash", "torch:cudnn",
                                       "torch:efficient", "torch:flex", "flash_attn",  "fa3",
                                       "flash_attn1",     "xformers",   "flashinfer",  "jax"};
constexpr std::string_view kOnCpu[] = {"torch:sdpa", "torch:math"};
constexpr std::string_view kOnGpu[] = {"torch:flash", "torch:cudnn", "torch:efficient"};

bool is_own(std::string_view word) { return word.find(".py:") != word.npos || is_native_peer(word); }

std::vector<std::string> hosted_of(const std::vector<std::string>& words) {
  std::vector<std::string> hosted;
  for (const std::string& word : words)
    if (!is_native_peer(word)) hosted.push_back(word);
  return hosted;
}

// A peer that is not loaded again, because it ended its process: every row of it says so, see add_peer in row.cpp.
void stand_in(const std::string& word) {
  static std::deque<std::string> names;
  if (find_peer(peer_name(word))) return;
  const attune_peer peer{.name = names.emplace_back(peer_name(word)).c_str(), .version = "",
                         .setup = [](const char*) { return int64_t(0); },
                         .run = [](int64_t) { return int32_t(PEER_DONE); },
                         .fetch = [](int64_t) { return int32_t(PEER_FAILED); }, .teardown = [](int64_t) {},
                         .message = [](char* text, int64_t room) { if (room > 0) *text = 0; }};
  attune_peer_register(&peer);
}

std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  return argv;
}

}  // namespace

bool is_hosted() { return !registered().empty(); }

const attune_peer* find_peer(std::string_view name) {
  for (const attune_peer& p : registered())
    if (name == p.name) return &p;
  return nullptr;
}

std::string peer_names() {
  std::string all = "torch";
  for (const std::string_view name : kPeers) all += join(", ", name);
  return all + ", <file>.py:<function>, <library>.so:<symbol>";
}

std::string_view peer_name(std::string_view word) { return word.substr(word.rfind('/') + 1); }

Status peers_named(const std::vector<std::string>& words, bool gpu, std::vector<std::string>& out) {
  const auto add = [&](std::string_view name) {
    if (std::find(out.begin(), out.end(), name) == out.end()) out.emplace_back(name);
  };
  for (const std::string& word : words) {
    if (word == "torch") {
      for (const std::string_view name : gpu ? std::span<const std::string_view>(kOnGpu) : kOnCpu) add(name);
    } else if (is_own(word)) {
      const auto is_same = [&](const std::string& other) {
        return other != word && peer_name(other) == peer_name(word);
      };
      if (const auto other = std::find_if(out.begin(), out.end(), is_same); other != out.end())
        return Status::no("--peer: '", *other, "' and '", word, "' have one name in records, ", peer_name(word),
                          "; rename one of them");
      add(word);
    } else if (std::find(std::begin(kPeers), std::end(kPeers), word) != std::end(kPeers)) {
      add(word);
    } else {
      return Status::no("--peer: ", not_one_of(word, peer_names()));
    }
  }
  return Status::good();
}

std::string peer_message(const attune_peer& p) {
  char text[1000] = "";
  p.message(text, sizeof text);
  text[sizeof text - 1] = 0;
  return text;
}

PeerRun::~PeerRun() {
  const PeerCall call(number_);
  for (const int64_t handle : handles_) peer_.teardown(handle);
}

Status PeerRun::setup(const Problem& p, const Args& results, const PeerPlace& place) {
  if (place.train && is_native_peer(peer_))
    return Status::unsupported(peer_.name, ": a library has no autograd, so no forward and backward as one call");
  const PeerCall call(number_);
  const int64_t handle = is_native_peer(peer_) ? set_up_native(peer_, p, results, place)
                                               : peer_.setup(problem_json(p, results, place).c_str());
  if (handle <= 0) return refused(handle < 0);
  handles_.push_back(handle);
  note_ = peer_message(peer_);
  return Status::good();
}

Status PeerRun::run_once() {
  const PeerCall call(number_);
  const int32_t result = peer_.run(handles_[0]);
  return result == PEER_DONE ? Status::good() : refused(result == PEER_OUT_OF_MEMORY);
}

Status PeerRun::fetch() {
  const PeerCall call(number_);
  const int32_t result = peer_.fetch(handles_[0]);
  return result == PEER_DONE ? Status::good() : refused(result == PEER_OUT_OF_MEMORY);
}

Status PeerRun::refused(bool lacks_memory) const {
  const Code code = lacks_memory ? Code::out_of_memory : Code::unsupported;
  return Status::failure(code, peer_.name, ": ", peer_message(peer_));
}

double PeerRun::taken_bytes() {
  const PeerCall call(number_);
  return peer_.memory ? double(peer_.memory(handles_[0])) : -1;
}

Subject PeerRun::subject() {
  return {.name = peer_.name,
          .context = this,
          .run = [](void* c) {
            auto* r = static_cast<PeerRun*>(c);
            const PeerCall call(r->number_);
            return r->peer_.run(r->handles_[r->next_++ % r->handles_.size()]) == PEER_DONE;
          },
          .why = [](void* c) { return peer_message(static_cast<PeerRun*>(c)->peer_); }};
}

Subject empty_call(const attune_peer& p) {
  return {.name = "nothing", .context = const_cast<attune_peer*>(&p),
          .run = [](void* c) { return static_cast<const attune_peer*>(c)->run(0) == PEER_DONE; }};
}

Status open_peers(const std::vector<std::string>& words, const std::string& python,
                  std::vector<const attune_peer*>& out) {
  const std::vector<std::string> hosted = hosted_of(words);
  if (!hosted.empty() && !is_hosted() && !is_peer_process()) return become_host(hosted, python);
  const AnswerKept kept;
  for (const std::string& word : words) {
    const PeerCall call(word);
    if (is_given_up(word)) stand_in(word);
    else if (is_native_peer(word)) load_native_peer(word);
  }
  for (const std::string& word : words) {
    const attune_peer* const peer = find_peer(peer_name(word));
    if (!peer) return Status::no("--peer: the Python process does not offer ", word);
    out.push_back(peer);
  }
  return Status::good();
}

Status start_again(const std::vector<std::string>& peers, const std::string& python) {
  if (const std::vector<std::string> hosted = hosted_of(peers); !hosted.empty()) return become_host(hosted, python);
  std::vector<std::string> words = command_line();
  if (words.empty()) return Status::no("--peer: cannot find this command line: /proc is missing");
  execv("/proc/self/exe", pointers(words).data());
  return Status::no("--peer: this program cannot be started again: ", std::strerror(errno));
}

namespace {

// Whether the program is a Python 3; any other would end without a word of the answer.
Status is_python(const std::string& program) {
  constexpr int kYes = 42;
  const std::string ask = join("import sys; sys.exit(", kYes, " if sys.version_info[0] == 3 else 2)");
  const pid_t child = fork();
  if (child < 0) return Status::no("--python: no process can be started: ", std::strerror(errno));
  if (child == 0) {
    const int nothing = open("/dev/null", O_RDWR);
    for (const int to : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, to);
    execlp(program.c_str(), program.c_str(), "-S", "-c", ask.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  if (WIFEXITED(status) && WEXITSTATUS(status) == kYes) return Status::good();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) return Status::good();  // execvp says why it cannot be started
  return Status::no("--python: '", program, "' is not a Python 3: asked for its version, it ended with ",
                    WIFEXITED(status) ? "exit code " : "signal ",
                    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

}  // namespace

Status become_host(const std::vector<std::string>& peers, const std::string& python) {
  namespace fs = std::filesystem;
  std::error_code error;
  const std::string program = this_program(), code = own_file();
  const fs::path here = fs::path(program).parent_path();
  const std::vector<std::string> line = command_line();
  if (here.empty() || line.empty())
    return Status::no("--peer: cannot find this program and its command line: /proc is missing");
  const auto first_of = [&](std::initializer_list<fs::path> places) {
    for (const fs::path& place : places)
      if (fs::exists(here / place, error)) return (here / place).lexically_normal().string();
    return std::string();
  };
  // In the build folder, or installed; a portable program is a few lines over a library that has all of this.
  const std::string library = code != program ? code :
      first_of({"libattune_tool.so", fs::path("..") / ATTUNE_LIBDIR / "libattune_tool.so"});
  const std::string script = first_of({"peers/torch_peer.py", "../share/attune/torch_peer.py"});
  if (library.empty())
    return Status::no("--peer: libattune_tool.so not found beside ", here.string(), "/attune or installed with it");
  if (script.empty()) return Status::no("--peer: torch_peer.py not found in ", here.string(), "/peers or installed");

  if (Status s = is_python(python); !s.ok()) return s;
  std::string names;
  for (const std::string& name : peers) names += join(names.empty() ? "" : ",", name);
  std::vector<std::string> words = {python, script, names, library};
  words.insert(words.end(), line.begin(), line.end());
  execvp(python.c_str(), pointers(words).data());
  return Status::no("--python: '", python, "' cannot be started: ", std::strerror(errno),
                    python.find(' ') != python.npos ? "; give a program alone, without arguments" : "");
}

}  // namespace attune

extern "C" void attune_peer_register(const attune_peer* peer) { attune::registered().push_back(*peer); }

extern "C" void attune_peer_loads(const char* name) {
  static std::optional<attune::PeerCall> loading;
  loading.reset();
  if (name) loading.emplace(std::string_view(name));
}
