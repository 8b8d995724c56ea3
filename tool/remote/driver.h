// SPDX-License-Identifier: Apache-2.0
// A driver reaches one kind of machine: this one, one behind ssh, a Slurm cluster, a provider's. A lease is what a run
// has taken there: a folder, a job, a rented machine. Its name, "attune-<run id>-<target>", is unique, is recorded
// before the request, and finds the lease again if the reply was lost.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "tool/remote/target.h"

namespace attune {

inline constexpr std::string_view kLeasePrefix = "attune-";

struct Wanted {
  std::string gpu{};     // "H100"; "": none, or whatever the target has
  int gpus = 1, ranks = 1;
  double minutes = 0;    // the lease may end itself after this time
  double max_usd = 0;    // 0: no limit
  double silence_s = 600;  // the lease may end itself when it was not used for so long
  std::string name{};    // the lease's name and the key of idempotency
};

struct RemoteOffer {
  std::string id{}, provider{}, gpu{}, region{};
  int gpus = 0;
  double usd_an_hour = 0, setup_s = 0;
  bool spot = false;
  double most_minutes = 0;  // the longest lease; 0: no limit
  std::string facts{};      // what is known of the machine before it is taken, as lines of kProbe's output
};

struct Lease {
  std::string name{}, id{};
  double usd_an_hour = 0;
  std::string where{};  // how to reach it, in the driver's own words
};

// What a machine says about itself: "machine x86_64", "glibc 2.36", "lacks tar", "gpu NVIDIA L4", a line each.
extern const char* const kProbe;

// A worker writes to the file `beat` every few seconds.
inline constexpr const char* kSilence = "b=$(stat -c %Y beat) && echo $(($(date +%s) - b))";

enum class Life { pending, ready, gone, failed };

// Every call ends within its time limit, and an error is one sentence that begins with the target. Code::device: the
// machine, the network or the provider; a call that failed so may be repeated. Code::invalid: the user's words.
// Code::unsupported: the driver cannot do it. Code::out_of_memory: the provider wants money that is not there.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual Status check() = 0;  // credentials, host, GPU name: nothing is spent; at most 20 s
  virtual Status offers(const Wanted&, std::vector<RemoteOffer>&) = 0;
  virtual Status acquire(const Wanted&, const RemoteOffer&, Lease&) = 0;   // idempotent by name
  virtual Status life(const Lease&, Life&, std::string& why) = 0;          // needs only the lease's name
  virtual Status find(std::string_view prefix, std::vector<Lease>&) = 0;   // leases of this user whose name begins so
  // Names of files are relative to the lease's folder on the machine, and scripts run in that folder, by /bin/sh.
  virtual Status push(const Lease&, const std::string& from, const std::string& to) = 0;
  virtual Status run(const Lease&, const std::string& script, int limit_s, std::string& out, int& code) = 0;
  // The same where the files are, without using the machine: on a cluster, the login node.
  virtual Status manage(const Lease& lease, const std::string& script, int limit_s, std::string& out, int& code) {
    return run(lease, script, limit_s, out, code);
  }
  // Seconds since its worker was heard there; asking is not heard.
  virtual Status silent_for(const Lease& lease, double& seconds) {
    std::string out;
    int code = 0;
    Status s = manage(lease, kSilence, 30, out, code);
    if (s.ok() && (code || out.empty())) s = Status::failure(Code::device, lease.name, ": it is not known there");
    seconds = s.ok() ? double(std::atoll(out.c_str())) : 0;
    return s;
  }
  // At most kReadBytes from this offset on; fewer bytes, or none, at the end of the file or if it does not exist.
  virtual Status read(const Lease&, const std::string& file, std::uint64_t offset, std::string& bytes) = 0;
  // Starts `sh ./run.sh` in a session of its own and returns at once.
  virtual Status start(const Lease& lease) {
    std::string out;
    int code = 0;
    Status s = run(lease, "setsid sh ./run.sh </dev/null >/dev/null 2>&1 & echo started", 60, out, code);
    return s.ok() && code ? Status::failure(Code::device, "the command could not be started: exit code ", code) : s;
  }
  virtual Status release(const Lease&) = 0;  // asking twice is fine; life() tells when it is gone
  virtual Status bill(const Lease&, std::optional<double>& usd) = 0;  // nothing: the provider does not tell
  // After a request without a reply, a lease may appear this much later.
  virtual double settle_s() const { return 2; }
  // Whether the home folder outlives the lease, so that a bundle kept there saves the next run a copy.
  virtual bool keeps_files() const { return false; }
};
inline constexpr std::size_t kReadBytes = std::size_t(4) << 20;

}  // namespace attune
