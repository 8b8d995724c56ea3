// SPDX-License-Identifier: Apache-2.0
// What a rented machine costs: how long it may live within a total, before it is rented, and what was paid, afterwards.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "tool/json.h"
#include "tool/remote/journal.h"

namespace attune {

struct Rate {
  double usd_an_hour = 0;
  double step_s = 60;                      // billed in whole steps
  double minimum_usd = 0, fixed_usd = 0;   // fixed: storage, and what else is paid once
  double usd(double seconds) const;        // as billed
  double seconds_for(double usd) const;    // the longest time, in whole steps, that costs no more; 0: none
};

// Seconds that a target is expected to take. Teardown is a reserve: to pull what is left, to delete, and to ask again
// until the provider confirms.
struct PlannedTime {
  double provision_s = 0, setup_s = 0, run_s = 0, teardown_s = 0;
  double all() const { return provision_s + setup_s + run_s + teardown_s; }
};

struct PlannedTarget {
  std::string name{};  // "prime:H200"
  Rate rate{};
  PlannedTime time{};
};

// --max-usd and --max-minutes: totals of all targets together, and of each.
struct Cap {
  std::optional<double> usd{}, minutes{};
};

// Seconds from the request for the machine on.
struct Limits {
  double stop_s = 0;   // the sweep ends cleanly: 90 % of the lease
  double kill_s = 0;   // the command is killed and the machine released: what remains is the teardown reserve
  double lease_s = 0;  // the machine is gone
  double usd = 0;      // what the lease costs at most
};

inline constexpr double kStopShare = 0.9;
inline constexpr double kUnlimitedLease_s = 24 * 3600;  // without a cap
// Before anything is rented: the limits of each target. Code::out_of_memory: the plan does not fit into the cap, which
// is exit code 4. Code::invalid: a machine costs money and there is no cap.
Status limits_of(const Cap&, const std::vector<PlannedTarget>&, std::vector<Limits>&);

// What a target took and cost.
struct Spent {
  std::string target{};
  Rate rate{};
  double provision_s = 0, setup_s = 0, run_s = 0, idle_s = 0;  // idle: from the end of the command until it is gone
  int rows = 0;
  std::optional<double> billed{};          // what the provider charged
  std::optional<double> dearest_an_hour{}; // of the offers that were compared
  double seconds() const { return provision_s + setup_s + run_s + idle_s; }
  double usd() const { return billed ? *billed : rate.usd(seconds()); }
};
Spent spent_by(const std::string& target, const Rate&, const TargetState&);

// By hand: a machine rented by the started hour, set up by a person. Their time is not counted.
struct ByHand {
  double setup_s = 20 * 60, step_s = 3600;
  double usd(const Spent&) const;
};

std::string spending_text(const std::vector<Spent>&, const Cap&, int width);
Json spending_json(const std::vector<Spent>&, const Cap&);

}  // namespace attune
