// Tuned rules: what was measured on a machine, as a file the planner loads: docs/measuring.md.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/problem.h"

namespace attune {

// Up to this many queries a forward is a decode step: other kernels win there than where queries are as many as keys.
inline constexpr int32_t kDecodeQueries = 16;

// "On this device, problems of this kind with at least `min_len` keys, and `min_work` of them in all heads, go to
// `backend`." Of block lists, keys that stand apart and variants a rule says nothing.
struct Rule {
  Pass pass = Pass::forward;
  DType dtype = DType::none;                    // of q
  int32_t dim_qk = 0, dim_v = 0;
  MaskKind mask = MaskKind::full;
  int64_t min_heads = 1, max_heads = INT64_MAX; // batch * heads_q, inclusive
  bool decode = false;                             // at most kFewQueries queries, or more
  int32_t min_len = 1;                          // len_k from which the rule holds
  int64_t min_work = 0;                         // batch * heads_q * len_k from which it does; 0: any
  std::string backend{};
  std::string source{};                         // file:line it was read from
};

// The rules of one file, and for which device they were measured.
struct Tuned {
  std::string device{};    // Device::name
  std::string measured{};  // when, by which commit: free text
  std::vector<Rule> rules{};
};

// Every mistake names file and line.
Status read_tuned(std::string_view text, std::string_view file, Tuned& out);
std::string write_tuned(const Tuned&);
std::string line_of(const Rule&);  // as in a file, without its end
bool is_ruled(const Problem&);     // whether any rule could match it

int64_t least_keys(const Rule&, int64_t heads);  // len_k from which it holds for that batch * heads_q

// The rule that decides: of those that match, the one with the largest min_len; of equals, the one with the largest
// min_work; of equals, the last.
const Rule* match(const Problem&, std::span<const Rule>);

}  // namespace attune
