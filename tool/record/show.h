// SPDX-License-Identifier: Apache-2.0
// The visible output of a benchmark: progress on a terminal, one line per record otherwise, and a table at the end.
#pragma once
#include <cstdio>
#include <string>
#include <vector>

#include "tool/record/record.h"

namespace attune {

bool colour_wanted(bool terminal);  // respects NO_COLOR, see no-color.org

// On a terminal, a growing table with one overwritten line below it; otherwise one line per record.
class Progress {
 public:
  Progress(bool live, double total_weight, size_t rows);
  void begin(const std::string& row, double weight, double now_s);
  void share(double part, double now_s);  // progress within the row, 0 ... 1
  void end(const std::vector<Record>&);
  void kept(const std::vector<Record>&);  // rows of an earlier run: a live table has them too
  void clear() const;

 private:
  bool live_;
  double total_, done_ = 0, weight_ = 0, start_s_ = -1, shown_s_ = -1;
  size_t rows_, row_ = 0, subjects_ = 0;
  int width_;
  std::string name_{};
};

std::string row_text(const Record&);  // one line, for logs

struct TableLook {
  bool colour = false;
  int width = 0;       // 0: no limit
  std::string base{};  // names the counterparts, see ranking.h
};
std::string table(const std::vector<Record>&, const TableLook& = {});
std::string duration_text(double seconds);  // "1:05", "2:03:04"

}  // namespace attune
