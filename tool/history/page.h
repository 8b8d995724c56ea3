// SPDX-License-Identifier: Apache-2.0
// The trends of a store as a report: what changed first, then a plot per row, rows that became slower before others.
#pragma once
#include <string>
#include <vector>

#include "tool/history/trend.h"
#include "tool/report/model.h"

namespace attune {

Report history_report(const std::vector<Trend>&, const std::vector<std::string>& left_out);

}  // namespace attune
