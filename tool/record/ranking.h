// SPDX-License-Identifier: Apache-2.0
// Rows across lines: what native sparse attention, dilated attention, block lists, windows, ranks and modules gain over
// their counterpart, the row of the same sizes that computes all of attention; and implementations ranked by speed and
// by memory over all sizes that were measured.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "tool/record/record.h"

namespace attune {

struct Counterpart {
  const Record* base = nullptr;  // null: none was measured, or it is this row
  Ratio ratio{};                 // time of the counterpart / time of this one; not interleaved, so it has no verdict
};
// In the order of the records. `base` names the counterpart: an implementation, what it computes, or a subject
// ("dense", "dilated rates=1,2", "torch:sdpa"); empty: the fastest dense row of ours, or of modules the dense module.
std::vector<Counterpart> counterparts(const std::vector<Record>&, const std::string& base = {});

// One implementation of one kind of problems: "dilated: rates=1,2,4 segments=1024,2048,4096".
struct Ranked {
  std::string name{};
  bool is_base = false;
  int rows = 0;                        // sizes at which it and the base were measured
  double speed_up = 0, least = 0, most = 0;  // geometric mean over these, and its range
  double memory = 0;                   // memory of the base / its own, geometric mean; 0: unknown
  int by_speed = 0, by_memory = 0;     // places from 1; equal numbers share one; 0: unknown
};
struct Ranking {
  std::string title{}, base{};         // "forward, cold, NVIDIA H200", "the fastest dense row of each size"
  int sizes = 0;
  std::vector<Ranked> all{};           // the fastest first
};
// One for each pass, timing and device where at least two implementations compute the same sizes differently.
std::vector<Ranking> rankings(const std::vector<Record>&, const std::string& base = {});
// "" without rankings.
std::string ranking_text(const std::vector<Ranking>&, int width = 0);  // 0: no limit

// Refuses a name that none of these records has or computes.
Status is_base(const std::string& base, const std::vector<Record>&);

// What a record computes: "dense", "window127,0", "nsa d=16 ...", "random density=0.1", "multihead dense".
std::string what_of(const Record&);

}  // namespace attune
