// From records to the curves that thresholds are found on: which rows belong together, and which count.
#pragma once
#include <map>

#include "plan/rules.h"
#include "tool/record/record.h"
#include "tool/tune/threshold.h"

namespace attune {

// Problems that one rule decides.
struct RuleKey {
  Pass pass = Pass::forward;
  DType dtype = DType::none;
  int32_t dim_qk = 0, dim_v = 0;
  MaskKind mask = MaskKind::full;
  bool decode = false;    // queries
  bool apart = false;  // compressed keys: no rule holds for them, and an export does
  int64_t min_heads = 1, max_heads = INT64_MAX;
  auto operator<=>(const RuleKey&) const = default;
};
std::string name(const RuleKey&);  // "forward bf16 d128 causal heads 1-16"

// One backend in one row, as it stands in a tuned file.
struct Evidence {
  std::string problem{}, timing{}, backend{};
  int length = 0;        // of the row
  int64_t work = 0;      // batch * heads * keys
  double median_ns = 0;  // 0: it was not measured
  Ratio speed_up{};      // over the baseline; a confidence of 0: there is none
  std::string note{};    // why it does not count
};

struct KeyCurves {
  RuleKey key{};
  Curves curves{};
  Curves by_work{};  // of the same rows
  std::vector<Evidence> rows{};
  std::string without{};  // the baseline that was asked for and that no row has; `curves` have none then
};

struct DeviceCurves {
  std::string device{};  // Device::name
  std::string measured{};  // "2026-11-15T12:00:00Z commit abc1234": of the newest record that counts
  std::vector<KeyCurves> keys{};
};

struct GatherSettings {
  std::vector<int> buckets{1, 17, 65, 257};  // where buckets of batch * heads begin
  std::string against{};  // baseline; empty: the standard one, else the first in the order of the backends
  std::string timing{};   // cold, warm, graph; empty: cold of a GPU and warm of a CPU, where that is there
  bool by_window = false; // the length of a row is the keys that a query sees, where a window has fewer than there are
};

struct Gathered {
  std::vector<DeviceCurves> devices{};
  std::map<std::string, int> left_out{};  // why, and how many records
};

// Of records of the same row and backend the last counts, of a CPU those with most threads.
Gathered gather(const std::vector<Record>&, const GatherSettings&);

// The key of a problem that tuning takes, or the reason that it does not.
Status key_of(const Problem&, const std::vector<int>& buckets, RuleKey& out);
bool counts(const Record&, std::string& why_not);  // measured, and found right

}  // namespace attune
