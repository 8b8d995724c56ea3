// SPDX-License-Identifier: Apache-2.0
// The input files of a report, as given to `report` and `serve`.
#pragma once
#include <string>
#include <vector>

#include "core/status.h"
#include "tool/report/model.h"

namespace attune {

struct SourceFiles {
  std::vector<std::string> records{};
  std::string baseline{}, tuned{}, prices{};
  std::string base{};  // of rows across lines, see record/ranking.h
};
struct Command;
void add_sources(const Command&, SourceFiles&);  // adds the arguments; the files must outlive the command line
Status read_sources(const SourceFiles&, Sources& out);

}  // namespace attune
