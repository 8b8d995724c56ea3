// SPDX-License-Identifier: Apache-2.0
// What the user sees of a run: its start, its progress, its results. The client may end at any time; the run goes on.
#pragma once
#include <string>
#include <vector>

#include "core/status.h"
#include "tool/commands/commands.h"
#include "tool/remote/run/plan.h"

namespace attune {

// Finds out, before anything is taken, whether every target can serve: credentials, host, GPU, offers and money.
// Code::out_of_memory: the money.
Status choose_offers(RemotePlan&, double estimated_s);
// How long the command takes here, by its own --dry-run; 0 if it has none. Fails if its words are wrong.
Status estimate(const RemotePlan&, double& seconds);
// Writes the plan and starts the processes.
Status launch(const RemotePlan&);
// Shows the run until it ends, or until Ctrl-C, which asks it to end; then the results.
void follow_run(const RemotePlan&, Context&);
// Lets runs whose processes were killed come to their end; their ids.
std::vector<std::string> revive_dead_runs();
void list_runs(Context&);
void print_logs(const RemotePlan&, Context&);
// Releases what dead runs and, on these targets, unknown runs of this user have left, and waits for it.
void reap(const std::vector<Target>&, Context&);

}  // namespace attune
