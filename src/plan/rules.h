// SPDX-License-Identifier: Apache-2.0
// Tuned rules: measurements of one device, as a file that the planner loads. See docs/measuring.md.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/problem.h"

namespace attune {

// A forward with at most this many queries is a decode step, for which other kernels are fastest.
inline constexpr int32_t kDecodeQueries = 16;

// "On this device, problems of this kind with at least `min_len` keys, and `min_work` keys over all heads, go to
// `backend`." Rules do not cover block lists, keys with a k_step above 1, and variants.
struct Rule {
  Pass pass = Pass::forward;
  DType dtype = DType::none;                    // dtype of q
  int32_t dim_qk = 0, dim_v = 0;
  MaskKind mask = MaskKind::full;
  int64_t min_heads = 1, max_heads = INT64_MAX; // batch * heads_q, inclusive
  bool decode = false;                          // at most kDecodeQueries queries; otherwise more
  int32_t min_len = 1;                          // smallest len_k
  int64_t min_work = 0;                         // smallest batch * heads_q * len_k; 0: any
  std::string backend{};
  std::string source{};                         // file:line of the rule
};

// The rules of one file and the device they were measured on.
struct Tuned {
  std::string device{};    // Device::name
  std::string measured{};  // date and commit: free text
  std::vector<Rule> rules{};
};

// Every error names file and line.
Status read_tuned(std::string_view text, std::string_view file, Tuned& out);
std::string write_tuned(const Tuned&);
std::string line_of(const Rule&);  // as in a file, without the line end
bool is_ruled(const Problem&);     // whether any rule could match it

int64_t least_keys(const Rule&, int64_t heads);  // the smallest len_k that the rule covers for that batch * heads_q

// The rule that applies: among the matches, the largest min_len, then the largest min_work, then the last.
const Rule* match(const Problem&, std::span<const Rule>);

}  // namespace attune
