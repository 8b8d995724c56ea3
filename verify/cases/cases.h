// The cases that decide what is right, shared by the tests, `attune parity` and the benchmarks. A case is a problem
// line and a few words on the arguments; it prints to one line, and that line is the command that repeats it:
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
  bool large = false;  // not on a CPU, every level of which would take seconds
};

std::string name(const Variation&);  // "" where nothing is said
std::string name(const Case&);
Status parse(std::string_view text, Case& out);

// One setting at a time (every option and mask with every pass, dtype and key source), then every two settings of any
// two axes together (pairwise, from several seeds), then lines that once were or may be trouble.
std::vector<Case> cases(bool quick = false);
std::span<const std::string_view> nasty_lines();  // the last of these, as they are written down
std::span<const std::string_view> nsa_lines();    // native sparse attention, its words and the whole
std::span<const std::string_view> tile_lines();   // what large tiles notice
std::span<const std::string_view> large_lines();  // what as many of them notice as a GPU has under way
std::span<const std::string_view> large_logit_lines();    // logits whose last place is worth many weights

// Those of a variant, in its own file: each is run with both passes and with f32, f16 and bf16.
struct VariantLine { std::string_view sizes, variant, variation; };
std::span<const VariantLine> adaptive_lines();
std::span<const VariantLine> dilated_lines();
std::vector<std::string> with_passes(std::string_view word, std::span<const VariantLine>);

// What a case can be filed under, as rows of `attune parity --coverage`: "softcap", "window", "gqa", ...
struct Topic {
  std::string_view word;
  bool (*has)(const Problem&);
  void (*set)(Problem&);  // the plainest problem of the topic, from a plain one
};
const std::vector<Topic>& topics();
std::vector<Topic> with_nsa_topics(std::vector<Topic>);  // and the words of native sparse attention
// The plainest problem of a cell; not always a valid one.
Problem plainest(const Topic&, Pass, DType, KeySource);

}  // namespace attune
