// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/drivers/shell.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "tool/text.h"

namespace attune {

// glibc's version is asked of the loader's own library, since containers may lack getconf.
const char* const kProbe =
    "echo \"machine $(uname -m)\"\n"
    "g=$(getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1 | head -n 1)\necho \"glibc ${g##* }\"\n"
    "command -v timeout >/dev/null || echo 'lacks timeout'\ncommand -v tar >/dev/null || echo 'lacks tar'\n"
    "command -v gzip >/dev/null || echo 'lacks gzip'\n"
    "nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sed 's/^/gpu /'\ntrue";

namespace {

// ssh and sbatch may hand on the variables that they have.
const std::vector<std::string> kNoKeys = {"PRIME_API_KEY=", "MODAL_TOKEN_ID=", "MODAL_TOKEN_SECRET="};
constexpr int kConnect_s = 10, kCall_s = 18;
constexpr int kNoFolder = 97;  // exit code of a script whose lease is gone

// What the machine is not told: keys of providers are for this process alone.
constexpr std::string_view kForget =
    "unset PRIME_API_KEY MODAL_TOKEN_ID MODAL_TOKEN_SECRET ATTUNE_BACKEND ATTUNE_TUNED ATTUNE_LOG\n";

// Prints the processes of the lease in $d: those of its keeper's session, and those that work in its folder.
constexpr std::string_view kProcesses = R"sh(
of_lease() {
  if [ -r "$d/keeper.pid" ]; then
    read -r keeper <"$d/keeper.pid"
    if [ "$(readlink "/proc/$keeper/cwd" 2>/dev/null)" = "$d" ]; then
      for p in /proc/[0-9]*; do
        { read -r line <"$p/stat"; } 2>/dev/null || continue
        set -- ${line##*) }
        [ "$4" = "$keeper" ] && echo "${p#/proc/}"
      done
    fi
  fi
  ls -l /proc/[0-9]*/cwd 2>/dev/null | sed -n "s#.*/proc/\([0-9]*\)/cwd -> $d\(/.*\)*\( (deleted)\)*\$#\1#p"
}
)sh";

}  // namespace

std::string shell_word(std::string_view text) {
  std::string all = "'";
  for (const char c : text) all += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return all + "'";
}

std::string folder_words(std::string_view lease) {
  return join("d=$(cd \"${XDG_CACHE_HOME:-$HOME/.cache}\" 2>/dev/null && pwd -P)/attune/remote/", lease, "\n");
}

std::string keeper_script(const KeeperLimits& limits) {
  return join("echo $$ >keeper.part && mv keeper.part keeper.pid\nend=$(($(date +%s) + ",
              int64_t(limits.seconds), "))\nstarted=\nd=$(pwd -P)\n", kForget, kProcesses, R"sh(
while [ -e keeper.sh ]; do
  if [ -z "$started" ] && [ -e go ]; then
    started=1
    { sh ./run.sh; [ -e code ] || echo 137 >code; } </dev/null >/dev/null 2>&1 &
  fi
  now=$(date +%s)
  beat=$(stat -c %Y beat ./*.part 2>/dev/null | sort -n | tail -n 1)
  if [ "$now" -ge "$end" ] || [ $((now - ${beat:-0})) -ge )sh", int64_t(limits.silence_s), R"sh( ]; then
    [ -r command.pid ] && kill -INT "$(cat command.pid)" 2>/dev/null && sleep 5
    for p in $(of_lease); do [ "$p" = $$ ] || kill -9 "$p" 2>/dev/null; done
    cd / && rm -rf "$d"
    exit 0
  fi
  [ -e released ] && exit 0
  if [ -z "$started" ]; then sleep 0.1; else sleep 2; fi
done
)sh");
}

Shell::Shell(const Target& target, std::string host, const std::string& control_folder)
    : who_(target.name), host_(std::move(host)) {
  if (host_.empty()) {
    words_ = {"sh", "-c"};
    return;
  }
  words_ = {"ssh"};
  if (!target.ssh_config.empty()) words_.insert(words_.end(), {"-F", target.ssh_config});
  if (target.port) words_.insert(words_.end(), {"-p", join(target.port)});
  for (const char* const option : {"BatchMode=yes", "ServerAliveInterval=5", "ServerAliveCountMax=3",
                                   "ForwardAgent=no", "ForwardX11=no", "LogLevel=ERROR"})
    words_.insert(words_.end(), {"-o", option});
  words_.insert(words_.end(), {"-o", join("ConnectTimeout=", kConnect_s), "-T"});
  // One connection for all calls; it ends shortly after the last one. A socket's path is at most 108 bytes long.
  const std::string control = join(control_folder, "/ssh-", ::getpid());
  if (!control_folder.empty() && control.size() < 85) {
    control_ = control;
    words_.insert(words_.end(),
                  {"-o", "ControlMaster=auto", "-o", "ControlPersist=20", "-o", "ControlPath=" + control});
  }
  words_.insert(words_.end(), {"--", host_});
}

Shell::~Shell() {
  std::error_code error;
  if (control_.empty() || !std::filesystem::exists(control_, error)) return;
  ProgramResult ignored;
  (void)run_program({.words = {"ssh", "-o", "ControlPath=" + control_, "-O", "exit", "--", host_}, .limit_s = 5},
                    ignored);
}

// ssh's own exit code is 255; a shell that was reached has another.
Status Shell::explain(const ProgramResult& r) const {
  const std::string said = last_line(r.err);
  const auto has = [&](std::string_view part) { return r.err.find(part) != r.err.npos; };
  const auto no = [&](std::string_view what) {
    return Status::failure(Code::device, who_, ": ", what, said.empty() ? "" : ": ", said);
  };
  if (has("Permission denied")) return no("the login is refused; accepted is a key that needs no question");
  if (has("Host key verification failed") || has("REMOTE HOST IDENTIFICATION"))
    return no("the host's key is not known; log in once by hand");
  return no("the host cannot be reached");
}

Status Shell::run(const std::string& script, int limit_s, ProgramResult& r, const std::string& input_file) const {
  ProgramCall call{.words = words_, .input_file = input_file.empty() ? "/dev/null" : input_file,
                   .environment = kNoKeys, .limit_s = limit_s};
  // The login shell of a host may be any: it only starts sh.
  call.words.push_back(host_.empty() ? script : "exec sh -c " + shell_word(script));
  if (Status s = run_program(call, r); !s.ok()) return s.after(who_, ": ");
  if (!host_.empty() && r.killed) return Status::failure(Code::device, who_, ": the connection was lost");
  return !host_.empty() && r.code == 255 ? explain(r) : Status::good();
}

Status ShellDriver::do_or_say(const std::string& script, int limit_s, ProgramResult& r) const {
  if (Status s = shell_.run(script, limit_s, r); !s.ok()) return s;
  if (r.code == 0) return Status::good();
  const std::string said = last_line(r.err.empty() ? r.out : r.err);
  return Status::failure(Code::device, target_.name, ": ", said.empty() ? join("a script ended with ", r.code) : said);
}

Status ShellDriver::in_folder(const Lease& lease, const std::string& script, int limit_s, ProgramResult& r,
                              const std::string& input_file) const {
  const std::string all =
      join(folder_words(lease.name), "cd \"$d\" 2>/dev/null || exit ", kNoFolder, "\n: >beat\n", kForget, script);
  if (Status s = shell_.run(all, limit_s, r, input_file); !s.ok()) return s;
  if (r.code == kNoFolder)
    return Status::failure(Code::device, target_.name, ": the folder of the run is gone");
  return Status::good();
}

// GPUs are compared without case and blanks: h100 is in "NVIDIA H100 80GB HBM3".
Status ShellDriver::check() {
  ProgramResult r;
  const std::string script =
      "c=${XDG_CACHE_HOME:-$HOME/.cache}; mkdir -p \"$c/attune/remote\" && "
      "[ -w \"$c/attune/remote\" ] || { echo \"$c/attune/remote cannot be written\" >&2; exit 1; }\n"
      "nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null\ntrue";
  if (Status s = do_or_say(script, kCall_s, r); !s.ok()) return s;
  if (target_.gpu.empty()) return Status::good();
  const auto plain = [](std::string_view text) {
    std::string all;
    for (const char c : text)
      if (c != ' ' && c != '_' && c != '-') all += char(std::tolower(static_cast<unsigned char>(c)));
    return all;
  };
  std::string has;
  int count = 0;
  for (size_t at = 0, end; (end = r.out.find('\n', at)) != r.out.npos; at = end + 1) {
    const std::string gpu = r.out.substr(at, end - at);
    if (has.find(gpu) == has.npos) has += join(has.empty() ? "" : ", ", in_one_line(gpu));
    if (plain(gpu).find(plain(target_.gpu)) != gpu.npos) ++count;
  }
  const int least = std::max(target_.gpus, 1);
  if (count >= least) return Status::good();
  return Status::failure(Code::device, target_.name, ": ",
                         count ? join(count, " of ", least, " GPUs '", target_.gpu, "' are there")
                               : join("has no GPU '", target_.gpu, "'"),
                         "; it has ", has.empty() ? "none" : has);
}

Status ShellDriver::offers(const Wanted& wanted, std::vector<RemoteOffer>& all) {
  all = {{.id = target_.name, .provider = target_.kind, .gpu = wanted.gpu, .region = target_.place,
          .gpus = wanted.gpus, .usd_an_hour = target_.usd_an_hour.value_or(0)}};
  ProgramResult r;
  const Status s = shell_.run(kProbe, kCall_s, r);
  all[0].facts = std::move(r.out);
  return s;
}

Status ShellDriver::acquire(const Wanted& wanted, const RemoteOffer& offer, Lease& lease) {
  lease.name = wanted.name, lease.usd_an_hour = offer.usd_an_hour;
  ProgramResult r;
  const std::string script = join(
      "umask 077\nmkdir -p \"${XDG_CACHE_HOME:-$HOME/.cache}/attune/remote\" || exit 1\n", folder_words(wanted.name),
      "mkdir -p \"$d\" && cd \"$d\" || exit 1\nif [ ! -e keeper.sh ]; then\n: >beat\nprintf %s ",
      shell_word(keeper_script({.seconds = wanted.minutes * 60, .silence_s = wanted.silence_s})),
      " >keeper.part.sh && mv keeper.part.sh keeper.sh || exit 1\n",
      "setsid sh ./keeper.sh </dev/null >/dev/null 2>&1 &\nfi\npwd");
  if (Status s = do_or_say(script, kCall_s, r); !s.ok()) return s;
  lease.id = wanted.name, lease.where = last_line(r.out);
  return Status::good();
}

Status ShellDriver::life(const Lease& lease, Life& life, std::string& why) {
  ProgramResult r;
  const std::string script = join(folder_words(lease.name), kProcesses, R"sh(
all=$(of_lease)
if [ ! -d "$d" ]; then
  if [ -n "$all" ]; then echo ending; else echo gone; fi
elif [ ! -e "$d/keeper.pid" ]; then echo pending
elif [ "$(readlink "/proc/$(cat "$d/keeper.pid")/cwd")" = "$d" ]; then echo ready
else echo failed
fi)sh");
  if (Status s = do_or_say(script, kCall_s, r); !s.ok()) return s;
  why = last_line(r.out);
  life = why == "ready" ? Life::ready : why == "gone" ? Life::gone : why == "failed" ? Life::failed : Life::pending;
  if (life == Life::failed) why = "its processes have ended; perhaps the machine was started again";
  return Status::good();
}

Status ShellDriver::find(std::string_view prefix, std::vector<Lease>& all) {
  all.clear();
  ProgramResult r;
  if (Status s =
          do_or_say("cd \"${XDG_CACHE_HOME:-$HOME/.cache}/attune/remote\" 2>/dev/null && ls -1\ntrue", kCall_s, r);
      !s.ok())
    return s;
  for (size_t at = 0, end; (end = r.out.find('\n', at)) != r.out.npos; at = end + 1)
    if (const std::string name = r.out.substr(at, end - at); name.starts_with(prefix))
      all.push_back({.name = name, .id = name});
  return Status::good();
}

Status ShellDriver::push(const Lease& lease, const std::string& from, const std::string& to) {
  ProgramResult r;
  constexpr int kPush_s = 600;
  const std::string file = shell_word(to), part = shell_word(to + ".part");
  if (Status s = in_folder(lease, join("cat >", part, " && mv ", part, " ", file), kPush_s, r, from); !s.ok()) return s;
  if (r.code) return Status::failure(Code::device, target_.name, ": '", to, "' cannot be written: ", last_line(r.err));
  return Status::good();
}

Status ShellDriver::run(const Lease& lease, const std::string& script, int limit_s, std::string& out, int& code) {
  ProgramResult r;
  if (Status s = in_folder(lease, script, limit_s, r); !s.ok()) return s;
  out = std::move(r.out), code = r.code;
  if (code && out.empty()) out = std::move(r.err);
  return Status::good();
}

Status ShellDriver::read(const Lease& lease, const std::string& file, std::uint64_t offset, std::string& bytes) {
  ProgramResult r;
  const std::string name = shell_word(file);
  const std::string script = join("[ ! -e ", name, " ] || tail -c +", offset + 1, " ", name, " | head -c ", kReadBytes);
  if (Status s = in_folder(lease, script, 60, r); !s.ok()) return s;
  bytes = std::move(r.out);
  return Status::good();
}

Status ShellDriver::start(const Lease& lease) {
  ProgramResult r;
  if (Status s = in_folder(lease, ": >go", kCall_s, r); !s.ok()) return s;
  return r.code ? Status::failure(Code::device, target_.name, ": the command cannot be started: ", last_line(r.err))
                : Status::good();
}

Status ShellDriver::release(const Lease& lease) {
  ProgramResult r;
  const std::string script = join(folder_words(lease.name), kProcesses, R"sh(
n=0
while [ $n -lt 20 ]; do
  for p in $(of_lease); do [ "$p" = $$ ] || kill -9 "$p" 2>/dev/null; done
  [ -d "$d" ] && rm -rf "$d"
  [ -d "$d" ] || [ -n "$(of_lease)" ] || exit 0
  n=$((n + 1))
  sleep 0.1
done
echo "$d cannot be removed" >&2
exit 1)sh");
  return do_or_say(script, kCall_s, r);
}

Status ShellDriver::silent_for(const Lease& lease, double& seconds) {
  ProgramResult r;
  Status s = do_or_say(join(folder_words(lease.name), "cd \"$d\" && ", kSilence), kCall_s, r);
  seconds = s.ok() ? std::atof(r.out.c_str()) : 0;
  return s;
}

Status ShellDriver::bill(const Lease&, std::optional<double>& usd) { return usd.reset(), Status::good(); }

}  // namespace attune
