// The files that a report is made of, as `report` and `serve` are told of them.
#pragma once
#include <string>
#include <vector>

#include "core/status.h"
#include "tool/report/model.h"

namespace attune {

struct SourceFiles {
  std::vector<std::string> records{};
  std::string baseline{}, tuned{}, prices{};
};
struct Command;
void add_sources(const Command&, SourceFiles&);  // the arguments; `files` outlives the command line
Status read_sources(const SourceFiles&, Sources& out);

}  // namespace attune
