// SPDX-License-Identifier: Apache-2.0
// What a run was asked to do: plan.json in its folder, written once, before anything is taken. The processes of the run
// read it; it holds no secret.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tool/remote/driver.h"
#include "tool/remote/money.h"
#include "tool/remote/target.h"

namespace attune {

struct Leg {  // one target of a run
  Target target{};
  RemoteOffer offer{};
  Limits limits{};
  double dearest_usd_an_hour = 0;  // of the offers that were compared
  int share = 1, shares = 1;       // its part of the rows, from 1 on
};

struct RemotePlan {
  std::string id{};
  std::vector<Leg> legs{};
  std::vector<std::string> command{};  // "bench", "--suite", "decode": of the command attune
  std::vector<std::string> sent{};     // files that go along, by their absolute paths
  std::string bundle{};                // the archive, by its absolute path
  int ranks = 1;                       // processes of the command, started by srun
  Cap cap{};
  double silence_s = 600;              // a lease that hears nothing of its worker for so long ends itself
  std::string out{};                   // folder for the results, "" for none
  std::string resumed{};               // id of the run that this one continues
  bool store = true;                   // rows go into the user's store
};

Status write_plan(const RemotePlan&);
Status read_plan(const std::string& id, RemotePlan&);

// Folder of a target's results: rows.jsonl, out, err, run.json and files/.
std::string results_folder(const RemotePlan&, int target);
// Its lease's name, different in every run.
std::string lease_name(const RemotePlan&, int target);
// The run and the target of such a name; nothing for a name of another shape, which is not ours.
struct NamedLease {
  std::string run{};
  int target = 0;
};
std::optional<NamedLease> parse_lease_name(std::string_view name);
// Whether the command writes records to rows.jsonl.
inline bool writes_rows(const RemotePlan& p) { return !p.command.empty() && p.command[0] == "bench"; }
// Whether the command, which names no device, is meant for the GPU that the target was taken for.
bool means_gpu(const RemotePlan&, const Target&);
// All ids, oldest first.
std::vector<std::string> run_ids();

}  // namespace attune
