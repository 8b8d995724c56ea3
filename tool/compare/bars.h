// SPDX-License-Identifier: Apache-2.0
// Requirements that records must meet, from a TOML file of the user's own: "sm90_forward at least 1.05 times as fast as
// fa3 at these lengths". A requirement without a row that shows it is not met.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tool/record/record.h"

namespace attune {

// Which rows a bar concerns; what is empty accepts everything.
struct BarRows {
  std::vector<std::string> passes{}, dtypes{}, masks{}, devices{}, timings{}, variants{}, states{};
  std::vector<int64_t> dims{}, lengths{}, queries{}, batches{}, heads{};
  int64_t least_length = 0, most_length = 0;  // 0: no limit
};

struct Bar {
  std::string name{};
  std::string subject{};            // "sm90_forward"; empty: every one of our backends
  std::string over{};               // "fa3"; "peers": the fastest correct peer of each row
  BarRows rows{};
  std::optional<double> ratio{};    // time of `over` / time of the subject, at least, in every row
  std::optional<double> mean{};     // the geometric mean of these ratios, at least
  std::optional<double> share{};    // share of the rows whose ratio must reach `ratio`; 1 without
  std::optional<double> tflops{}, gbs{};          // at least
  std::optional<double> microseconds{};           // at most
  std::optional<double> error{};    // error of a result, in tolerances of its dtype, at most
  bool less_floor = false;          // ratio of times without those of an empty call or kernel
  // Against another row of the subject in the same run and state, whose line has other words: "window*" -> "causal".
  std::vector<std::pair<std::string, std::string>> of{};  // "" as the second: without the word
  std::optional<double> rate{};     // FLOP/s / FLOP/s of that row, at least
  std::optional<double> density{};  // time / (density of the block lists x time without lists), at most
  std::optional<double> unfused{};  // two products at the ceiling and three passes over f32 scores / time, at least
  int count = 1;                    // so many rows must be there
};

// Errors name file, line and key. `others`: keys of another command, which reads the same file.
Status read_bars(const std::string& text, std::string_view file, std::vector<Bar>& out,
                 std::span<const std::string> others = {});

enum class BarStatus { met, missed, unclear, empty };
std::string name(BarStatus);  // "MET"

struct BarResult {
  const Bar* bar = nullptr;
  BarStatus status = BarStatus::empty;
  std::string sentence{};             // "12 rows, least 1.02x, mean 1.07x"
  std::vector<std::string> evidence{};  // a line for each row that is below, or was not measured
  int rows = 0;
};

// The line with its words replaced as `of` says; the same line if no word is among them.
std::string other_line(const std::vector<std::pair<std::string, std::string>>& of, const std::string& line);

// Pure. A ratio below its bar whose interval reaches it is unclear: it decides neither way.
std::vector<BarResult> judge(const std::vector<Bar>&, const std::vector<Record>&);

}  // namespace attune
