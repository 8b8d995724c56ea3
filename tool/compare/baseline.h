// Baselines by name: files of records in .attune/baselines of the current folder where there is an .attune, else in the
// user's configuration. A name that nobody stored is a failure, never the first run.
#pragma once
#include <string>

#include "core/status.h"

namespace attune {

Status baseline_path(const std::string& name, std::string& out);  // of one that is there
Status save_baseline(const std::string& name, const std::string& records, std::string& path);

}  // namespace attune
