// SPDX-License-Identifier: Apache-2.0
// Thresholds between any two subjects, peers too: from which length, window or compressed length on one is faster than
// the other. And thresholds as values of a configuration file.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tool/tune/curves.h"

namespace attune {

// One kind of problems: `faster` beats `baseline` by the margin from this length on, there and at every longer one.
struct Threshold {
  RuleKey key{};
  bool by_window = false;       // lengths are the keys that a query sees, not all keys
  std::vector<int> lengths{};   // measured
  std::vector<double> ratios{}; // time of the baseline / time of the other at each: the geometric mean of its rows
  std::vector<double> lows{};   // lower bound of the ratio at each
  std::optional<int> from{};    // none: never
  std::string why_not{};        // why nothing was decided; empty: decided
};
struct BetweenDevice {
  std::string device{}, measured{};
  std::vector<Threshold> thresholds{};
};
struct Between {
  std::vector<BetweenDevice> devices{};
  std::map<std::string, int> left_out{};
};
// Windows are compared by the keys that a query sees if rows of several windows were measured, else by all keys.
Between between(const std::vector<Record>&, const std::string& faster, const std::string& baseline,
                const GatherSettings&, const TuneSettings&);

// "forward bf16 d64 causal heads 1-16: from 1024 on (512: 1.08x, 1024: 1.41x, 2048: 1.66x)"
std::string text_of(const Threshold&);

// What a key of a configuration file stands for: "runtime.fa2_min_len_win=window".
struct YamlKey {
  std::string path{};
  std::string what{};  // full, causal, window, compressed or all
};
Status read_yaml_key(std::string_view word, YamlKey& out);
// Fails if thresholds of this key are lengths of some problems and keys of a window of others: no value fits both.
Status has_one_unit(const YamlKey&, const std::vector<Threshold>&);
// The value of a key: the largest threshold of its kinds of problems, so that it is valid for each; -1: one has none.
// Nothing if no such row was measured. Windows count where several were measured.
std::optional<int> value_of(const YamlKey&, const std::vector<Threshold>&);

}  // namespace attune
