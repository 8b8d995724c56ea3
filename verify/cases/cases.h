// SPDX-License-Identifier: Apache-2.0
// The cases that define correctness, shared by the tests, `attune parity` and the benchmarks. A case is a problem line
// and a few words about its arguments. It prints to one line, which is the command that repeats it:
//   attune parity --case "forward bf16 b2 h4/2 q31 k129 d64 causal | seed=3 drawn bhsd cache"
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem.h"
#include "verify/world.h"

namespace attune {

struct Case {
  Problem problem{};
  Variation variation{};
  bool quick = false;  // also in the short list
  bool large = false;  // not for CPUs, where every level would take seconds
};

std::string name(const Variation&);  // "" for the default
std::string name(const Case&);
Status parse(std::string_view text, Case& out);

// First one setting at a time (every option and mask with every pass, dtype and key source), then every two settings of
// any two axes together (pairwise, from several seeds), then lines that caused or may cause trouble.
std::vector<Case> cases(bool quick = false);
std::span<const std::string_view> nasty_lines();        // the last of these, as written
std::span<const std::string_view> nsa_lines();          // Native Sparse Attention, its words and the whole
std::span<const std::string_view> tile_lines();         // lines that exercise large tiles
std::span<const std::string_view> large_lines();        // lines that exercise as many tiles as a GPU has in flight
std::span<const std::string_view> large_logit_lines();  // logits whose ulp is worth many weights

// Lines of a variant, in its own file: each runs with both passes and with f32, f16 and bf16.
struct VariantLine { std::string_view sizes, variant, variation; };
std::span<const VariantLine> adaptive_lines();
std::span<const VariantLine> dilated_lines();
std::vector<std::string> formula_lines();  // the same of masks and scores, whole
std::vector<std::string> with_passes(std::string_view word, std::span<const VariantLine>);

// A category of cases, one row of `attune parity --coverage`: "softcap", "window", "gqa", ...
struct Topic {
  std::string_view word;
  bool (*has)(const Problem&);
  void (*set)(Problem&);  // turns a plain problem into the plainest one of the topic
};
const std::vector<Topic>& topics();
std::vector<Topic> with_nsa_topics(std::vector<Topic>);  // adds the words of Native Sparse Attention
// The plainest problem of a cell; not always valid.
Problem plainest(const Topic&, Pass, DType, KeySource);

}  // namespace attune
