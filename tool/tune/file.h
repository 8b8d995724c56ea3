// SPDX-License-Identifier: Apache-2.0
// A tuned file as `tune` writes it: for each key a sentence, its rules, and the rows behind them as comments. One file
// thus holds a choice and its reasons; the planner reads only the rules.
#pragma once
#include "plan/rules.h"
#include "tool/tune/curves.h"

namespace attune {

// A key and the decision for it.
struct TunedKey {
  RuleKey key{};
  std::string sentence{};        // "against cuda_standard, margin 20 %: sm90_forward from 512, vendor_cudnn never"
  std::vector<Rule> rules{};
  std::vector<std::string> rows{};  // lines without the leading "# row"
  std::optional<int> from{};        // smallest threshold of any backend; only for keys decided now
  bool decided = false;             // decided by this measurement, between at least two backends
};

struct TunedFile {
  std::string device{}, measured{};
  std::vector<TunedKey> keys{};
  std::vector<Rule> rules() const;
};

// Decides every key. `before` holds the rules in use: their choices stay until a measurement contradicts them.
TunedFile tune(const DeviceCurves&, const std::vector<Rule>& before, const TuneSettings&);
// Keeps the old keys without a new decision; old buckets that overlap a key with new rules are dropped.
void keep(const TunedFile& before, TunedFile& now);

std::string to_text(const TunedFile&);
// Parses what to_text wrote, or a file of rules alone, whose keys then have no sentence and no rows.
Status from_text(std::string_view text, std::string_view path, TunedFile& out);
const TunedKey* find(const TunedFile&, const Problem&);

}  // namespace attune
