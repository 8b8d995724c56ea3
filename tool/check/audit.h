// Whether records can be believed: everything in them that follows from something else is computed again, and what only
// a mistake or a forger writes has a name. Pure: no clock, no device, so a file from anywhere can be judged anywhere.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tool/record/record.h"

namespace attune {

struct Finding {
  int line = 0;            // of the file, from 1
  std::string name{};      // "forged-rate"
  bool wrong = true;       // false: true as it stands, and not to be relied on
  std::string sentence{};
};

// A record and the line it stands on.
struct Line {
  int number = 0;
  Record record{};
};

// Reads one line: a finding where it is no record, or a field that every record has is missing or of another kind.
bool audit_line(std::string_view text, Line& out, std::vector<Finding>& found);
// What is wrong with records that were read, each alone and with the others of its row and run.
void audit(std::span<const Line>, std::vector<Finding>& found);
// Both, of a file; lines that are empty are skipped, and an unfinished last one is a caution.
Status audit_file(const std::string& path, std::vector<Line>& lines, std::vector<Finding>& found);

std::vector<std::string> finding_names();

// Where a peer and what it is compared with meet: the same problem, measured in the same way.
std::string row_key(const Record&);

}  // namespace attune
