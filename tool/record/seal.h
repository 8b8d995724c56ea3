// SPDX-License-Identifier: Apache-2.0
// Seals chain the records of a run, so that an edit, a drop, a copy or another order shows. The last member of a
// line is its seal: SHA-256, in hex, of the bytes of the line before that member. These bytes hold `previous`, the
// seal of the record before it: "" in the first record of a run, except that a resumed run continues the last record
// of the file. The first record holds planned_rows, and the last one closes the run. Anyone can compute a seal, so
// it tells that a file was not changed by accident or by halves; who wrote it is told by a signature
// (check/signature.h).
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "tool/record/record.h"

namespace attune {

inline constexpr std::string_view kSealBegin = ",\"seal\":\"", kSealEnd = "\"}";

// The seal that the text of this line gives; "" if it does not end with one.
std::string seal_of(std::string_view line);

// Seals the rows of one run, in the order in which they are written.
class Chain {
 public:
  Chain(size_t planned_rows, std::string after) : planned_(planned_rows), previous_(std::move(after)) {}
  void add(std::span<Record> row);

 private:
  size_t planned_, rows_ = 0;
  std::string previous_;
};

}  // namespace attune
