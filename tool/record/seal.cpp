// SPDX-License-Identifier: Apache-2.0
#include "tool/record/seal.h"

#include <algorithm>

#include "tool/record/sha256.h"

namespace attune {

std::string seal_of(std::string_view line) {
  constexpr size_t kDigits = 64, kEnd = kSealBegin.size() + kDigits + kSealEnd.size();
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.remove_suffix(1);
  if (line.size() < kEnd || !line.ends_with(kSealEnd)) return "";
  const std::string_view text = line.substr(0, line.size() - kEnd);
  return line.substr(text.size()).starts_with(kSealBegin) ? sha256_hex(text) : "";
}

void Chain::add(std::span<Record> row) {
  const auto is_cut = [](const Record& r) { return r.status == RecordStatus::interrupted; };
  const bool is_last = ++rows_ == planned_ && std::none_of(row.begin(), row.end(), is_cut);
  for (Record& r : row) {
    r.planned_rows = rows_ == 1 && &r == row.data() ? int(planned_) : 0;
    r.closes = is_last && &r == &row.back();
    r.previous = previous_, r.seal.clear();
    std::string text = to_json(r);
    text.pop_back();
    previous_ = r.seal = sha256_hex(text);
  }
}

}  // namespace attune
