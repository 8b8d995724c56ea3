// Audits records. Every derived value is recomputed from its sources, and each kind of error or forgery has a name.
// Pure: no clock and no device, so a file from any machine can be audited on any other.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tool/record/record.h"

namespace attune {

struct Finding {
  int line = 0;            // line of the file, from 1
  std::string name{};      // "forged-rate"
  bool wrong = true;       // false: a warning; the record is consistent but not reliable
  std::string sentence{};
};

// A record and its line number.
struct Line {
  int number = 0;
  Record record{};
};

// Parses one line. Adds a finding if it is not a record, or a required field is missing or has the wrong type.
bool audit_line(std::string_view text, Line& out, std::vector<Finding>& found);
// Audits parsed records, each alone and together with the others of its row and run.
void audit(std::span<const Line>, std::vector<Finding>& found);
// Does both for a file. Empty lines are skipped, and an incomplete last line is a warning.
Status audit_file(const std::string& path, std::vector<Line>& lines, std::vector<Finding>& found);

std::vector<std::string> finding_names();

// Equal for all records of a row: the same problem, measured in the same way in the same run.
std::string row_key(const Record&);

}  // namespace attune
