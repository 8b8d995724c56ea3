// SPDX-License-Identifier: Apache-2.0
// Text to tree. Precedence, lowest first: ?: || && comparison + * unary; a comparison does not chain.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <vector>

#include "core/formula/formula.h"
#include "core/formula/words.h"
#include "core/problem_line.h"

namespace attune {
namespace {

using Word = std::string_view;
constexpr int kMostDepth = 48;  // of nested parentheses, and of operands
constexpr size_t kMostName = 24;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || c == '_'; }
bool continues_name(char c) { return is_letter(c) || is_digit(c) || (c >= 'A' && c <= 'Z'); }

struct Parser {
  Word text;
  Formula& f;
  bool score;  // reads a score, not a mask
  size_t at = 0;
  int depth = 0;
  std::string wrong{};
  FormulaPlace place{};

  void skip() {
    while (at < text.size() && (text[at] == ' ' || text[at] == '\t')) ++at;
  }
  // After the first mistake every step is a no-op that returns node 0.
  int refuse(FormulaPlace where, const auto&... why) {
    if (wrong.empty()) wrong = join(why...), place = where;
    at = text.size();
    return 0;
  }
  bool take(Word symbol) {
    skip();
    if (!text.substr(at).starts_with(symbol)) return false;
    at += symbol.size();
    return true;
  }
  FormulaPlace here() {
    skip();
    return {at, at < text.size() ? size_t(1) : 0};
  }
  std::string found() {
    skip();
    if (at >= text.size()) return "the end";
    const unsigned char c = static_cast<unsigned char>(text[at]);
    if (c < 32 || c >= 127) return "a character that formulas do not have";
    size_t end = at + 1;
    if (continues_name(text[at]))
      while (end < text.size() && end < at + kMostName && continues_name(text[end])) ++end;
    return join("'", text.substr(at, end - at), "'");
  }

  int add(FormulaNode node) {
    if (!wrong.empty()) return 0;
    if (f.nodes == kMostNodes)
      return refuse({at, 0}, "has more than ", kMostNodes, " parts; a formula has at most that many");
    f.node[f.nodes] = node;
    return f.nodes++;
  }
  bool truth(int node) const { return f.nodes > node && f.node[node].truth; }
  Word since(size_t from) const { return text.substr(from, at - from); }

  // Operands must all be truths, or all numbers.
  bool require(bool wants_truth, int node, size_t from, Word who) {
    if (!wrong.empty() || truth(node) == wants_truth) return wrong.empty();
    const FormulaPlace all{from, at - from};
    if (wants_truth) refuse(all, "is a number, where ", who, " takes a truth; compare it, as in x != 0");
    else refuse(all, "is a truth, where ", who, " takes a number; write condition ? 1 : 0");
    return false;
  }
  int binary(Op op, int a, int b, bool is_truth) {
    return add({.op = op, .operands = 2, .truth = is_truth, .operand = {int16_t(a), int16_t(b)}});
  }

