// SPDX-License-Identifier: Apache-2.0
// Audits records. Every derived value is recomputed from its sources, what must be equal in a run is compared, and each
// kind of error or forgery has a name. Pure: no clock and no device, so a file from any machine can be audited on any
// other.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tool/record/record.h"

namespace attune {

struct Finding {
  int line = 0;            // line of the file, from 1; 0: of the whole file
  std::string name{};      // "forged-rate"
  bool wrong = true;       // false: a warning; the record is consistent but not reliable
  std::string sentence{};
};

// A record and where it stands.
struct Line {
  int number = 0;
  Record record{};
  std::string digest{};  // the seal that the text gives; see record/seal.h
  bool extract = false;  // without samples, as scripts/results.py publishes records
  Misread misread = Misread::none;
};

// Parses one line. Adds a finding if it is not a record, or a required field is missing or has the wrong type.
bool audit_line(std::string_view text, Line& out, std::vector<Finding>& found);
// Audits parsed records, each alone and together with the others of its row, its run and its file. `now` is the time in
// seconds since 1970, which no record may be ahead of; 0: unknown.
void audit(std::span<const Line>, std::vector<Finding>& found, int64_t now = 0);
// Does both for the text of a file. Empty lines are skipped, and an incomplete last line is a warning.
void audit_text(std::string_view text, std::vector<Line>& lines, std::vector<Finding>& found, int64_t now = 0);

std::vector<std::string> finding_names();

// Equal for all records of a row: the same problem, measured in the same way in the same run.
std::string row_key(const Record&);

}  // namespace attune
