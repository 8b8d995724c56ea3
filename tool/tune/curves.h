// SPDX-License-Identifier: Apache-2.0
// Turns records into the curves on which thresholds are found: which rows belong together, and which count.
#pragma once
#include <map>

#include "plan/rules.h"
#include "tool/record/record.h"
#include "tool/tune/threshold.h"

namespace attune {

// The kind of problems that one rule decides.
struct RuleKey {
  Pass pass = Pass::forward;
  DType dtype = DType::none;
  int32_t dim_qk = 0, dim_v = 0;
  MaskKind mask = MaskKind::full;
  bool decode = false;  // at most kDecodeQueries queries
  bool apart = false;   // compressed keys: rules do not cover them, but the YAML export does
  int64_t min_heads = 1, max_heads = INT64_MAX;
  auto operator<=>(const RuleKey&) const = default;
};
std::string name(const RuleKey&);  // "forward bf16 d128 causal heads 1-16"

// One backend in one row, as written into a tuned file.
struct Evidence {
  std::string problem{}, timing{}, backend{};
  int length = 0;        // length of the row
  int64_t work = 0;      // batch * heads * keys
  double median_ns = 0;  // 0: not measured
  Ratio speed_up{};      // over the baseline; confidence 0 if there is none
  std::string note{};    // why it does not count
};

struct KeyCurves {
  RuleKey key{};
  Curves curves{};
  Curves by_work{};       // the same rows by work
  std::vector<Evidence> rows{};
  std::string without{};  // the requested baseline if no row has it; `curves` then have no baseline
};

struct DeviceCurves {
  std::string device{};    // Device::name
  std::string measured{};  // "2026-11-15T12:00:00Z commit abc1234", of the newest record that counts
  std::vector<KeyCurves> keys{};
};

struct GatherSettings {
  std::vector<int> buckets{1, 17, 65, 257};  // first values of the buckets of batch * heads
  std::string against{};   // baseline; empty: the standard backend, else the first of the list
  std::string timing{};    // cold, warm, graph; empty: cold on a GPU and warm on a CPU, if measured
  std::vector<std::string> only{};  // only these subjects, which may be peers; empty: every backend that is chosen
  bool by_window = false;  // the length of a row with a window is the number of keys that a query sees
};

struct Gathered {
  std::vector<DeviceCurves> devices{};
  std::map<std::string, int> left_out{};  // number of records by reason
};

// The last of several records of a row and backend counts; on a CPU only records with the most threads count.
Gathered gather(const std::vector<Record>&, const GatherSettings&);

// The key of a problem, or the reason why tuning does not support it.
Status key_of(const Problem&, const std::vector<int>& buckets, RuleKey& out);
bool counts(const Record&, std::string& why_not);  // true if measured and correct

}  // namespace attune