  int expression() {
    if (++depth > kMostDepth) return refuse(here(), "is nested more than ", kMostDepth, " deep");
    const int node = choice();
    --depth;
    return node;
  }
  int choice() {
    skip();
    const size_t from = at;
    const int condition = either();
    if (!take("?")) return condition;
    if (!require(true, condition, from, "the condition of ?:")) return 0;
    skip();
    const size_t begin = at;
    const int yes = expression();
    if (!take(":")) return refuse(here(), "found ", found(), " where the ':' of '?' belongs");
    const int no = expression();
    if (wrong.empty() && truth(yes) != truth(no))
      return refuse({begin, at - begin}, "has a truth on one side of ':' and a number on the other");
    return add({.op = Op::choose, .operands = 3, .truth = truth(yes),
                .operand = {int16_t(condition), int16_t(yes), int16_t(no)}});
  }
  int either() { return logical(Op::either, "||", [&] { return both(); }); }
  int both() { return logical(Op::both, "&&", [&] { return comparison(); }); }
  template <class Next>
  int logical(Op op, Word symbol, Next next) {
    skip();
    const size_t from = at;
    int left = next();
    while (wrong.empty() && take(symbol)) {
      if (!require(true, left, from, symbol)) return 0;
      skip();
      const size_t begin = at;
      const int right = next();
      if (!require(true, right, begin, symbol)) return 0;
      left = binary(op, left, right, true);
    }
    if (wrong.empty() && at < text.size() && text[at] == symbol[0])
      return refuse(here(), "has a single '", text[at], "'; truths are joined by && and ||");
    return left;
  }
  int comparison() {
    skip();
    const size_t from = at;
    const int left = sum();
    const FormulaWord* op = take_of(kComparisons);
    if (!op) {
      if (wrong.empty() && at < text.size() && text[at] == '=')
        return refuse(here(), "has a single '='; a comparison is ==, and nothing is assigned");
      return left;
    }
    if (!require(false, left, from, op->text)) return 0;
    skip();
    const size_t begin = at;
    const int right = sum();
    if (!require(false, right, begin, op->text)) return 0;
    skip();
    const size_t next = at;
    if (take_of(kComparisons)) return refuse({next, at - next}, "chains comparisons; write a<b && b<c");
    return binary(op->op, left, right, true);
  }
  template <size_t N>
  const FormulaWord* take_of(const FormulaWord (&words)[N]) {  // longer symbols come first
    for (const FormulaWord& w : words)
      if (wrong.empty() && take(w.text)) return &w;
    return nullptr;
  }
  int sum() { return chain(kSums, [&] { return product(); }); }
  int product() { return chain(kProducts, [&] { return unary(); }); }
  template <size_t N, class Next>
  int chain(const FormulaWord (&words)[N], Next next) {
    skip();
    const size_t from = at;
    int left = next();
    while (const FormulaWord* op = take_of(words)) {
      if (!require(false, left, from, op->text)) return 0;
      skip();
      const size_t begin = at;
      const int right = next();
      if (!require(false, right, begin, op->text)) return 0;
      left = binary(op->op, left, right, false);
    }
    return left;
  }
  int unary() {
    skip();
    const bool opposite = at < text.size() && text[at] == '!' && text.substr(at, 2) != "!=";
    if (!opposite && !text.substr(at).starts_with('-')) return primary();
    if (++depth > kMostDepth) return refuse(here(), "is nested more than ", kMostDepth, " deep");
    ++at;
    skip();
    const size_t from = at;
    const int of = unary();
    --depth;
    if (!require(opposite, of, from, opposite ? "!" : "-")) return 0;
    return add({.op = opposite ? Op::opposite : Op::negative, .operands = 1, .truth = opposite,
                .operand = {int16_t(of)}});
  }
  int primary() {
    skip();
    if (at >= text.size()) return refuse({at, 0}, at ? "ends where a value belongs" : "is empty");
    if (take("(")) {
      const int inside = expression();
      return take(")") ? inside : refuse(here(), "found ", found(), " where a ')' belongs");
    }
    if (is_digit(text[at]) || text[at] == '.') return number();
    if (is_letter(text[at])) return name();
    if (text[at] >= 'A' && text[at] <= 'Z') return refuse(here(), "has a capital letter; names begin with a-z or _");
    return refuse(here(), "found ", found(), " where a value belongs");
  }
  int number() {
    double x = 0;
    const size_t from = at;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), x);
    at = size_t(end - text.data());
    if (error == std::errc::result_out_of_range)
      return refuse({from, at - from}, "has a number that is not a double; inf is infinity");
    if (error != std::errc{} || (at < text.size() && continues_name(text[at])))
      return at = std::max(at, from + 1), refuse({from, at - from}, "has a wrong number; 12, 0.5 and 1e-3 are right");
    return add({.number = x});
  }
  // What says the same here; "" for any other word.
  static Word of_other_languages(Word word) {
    constexpr std::pair<Word, Word> kWords[] = {{"and", "&&"}, {"or", "||"}, {"not", "!"}, {"if", "c ? x : y"},
                                                {"else", "c ? x : y"}, {"where", "c ? x : y"}, {"pow", "s*s"}};
    for (const auto& [theirs, ours] : kWords)
      if (word == theirs) return ours;
    return "";
  }
  // Text behind a whole expression.
  void refuse_rest() {
    const FormulaPlace place = here();
    const std::string what = found();
    size_t end = at;
    while (end < text.size() && continues_name(text[end])) ++end;
    const Word ours = text[at] == '^' ? "x*x for a power" : of_other_languages(text.substr(at, end - at));
    refuse(place, "found ", what, " behind the end of the expression", ours.empty() ? "" : join("; write ", ours));
  }
  int name() {
    const size_t from = at;
    while (at < text.size() && continues_name(text[at])) ++at;
    const Word word = since(from);
    const FormulaPlace all{from, word.size()};
    skip();
    const bool calls = at < text.size() && text[at] == '(', indexes = at < text.size() && text[at] == '[';
    const FormulaWord* known = find(calls ? std::span<const FormulaWord>(kFunctions) : kNames, word);
    if (indexes) return element(word, all);
    if (known && calls) return call(*known, all);
    if (known && known->op == Op::s && !score) return refuse(all, "is the logit, which a mask does not see");
    if (known) return add({.op = known->op, .number = known->op == Op::number ? INFINITY : 0});
    return unknown(word, all, calls);
  }
  int unknown(Word word, FormulaPlace all, bool calls) {
    std::vector<Word> candidates;
    std::string accepted;
    for (const FormulaWord& w : calls ? std::span<const FormulaWord>(kFunctions) : kNames)
      if (w.op != Op::s || score) candidates.push_back(w.text), accepted += join(accepted.empty() ? "" : ", ", w.text);
    Word near = closest_word(word, candidates);
    if (word == "i" || word == "j") near = word == "i" ? "q" : "k";  // as elsewhere
    const Word ours = of_other_languages(word);
    if (!ours.empty()) return refuse(all, "is not ", calls ? "a function" : "a name", "; write ", ours);
    if (calls)
      return refuse(all, "is not a function; accepted are ", accepted, ", and arrays with an index, such as ",
                    word.substr(0, kMostName), "[q]", near.empty() ? "" : join("; did you mean '", near, "'?"));
    return refuse(all, "is not a name; accepted are ", accepted, ", and arrays with an index, such as ",
                  word.substr(0, kMostName), "[q]", near.empty() ? "" : join("; did you mean '", near, "'?"));
  }
  int call(const FormulaWord& w, FormulaPlace all) {
    take("(");
    const int want = w.op == Op::minimum || w.op == Op::maximum ? 2 : 1;
    FormulaNode node{.op = w.op};
    do {
      if (node.operands == want) break;
      skip();
      const size_t from = at;
      const int value = expression();
      if (!require(false, value, from, w.text)) return 0;
      node.operand[node.operands++] = int16_t(value);
    } while (take(","));
    if (node.operands != want || !take(")"))
      return refuse(wrong.empty() ? here() : all, "has a wrong number of values; ", w.text, " takes ", want,
                    "; found ", found());
    return add(node);
  }
  int element(Word word, FormulaPlace all) {
    if (find(kNames, word) || find(kFunctions, word)) return refuse(all, "is not an array; its name is taken");
    if (word.size() > kMostName)
      return refuse(all, "is a name of ", word.size(), " characters; an array's has at most ", kMostName);
    if (std::any_of(word.begin(), word.end(), [](char c) { return c >= 'A' && c <= 'Z'; }))
      return refuse(all, "has a capital letter; names have a-z, 0-9 and _");
    take("[");
    FormulaNode node{.op = Op::element};
    do {
      skip();
      const size_t from = at;
      if (node.operands == kMostIndices)
        return refuse(here(), "has more than ", kMostIndices, " indices");
      const int index = expression();
      if (!require(false, index, from, "an index")) return 0;
      if (depends_on(f, index, Op::s)) return refuse({from, at - from}, "is an index that depends on s");
      node.operand[node.operands++] = int16_t(index);
    } while (take(","));
    if (!take("]")) return refuse(here(), "found ", found(), " where a ',' or ']' belongs");
    if (here(); at < text.size() && text[at] == '[')
      return refuse(here(), "has a second '['; indices are separated by commas, as in ", word, "[b,q]");
    node.array = uint8_t(array_of(word, node.operands, all));
    return add(node);
  }
  int array_of(Word word, int indices, FormulaPlace all) {
    for (int n = 0; n < f.arrays; ++n) {
      if (f.array[n].name != word) continue;
      f.array[n].in_score |= score;
      if (f.array[n].indices != indices)
        refuse(all, "has ", indices, indices == 1 ? " index" : " indices", " here and ", f.array[n].indices, " before");
      return n;
    }
    if (f.arrays == kMostArrays)
      return refuse(all, "is array ", kMostArrays + 1, "; a formula has at most ", kMostArrays);
    if (wrong.empty()) f.array[f.arrays] = {.name = word, .indices = indices, .in_score = score}, ++f.arrays;
    return f.arrays - 1;
  }

  static const FormulaWord* find(std::span<const FormulaWord> words, Word word) {
    for (const FormulaWord& w : words)
      if (w.text == word) return &w;
    return nullptr;
  }
};

