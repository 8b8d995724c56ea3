// Baselines by name: files of records in .attune/baselines of the current folder where there is an .attune, else in the
// user's configuration; what `attune store` named is found too. A name that nobody stored is a failure, never the first
// run.
#pragma once
#include "tool/record/record.h"

namespace attune {

Status is_baseline_name(const std::string& name);
// `where`: the file or the store that it was found in.
Status read_baseline(const std::string& name, std::vector<Record>& out, std::string& where);
// `text`: of the file of records, as it was read; a pipe cannot be read again.
Status save_baseline(const std::string& name, const std::string& text, std::string& path);

}  // namespace attune
