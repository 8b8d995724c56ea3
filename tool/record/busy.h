// SPDX-License-Identifier: Apache-2.0
// What records tell about the state of the machine, as one sentence for a reader; "" where there is nothing to tell.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "tool/record/record.h"

namespace attune {

inline constexpr double kSteadySpread = 0.05;  // A/A spread above which the machine was not steady

// "other processes took 48 % of 2 CPUs"
inline std::string busy_text(const Record& r) { return busy_text(r.load, r.threads == 0); }
// "busy machine: 12 of 48 records were measured while other processes took 48 % of 2 CPUs at most; their times are too
// long"
std::string busy_summary(std::span<const Record> records);
// "A/A spread 17.7 % (warm, 2 threads): the machine was not steady; smaller differences cannot be told"
std::string spread_summary(std::span<const Record> records);

// How the machine differs between two sets of records of the same rows: "the CPU clock was 2.1 GHz before and 2.8 GHz
// after". `moved`: times of our own subjects differ, so that one program on both sides shows that the machine does.
std::vector<std::string> machine_changes(const std::vector<const Record*>& before,
                                         const std::vector<const Record*>& after, bool moved);

}  // namespace attune
