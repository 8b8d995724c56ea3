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
    "  formula  your own mask and score: mask{q>=k && doc[q]==doc[k]} score{s + slope[h]*(k-q)}\n"
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

namespace {

std::string caret(std::string_view line, const LinePlace& place) {
  constexpr size_t kWidest = 160;  // a longer line would wrap, and the caret would point elsewhere
  if (!place.known || line.size() > kWidest || line.find_first_of("\t\n") != line.npos || shown(line) != line)
    return "";
  const size_t at = display_width(line.substr(0, place.at)), wide = display_width(line.substr(place.at, place.length));
  return join("\n  ", line, "\n  ", std::string(at + !place.length, ' '), "^",
              std::string(std::max<size_t>(wide, 1) - 1, '~'));
}

}  // namespace

std::string caret_below(std::string_view line) {
  Problem p;
  LinePlace place;
  return parse(line.substr(0, line.find(" | ")), p, place).ok() ? "" : caret(line, place);
}

std::string meant_module(std::string_view line) {
  constexpr std::string_view kKinds[] = {"multihead", "feed_forward", "longnet_encoder", "longnet_decoder", "llama"};
  for (const std::string_view pass : {"forward ", "backward "})
    if (line.starts_with(pass)) line.remove_prefix(pass.size());
  const std::string_view word = line.substr(0, line.find(' ')), best = closest_word(word, kKinds);
  return best.empty() || best == word ? "" : join("'", word, "' is not a pass, dtype or module; did you mean '", best,
                                                  "'?");
}

bool read_problem(std::string_view who, const std::vector<std::string>& words, Problem& out, Context& context) {
  std::string line;
  for (const std::string& word : words) line += join(line.empty() ? "" : " ", word);
  LinePlace place;
  const Status s = parse(line, out, place);
  if (s.ok()) return true;
  const std::string_view see = s.message.ends_with('?') ? " See " : "; see ";
  fail(context, kUsage, join(who, ": ", s.message, see, who, " --help", caret(line, place)));
  return false;
}

}  // namespace attune
