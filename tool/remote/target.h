// SPDX-License-Identifier: Apache-2.0
// Where a run goes: "local", "ssh:user@host[:port]", "slurm:partition", "slurm:partition@ssh:user@host", "prime:H200",
// "modal:L4", "sky:INFRA", or a name of remote.toml, which also holds defaults.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace attune {

struct Target {
  std::string name{};       // as the user wrote it: "ssh:bench@box", or "box" of remote.toml
  std::string kind{};       // local, ssh, slurm, prime, modal, sky
  std::string place{};      // user@host, partition, GPU or infrastructure
  std::string through{};    // of slurm: user@host of the login node; "": here
  int port = 0;             // of ssh; 0: what ssh chooses
  std::string ssh_config{}; // file for ssh -F; "": the user's own
  std::string gpu{};        // the GPU that is wanted: of --gpu, of remote.toml, or of the place
  int gpus = 0;             // 0: as many as needed, 1 if a GPU is wanted
  std::optional<double> usd_an_hour{};  // price of one's own machine, for the table of costs
  std::vector<std::string> options{};   // more words for sbatch, or for the provider's client
};

inline constexpr std::string_view kTargetKinds =
    "local, ssh:USER@HOST, slurm:PARTITION, prime:GPU, modal:GPU, sky:INFRA";

struct RemoteSettings {
  std::string path{};  // the file, "" if there is none
  std::map<std::string, Target> targets{};
  std::optional<double> max_usd{}, max_minutes{};
  std::string prices{};  // a price list that replaces ours
};

// Reads `path`, or without one $XDG_CONFIG_HOME/attune/remote.toml where it exists.
Status read_remote_settings(const std::string& path, RemoteSettings&);
// One word of --on.
Status parse_target(const std::string& word, const RemoteSettings&, Target&);
// "A100-80GB" and "A100_80GB" become "a100": a word that known_device() may know.
std::string planner_word(const std::string& gpu);
// A short name for files: letters, digits, - and _.
std::string file_word(std::string_view text);

}  // namespace attune
