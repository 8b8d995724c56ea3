// SPDX-License-Identifier: Apache-2.0
#include "tool/line.h"

#include <algorithm>

#include "core/problem_line.h"
#include "tool/table.h"
#include "tool/terminal.h"

namespace attune {

const char* const kLineGrammar =
    "A line is: forward|backward dtype b<batch> h<heads>[/<KV heads>] q<queries> k<keys> d<dim>[/<dim of v>] mask.\n"
    "  dtype    f32, f16, bf16, e4m3, f64, or q/kv/out (backward: q/kv/out/grad)\n"
    "  mask     full, causal, window<left>,<right>; then @top_left, @absolute, /<step>+<phase>\n"
    "  options  blocks<q>x<k>x<most>, softcap, alibi, bias[.<dtype>], dropout, sink, accumulate, append, rotary,\n"
    "           rotary_half, descale, block_bias, ragged, paged<size>, repro=run|batch, precision=tf32|tf32x3\n"
    "  variant  last, after ' : ': nsa, dilated, adaptive, ring and their parts, with name=value\n"
    "Words after the dtype may come in any order; the quotes are optional.\n";

std::vector<std::string> lines_of(const std::vector<std::string>& words) {
  std::vector<std::string> lines;
  bool open = false;  // the last line takes more words
  for (const std::string& word : words) {
    const bool begins = word == "forward" || word == "backward" || word == "train", whole = word.find(' ') != word.npos;
    if (open && !begins && !whole) lines.back() += " " + word;
    else lines.push_back(word), open = begins;
  }
  return lines;
}

bool read_problem(std::string_view who, const std::vector<std::string>& words, Problem& out, Context& context) {
  std::string line;
  for (const std::string& word : words) line += join(line.empty() ? "" : " ", word);
  LinePlace place;
  const Status s = parse(line, out, place);
  if (s.ok()) return true;
  std::string caret;
  constexpr size_t kWidest = 160;  // a longer line would wrap, and the caret would point elsewhere
  if (place.known && line.size() <= kWidest && line.find_first_of("\t\n") == line.npos && shown(line) == line) {
    const std::string_view before = std::string_view(line).substr(0, place.at);
    const size_t at = display_width(before);
    const size_t wide = display_width(std::string_view(line).substr(place.at, place.length));
    caret = join("\n  ", line, "\n  ", std::string(at + !place.length, ' '), "^",
                 std::string(std::max<size_t>(wide, 1) - 1, '~'));
  }
  const std::string_view see = s.message.ends_with('?') ? " See " : "; see ";
  fail(context, kUsage, join(who, ": ", s.message, see, who, " --help", caret));
  return false;
}

}  // namespace attune
