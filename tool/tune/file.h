// A tuned file as `tune` writes it: each key's sentence, its rules, and the rows behind them as comments, so that one
// file holds a choice and its reasons, and the planner reads only the rules.
#pragma once
#include "plan/rules.h"
#include "tool/tune/curves.h"

namespace attune {

// A key with what was decided for it.
struct TunedKey {
  RuleKey key{};
  std::string sentence{};        // "against cuda_standard, margin 20 %: sm90_forward from 512, vendor_cudnn never"
  std::vector<Rule> rules{};
  std::vector<std::string> rows{};  // lines, without "# row" before them
  std::optional<int> from{};        // the smallest threshold of any backend; of a key that was decided just now
  bool decided = false;             // by this measurement, between two backends or more
};

struct TunedFile {
  std::string device{}, measured{};
  std::vector<TunedKey> keys{};
  std::vector<Rule> rules() const;
};

// Decides every key. `before` are the rules in use: what they chose stays until the measurement says otherwise.
TunedFile tune(const DeviceCurves&, const std::vector<Rule>& before, const TuneSettings&);
// Keys that nothing was decided for now stay as they were; buckets that overlap one with new rules go.
void keep(const TunedFile& before, TunedFile& now);

std::string to_text(const TunedFile&);
// For systems that switch a fused kernel on from a length: of sliding windows by the keys a query sees, of compressed
// keys by their number. The largest threshold of all keys, so that it holds for each; -1 where one has none.
std::string to_yaml(const TunedFile& by_window, const TuneSettings&);
// Of what to_text wrote, or a file of rules alone: those make keys without a sentence and rows.
Status from_text(std::string_view text, std::string_view path, TunedFile& out);
const TunedKey* find(const TunedFile&, const Problem&);

}  // namespace attune
