// SPDX-License-Identifier: Apache-2.0
// Named baselines: files of records in .attune/baselines of the current folder if it has an .attune, else in the user's
// configuration. Baselines of `attune store` are found too. An unknown name is an error, never a first run.
#pragma once
#include "tool/record/record.h"

namespace attune {

Status is_baseline_name(const std::string& name);
// `where` is the file or the store that holds it.
Status read_baseline(const std::string& name, std::vector<Record>& out, std::string& where);
// `text` is the content of the records file as read, because a pipe cannot be read again.
Status save_baseline(const std::string& name, const std::string& text, std::string& path);

// "the baseline is '.attune/baselines/a.jsonl'", and who else can have written it.
std::string baseline_note(const std::string& path);

}  // namespace attune
