// SPDX-License-Identifier: Apache-2.0
// Slurm, by its own commands, here or on a login node behind ssh. A lease is a job that runs the keeper in the lease's
// folder, which the nodes must share with the login node. The job has a time limit, and the keeper one of its own:
// Slurm may end a job a minute late.
#include <algorithm>
#include <cmath>

#include "tool/remote/drivers/drivers.h"
#include "tool/remote/drivers/shell.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr int kCall_s = 18, kShareds_s = 60;

// "10:00", "2:00:00", "1-00:00:00": minutes; 0 for "infinite" and what cannot be read.
double minutes_of(std::string_view text) {
  double days = 0, fields[3] = {};
  int count = 0;
  if (const size_t dash = text.find('-'); dash != text.npos) {
    days = std::atof(std::string(text.substr(0, dash)).c_str());
    text.remove_prefix(dash + 1);
  }
  for (size_t at = 0; at <= text.size() && count < 3; ++count) {
    const size_t end = std::min(text.find(':', at), text.size());
    fields[count] = std::atof(std::string(text.substr(at, end - at)).c_str());
    at = end + 1;
  }
  const double hours = count == 3 ? fields[0] : 0;
  const double minutes = count == 3 ? fields[1] : count == 2 ? fields[0] : 0;
  return (days * 24 + hours) * 60 + minutes;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

class SlurmDriver : public ShellDriver {
 public:
  SlurmDriver(const Target& target, const std::string& control_folder)
      : ShellDriver(target, target.through, control_folder) {}

  Status check() override {
    ProgramResult r;
    const std::string script =
        "command -v sbatch >/dev/null || { echo 'sbatch is not there: it is not a machine of Slurm' >&2; exit 1; }\n"
        "mkdir -p \"${XDG_CACHE_HOME:-$HOME/.cache}/attune/remote\" || exit 1\n"
        "timeout 12 sinfo -h -o '%R|%G|%l|%a' || { echo 'the controller of Slurm does not answer' >&2; exit 1; }";
    if (Status s = do_or_say(script, kCall_s, r); !s.ok()) return s;
    std::string partitions, gpus;
    bool found = target_.place.empty();
    for (size_t at = 0, end; (end = r.out.find('\n', at)) != r.out.npos; at = end + 1) {
      const std::string line = r.out.substr(at, end - at), name = line.substr(0, line.find('|'));
      if (partitions.find(name) == partitions.npos) partitions += join(partitions.empty() ? "" : ", ", name);
      if (name != target_.place && !target_.place.empty()) continue;
      found = true;
      const size_t begin = line.find('|') + 1;
      const std::string all = line.substr(begin, line.find('|', begin) - begin);
      if (all != "(null)" && gpus.find(all) == gpus.npos) gpus += join(gpus.empty() ? "" : ", ", all);
    }
    const auto no = [&](const auto&... why) { return Status::failure(Code::device, target_.name, ": ", why...); };
    if (!found) return no("'", target_.place, "' is not a partition; accepted are ", in_one_line(partitions));
    if (target_.gpu.empty() || gpus.find(join("gpu:", target_.gpu, ":")) != gpus.npos) return Status::good();
    return no("has no GPU '", target_.gpu, "'; it has ", gpus.empty() ? "none" : in_one_line(gpus));
  }

  Status offers(const Wanted& wanted, std::vector<RemoteOffer>& all) override {
    if (Status s = ShellDriver::offers(wanted, all); !s.ok()) return s;
    all[0].most_minutes = most_minutes(), all[0].facts.clear();  // a node may be another kind than the login node
    return Status::good();
  }

  Status acquire(const Wanted& wanted, const RemoteOffer& offer, Lease& lease) override {
    lease.name = wanted.name, lease.usd_an_hour = offer.usd_an_hour;
    ProgramResult r;
    std::string words = join(" --parsable --no-requeue --job-name=", wanted.name, " --comment=attune --ntasks=",
                             std::max(wanted.ranks, 1), " --output=slurm.out --open-mode=append");
    if (!target_.place.empty()) words += join(" --partition=", target_.place);
    if (!wanted.gpu.empty()) words += join(" --gres=gpu:", wanted.gpu, ":", std::max(wanted.gpus, 1));
    for (const std::string& option : target_.options) words += " " + shell_word(option);
    words += join(" --time=", int64_t(std::ceil(wanted.minutes)));
    const std::string script =
        join("umask 077\nmkdir -p \"${XDG_CACHE_HOME:-$HOME/.cache}/attune/remote\" || exit 1\n",
             folder_words(wanted.name), "job=$(squeue -h -u \"$(id -un)\" -n ", wanted.name, " -o %i | head -n 1)\n",
             "[ -n \"$job\" ] && { echo \"$job\"; exit 0; }\nmkdir -p \"$d\" && cd \"$d\" || exit 1\n: >beat\n",
             "printf '#!/bin/sh\\n%s' ",
             shell_word(keeper_script({.seconds = wanted.minutes * 60, .silence_s = wanted.silence_s})),
             " >keeper.sh || exit 1\nsbatch", words, " keeper.sh || { code=$?; cd / && rm -rf \"$d\"; exit $code; }");
    if (Status s = do_or_say(script, kCall_s, r); !s.ok()) return s;
    lease.id = first_line(r.out);
    lease.id = lease.id.substr(0, lease.id.find(';'));
    return Status::good();
  }

  Status life(const Lease& lease, Life& life, std::string& why) override {
    ProgramResult r;
    const std::string script =
        join(folder_words(lease.name), "jobs=$(squeue -h -u \"$(id -un)\" -n ", lease.name,
             " -o '%T %M %r') || exit 1\nif [ -n \"$jobs\" ]; then echo \"$jobs\" | head -n 1\n",
             "elif [ -d \"$d\" ]; then echo ended; else echo gone; fi\n[ -e \"$d/keeper.pid\" ] && echo keeper\ntrue");
    if (Status s = do_or_say(script, kCall_s, r); !s.ok()) return s;
    why = first_line(r.out);
    const bool keeper = r.out.find("\nkeeper") != r.out.npos;
    life = Life::pending;
    // A job that was cancelled is listed so until its last process has ended.
    if (why == "gone") life = Life::gone;
    else if (why.starts_with("COMPLETING")) life = Life::failed, why = "the job has ended";
    else if (why == "ended") life = Life::failed, why = "the job has ended";
    else if (why.starts_with("RUNNING") && keeper) life = Life::ready;
    else if (why.starts_with("RUNNING") && minutes_of(why.substr(8, why.find(' ', 8) - 8)) * 60 > kShareds_s)
      life = Life::failed, why = "the home folder of the login node is not that of the compute node";
    else if (why.find("PartitionTimeLimit") != why.npos || why.find("PartitionConfig") != why.npos)
      life = Life::failed, why = "the job can never start: " + why;
    return Status::good();
  }

  Status find(std::string_view prefix, std::vector<Lease>& all) override {
    if (Status s = ShellDriver::find(prefix, all); !s.ok()) return s;
    ProgramResult r;
    if (Status s = do_or_say("squeue -h -u \"$(id -un)\" -o '%j|%i'", kCall_s, r); !s.ok()) return s;
    for (size_t at = 0, end; (end = r.out.find('\n', at)) != r.out.npos; at = end + 1) {
      const std::string line = r.out.substr(at, end - at), name = line.substr(0, line.find('|'));
      const auto same = [&](const Lease& l) { return l.name == name; };
      if (name.starts_with(prefix) && std::none_of(all.begin(), all.end(), same))
        all.push_back({.name = name, .id = line.substr(line.find('|') + 1)});
    }
    return Status::good();
  }

  // On the node, as a step of the job.
  Status run(const Lease& lease, const std::string& script, int limit_s, std::string& out, int& code) override {
    const std::string step = join("srun --jobid=", lease.id, " --overlap --ntasks=1 --quiet --export=ALL sh -c ",
                                  shell_word(script));
    return ShellDriver::run(lease, step, limit_s, out, code);
  }
  Status manage(const Lease& lease, const std::string& script, int limit_s, std::string& out, int& code) override {
    return ShellDriver::run(lease, script, limit_s, out, code);
  }

  Status release(const Lease& lease) override {
    ProgramResult r;
    const std::string script =
        join("scancel --quiet --name=", lease.name, " --user=\"$(id -un)\"\nn=0\nwhile [ $n -lt 40 ]; do\n",
             "  [ -z \"$(squeue -h -u \"$(id -un)\" -n ", lease.name,
             " -o %i)\" ] && break\n  n=$((n + 1))\n  sleep 0.2\ndone\ntrue");
    if (Status s = do_or_say(script, kCall_s, r); !s.ok()) return s;
    return ShellDriver::release(lease);
  }

  double settle_s() const override { return 4; }

 private:
  // The partition's limit.
  double most_minutes() const {
    ProgramResult r;
    const std::string of = target_.place.empty() ? "" : " -p " + target_.place;
    return do_or_say("sinfo -h -o %l" + of, kCall_s, r).ok() ? minutes_of(first_line(r.out)) : 0;
  }
};

}  // namespace

std::unique_ptr<Driver> slurm_driver(const Target& target, const std::string& control_folder) {
  return std::make_unique<SlurmDriver>(target, control_folder);
}

}  // namespace attune