Status read(std::string_view text, Formula& out, bool score, FormulaPlace& place) {
  const Word who = score ? "score" : "mask";
  place = {};
  if (text.size() > kMostFormulaText)
    return Status::no(who, ": is ", text.size(), " characters long; at most ", kMostFormulaText, " are accepted");
  Parser p{text, out, score};
  const int root = p.expression();
  p.skip();
  if (p.wrong.empty() && p.at < text.size())
    p.refuse_rest();
  if (p.wrong.empty() && bool(out.node[root].truth) == score)
    p.refuse({0, text.size()},
             score ? "is a truth; a score is a number" : "is a number; a mask is a truth, as in q>=k");
  if (!p.wrong.empty()) {
    place = p.place;
    std::string word = std::string(text.substr(std::min(place.at, text.size()), std::min<size_t>(place.length, 40)));
    for (char& c : word)
      if (static_cast<unsigned char>(c) < 32 || static_cast<unsigned char>(c) >= 127) c = '?';
    const bool named = !word.empty() && !p.wrong.starts_with("found") && !p.wrong.starts_with("has");
    return Status::no(who, ": ", named ? join("'", word, "' ") : std::string(), p.wrong);
  }
  (score ? out.score : out.mask) = root;
  return Status::good();
}

}  // namespace

Status read_mask(std::string_view text, Formula& out, FormulaPlace& place) { return read(text, out, false, place); }
Status read_score(std::string_view text, Formula& out, FormulaPlace& place) { return read(text, out, true, place); }

bool depends_on(const Formula& f, int root, Op leaf) {
  bool needed[kMostNodes] = {};
  needed[root] = true;
  for (int n = root; n >= 0; --n) {
    if (!needed[n]) continue;
    if (f.node[n].op == leaf) return true;
    for (int i = 0; i < f.node[n].operands; ++i) needed[f.node[n].operand[i]] = true;
  }
  return false;
}

}  // namespace attune
