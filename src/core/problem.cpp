// SPDX-License-Identifier: Apache-2.0
// Problem <-> one line. Printing follows one grammar in one order:
//   pass dtype b# h#[/#] q# k# d#[/#] mask {option} [ragged|paged#] [repro=run|batch] [precision=tf32|tf32x3]
//   [mask{expression}] [score{expression}] [: variant]
//   dtype   bf16, or q/kv/out, or q/kv/out/grad in a backward
//   mask    full | causal | window#,#   then [@top_left|@absolute] [/step+phase] [ blocks#x#x#]
//   option  softcap | alibi | bias[.dtype] | dropout | ...: in the order of enum Option
// Defaults are not printed, so the common line is short and a new field breaks no existing line. Parsing accepts the
// words after the dtype in any order, because people do not remember one.
#include "core/problem.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "core/dtypes.h"
#include "core/formula/of_problem.h"
#include "core/problem_line.h"
#include "core/variant/variants.h"

namespace attune {
namespace {

using Word = std::string_view;
constexpr Word kPass[] = {"forward", "backward"};
constexpr Word kDType[] = {"none", "f64", "f32", "f16", "bf16", "e4m3", "i32", "i64"};
constexpr Word kMask[] = {"full", "causal", "window"};
constexpr Word kAlign[] = {"@bottom_right", "@top_left", "@absolute"};
constexpr Word kKeys[] = {"linear", "ragged", "paged"};
constexpr Word kRepro[] = {"repro=no", "repro=run", "repro=batch"};
constexpr Word kPrecision[] = {"precision=full", "precision=tf32", "precision=tf32x3"};
constexpr Word kOption[] = {"softcap", "alibi",  "bias",   "dropout",     "sink",
                            "accumulate", "append", "rotary", "rotary_half", "descale", "block_bias"};
static_assert(std::size(kOption) == size_t(Option::count));

template <class E, size_t N>
std::string text(E e, const Word (&words)[N]) { return size_t(e) < N ? std::string(words[size_t(e)]) : "?"; }
std::string side(int x) { return x == kNoLimit ? "*" : join(x); }
std::string pair(int a, int b) { return a == b ? join(a) : join(a, "/", b); }

struct Size {
  char letter;
  Word what, example;
  int32_t Problem::*first;
  int32_t Problem::*second;  // after a slash; null: it takes one number
};
constexpr Size kSizes[] = {{'b', "a batch", "b2", &Problem::batch, nullptr},
                           {'h', "heads", "h32, or h32/8 with 8 KV heads", &Problem::heads_q, &Problem::heads_kv},
                           {'q', "queries", "q4096", &Problem::len_q, nullptr},
                           {'k', "keys", "k4096", &Problem::len_k, nullptr},
                           {'d', "a head dim", "d128, or d192/128 with 128 for v", &Problem::dim_qk, &Problem::dim_v}};
constexpr Word kDTypes = "f64, f32, f16, bf16 and e4m3", kMasks = "full, causal or window<left>,<right>";

// Words of other tools, and what they are here.
constexpr struct { Word theirs, ours; } kElsewhere[] = {
    {"fwd", "forward"},  {"bwd", "backward"},  {"fp32", "f32"},     {"float32", "f32"}, {"float", "f32"},
    {"fp16", "f16"},     {"float16", "f16"},   {"half", "f16"},     {"bfloat16", "bf16"}, {"fp64", "f64"},
    {"float64", "f64"},  {"double", "f64"},    {"fp8", "e4m3"},     {"float8", "e4m3"}, {"noncausal", "full"},
    {"none", "full"},    {"dense", "full"},    {"local", "window"}, {"sliding", "window"}, {"swa", "window"},
    {"varlen", "ragged"}, {"sinks", "sink"},   {"rope", "rotary"},  {"block_sparse", "blocks"}};

std::string suggestion(Word word, std::span<const Word> candidates) {
  Word best{};
  for (const auto& [theirs, ours] : kElsewhere)
    if (word == theirs && std::find(candidates.begin(), candidates.end(), ours) != candidates.end()) best = ours;
  if (best.empty()) best = closest_word(word, candidates);
  return best.empty() ? "" : join("; did you mean '", best, "'?");
}

std::string quoted(Word word) {  // lines may be files given by mistake
  size_t shown = 60;
  if (word.size() <= shown) return join("'", word, "'");
  while (shown && (word[shown] & 0xC0) == 0x80) --shown;  // not inside a character
  return join("'", word.substr(0, shown), "...'");
}

// Reads a line word by word. After the first mistake every step is a no-op, so the grammar below needs no branches.
struct Reader {
  Word line;
  Word word{}, rest{};  // the current word, and what of it is unread
  size_t end = 0;       // of the current word
  std::string wrong{};
  LinePlace place{};

  bool next() {
    const size_t from = line.find_first_not_of(" \t", end);
    if (!wrong.empty() || from == Word::npos) return word = rest = {}, false;
    const bool formula = line.substr(from).starts_with("mask{") || line.substr(from).starts_with("score{");
    end = formula ? std::min(line.find('}', from), line.size() - 1) + 1 : line.find_first_of(" \t", from);
    end = std::min(end, line.size());
    return word = rest = line.substr(from, end - from), true;
  }
  bool refuse(const auto&... why) {
    if (!wrong.empty()) return false;
    wrong = join(why...);
    const size_t at = word.empty() ? line.size() : size_t(word.data() - line.data());
    place = {.at = at, .length = word.size(), .known = true};
    return false;
  }
  bool lacks(Word what, Word accepted) {
    const size_t last = line.find_last_not_of(" \t");
    const size_t before = last == Word::npos ? last : line.find_last_of(" \t", last);
    const Word ending = last == Word::npos ? Word{} : line.substr(before + 1, last - before);
    word = {};
    return ending.empty() ? refuse("the line is empty; expected ", what, " next: ", accepted)
                          : refuse("the line ends after ", quoted(ending), "; expected ", what, " next: ", accepted);
  }
  bool take(Word text) {
    if (!wrong.empty() || !rest.starts_with(text)) return false;
    rest.remove_prefix(text.size());
    return true;
  }
  bool expect(Word text, Word accepted) {
    return take(text) || refuse(quoted(word), " is incomplete or has a wrong part; accepted is ", accepted);
  }
  int32_t number(Word accepted) {
    int32_t x = 0;
    const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), x);
    if (error == std::errc::result_out_of_range) refuse(quoted(word), ": a number is not below 2^31");
    if (error != std::errc{}) refuse(quoted(word), " lacks a number; accepted is ", accepted);
    if (wrong.empty()) rest.remove_prefix(size_t(stop - rest.data()));
    return x;
  }
  int32_t side(Word accepted) { return take("*") ? kNoLimit : number(accepted); }
  bool finished(Word accepted) {
    return !wrong.empty() || rest.empty() || refuse(quoted(word), ": ", quoted(rest), " is left over; accepted is ",
                                                    accepted);
  }
  // The whole word is one of a list.
  template <class E, size_t N>
  bool is_one_of(const Word (&words)[N], E& e) {
    const auto found = std::find(std::begin(words), std::end(words), rest);
    if (!wrong.empty() || found == std::end(words)) return false;
    return e = E(found - words), rest = {}, true;
  }
  DType dtype(Word text) {
    const auto found = std::find(std::begin(kDType) + 1, std::end(kDType), text);
    if (found != std::end(kDType)) return DType(found - kDType);
    refuse(quoted(text), " is not a dtype; accepted are ", kDTypes, suggestion(text, std::span(kDType).subspan(1, 5)));
    return DType::none;
  }
};

Types read_types(Reader& r, Pass pass) {
  const bool backward = pass == Pass::backward;
  if (!r.next()) return r.lacks("a dtype", kDTypes), Types{};
  std::vector<Word> parts;
  for (Word rest = r.word;; rest.remove_prefix(parts.back().size() + 1)) {
    parts.push_back(rest.substr(0, rest.find('/')));
    if (parts.back().size() == rest.size()) break;
  }
  const DType first = r.dtype(parts[0]);
  Types t{first, first, first, backward ? first : DType::none, DType::none};
  if (parts.size() == 1) return t;
  if (parts.size() != (backward ? 4 : 3))
    return r.refuse(quoted(r.word), " has ", parts.size(), " dtypes; accepted are one for all, or ",
                    backward ? "four: q/kv/out/grad" : "three: q/kv/out"),
           t;
  t.kv = r.dtype(parts[1]), t.out = r.dtype(parts[2]);
  if (backward) t.grad = r.dtype(parts[3]);
  return t;
}

// The words of a line that may come in any order, each at most once.
struct Words {
  Reader& r;
  Problem& p;
  Word sizes[std::size(kSizes)] = {}, mask{}, blocks{}, keys{}, repro{}, precision{};  // as given
  Word formula[2] = {}, expression[2] = {};  // of the mask and the score: the words, and what is in braces

  bool once(Word& given) {
    if (given == r.word) return r.refuse(quoted(r.word), " is given twice");
    if (!given.empty())
      return r.refuse(quoted(r.word), " comes after ", quoted(given), "; accepted is one of them",
                      &given == &mask ? "; a causal window of 128 keys is window127,0" : "");
    given = r.word;
    return true;
  }
  bool read_size() {
    for (size_t n = 0; n < std::size(kSizes); ++n) {
      const Size& s = kSizes[n];
      const bool has_number = r.word.size() == 1 || Word("0123456789-").find(r.word[1]) != Word::npos;
      if (r.word[0] != s.letter || !has_number) continue;
      if (!once(sizes[n])) return true;
      r.rest.remove_prefix(1);
      p.*s.first = r.number(s.example);
      if (s.second) p.*s.second = r.take("/") ? r.number(s.example) : p.*s.first;
      return r.finished(s.example), true;
    }
    return false;
  }
  bool read_mask() {
    Word kind = r.word.substr(0, r.word.find_first_of("@/,*-0123456789"));
    const auto found = std::find(std::begin(kMask), std::end(kMask), kind);
    if (found == std::end(kMask)) return false;
    if (!once(mask)) return true;
    Mask& m = p.mask;
    m.kind = MaskKind(found - kMask), r.rest.remove_prefix(kind.size());
    if (m.kind == MaskKind::window) {
      constexpr Word kSides = "window<left>,<right>: window127,0 shows 128 keys, and * means no limit";
      m.left = r.side(kSides);
      r.expect(",", kSides);
      m.right = r.side(kSides);
      if (m.left < 0) r.refuse(quoted(r.word), ": the left side is below 0; * means no limit, as in window*,0");
    }
    const auto align = std::find_if(std::begin(kAlign), std::end(kAlign), [&](Word word) { return r.take(word); });
    if (align != std::end(kAlign)) m.align = Align(align - kAlign);  // one of them: a second one is left over
    constexpr Word kEnd = "a mask, then @top_left or @absolute, then /<step>+<phase>";
    if (r.take("/")) m.k_step = r.number(kEnd), r.expect("+", kEnd), m.k_phase = r.number(kEnd);
    return r.finished(kEnd), true;
  }
  bool read_blocks() {
    constexpr Word kAccepted = "blocks<queries>x<keys>x<most entries>";
    if (!r.word.starts_with("blocks")) return false;
    if (!once(blocks)) return true;
    Blocks& b = p.mask.blocks;
    r.take("blocks");
    b.q = r.number(kAccepted), r.expect("x", kAccepted), b.k = r.number(kAccepted), r.expect("x", kAccepted);
    b.bound = r.number(kAccepted);
    r.finished(kAccepted);
    if (r.wrong.empty() && !(b.q || b.k || b.bound))
      r.refuse("blocks0x0x0: all three must be above 0, or none given");
    return true;
  }
  bool read_formula() {
    for (const bool score : {false, true}) {
      const Word open = score ? "score{" : "mask{";
      if (!r.word.starts_with(open)) continue;
      if (!once(formula[score])) return true;
      if (!r.word.ends_with('}')) return r.refuse(quoted(r.word), " lacks its '}'"), true;
      expression[score] = r.word.substr(open.size(), r.word.size() - open.size() - 1);
      if (expression[score].find_first_not_of(" \t") == Word::npos)
        r.refuse(quoted(r.word), " is empty; an example is ", score ? "score{s+slope[h]*(k-q)}" : "mask{q>=k}");
      return true;
    }
    return false;
  }
  void store_formula() {
    Word wrong;
    FormulaPlace at;
    if (!r.wrong.empty() || (expression[0].empty() && expression[1].empty())) return;
    const Status s = assign_formula(expression[0], expression[1], p.variant, wrong, at);
    if (s.ok()) return;
    r.wrong = s.message;
    const bool known = !wrong.empty() && (at.at || at.length);
    if (known) r.place = {.at = size_t(wrong.data() - r.line.data()) + at.at, .length = at.length, .known = true};
  }
  bool read_option() {
    const Word stem = r.word.substr(0, r.word.find('.'));
    const auto found = std::find(std::begin(kOption), std::end(kOption), stem);
    if (found == std::end(kOption)) return false;
    const Option o = Option(found - kOption);
    if (Word given = p.has(o) ? r.word : Word{}; !once(given)) return true;
    p.set(o);
    r.rest.remove_prefix(stem.size());
    if (o == Option::bias) p.dtype.bias = DType::f32;
    if (o == Option::bias && r.take(".")) p.dtype.bias = r.dtype(std::exchange(r.rest, {}));
    return r.finished(stem), true;
  }
  bool read_setting() {
    constexpr Word kPaged = "paged<keys in a page>, such as paged16";
    if (r.word.starts_with("paged") && (r.word.size() == 5 || Word("0123456789-").find(r.word[5]) != Word::npos)) {
      if (!once(keys)) return true;
      r.take("paged");
      p.keys = KeySource::paged, p.page = r.number(kPaged);
      return r.finished(kPaged), true;
    }
    if (r.is_one_of(kKeys, p.keys)) return once(keys), true;
    if (r.is_one_of(kRepro, p.reproducible)) return once(repro), true;
    if (r.is_one_of(kPrecision, p.precision)) return once(precision), true;
    return false;
  }
  // What the line still lacks; "" if it is complete.
  std::pair<Word, Word> missing() const {
    for (size_t n = 0; n < std::size(kSizes); ++n)
      if (sizes[n].empty()) return {kSizes[n].what, kSizes[n].example};
    return mask.empty() ? std::pair<Word, Word>{"a mask", kMasks} : std::pair<Word, Word>{};
  }
  void unknown() {
    if (r.word.starts_with('@') || r.word.starts_with('/'))
      return void(r.refuse(quoted(r.word), " belongs to the mask, without a space: causal", r.word));
    const Word stem = r.word.substr(0, r.word.find('='));
    if (stem != r.word && std::find(std::begin(kOption), std::end(kOption), stem) != std::end(kOption))
      return void(r.refuse(quoted(r.word), ": a line says that there is ", stem,
                           "; its value is an argument of the call, so write ", quoted(stem)));
    if (r.word == "mask" || r.word == "score")
      return void(r.refuse(quoted(r.word), " lacks its expression, which follows without a space: mask{q>=k}"));
    if (r.word.starts_with(':'))
      return void(r.refuse(quoted(r.word), " lacks a space behind its colon; a variant is written ' : nsa l=32'"));
    std::vector<Word> all(std::begin(kMask), std::end(kMask));
    all.insert(all.end(), std::begin(kOption), std::end(kOption));
    all.insert(all.end(), std::begin(kRepro), std::end(kRepro));
    all.insert(all.end(), std::begin(kPrecision), std::end(kPrecision));
    for (const Word w : {"ragged", "paged", "blocks"}) all.push_back(w);
    if (const std::string did_you_mean = suggestion(r.word.substr(0, r.word.find_first_of("0123456789@/.")), all);
        !did_you_mean.empty())
      return void(r.refuse(quoted(r.word), " is not a word of a problem line", did_you_mean));
    if (const auto [what, accepted] = missing(); !what.empty())
      return void(r.refuse(quoted(r.word), " is not a word of a problem line; expected ", what, " next: ", accepted));
    std::string options;
    for (const Word w : kOption) options += join(w, ", ");
    r.refuse(quoted(r.word), " is not a word of a problem line; accepted are ", options,
             "ragged, paged<size>, repro=run, repro=batch, precision=tf32, precision=tf32x3 and ' : variant'");
  }
};

Status valid_sizes(const Problem& p) {
  const auto no = [](const auto&... why) { return Status::no("problem: ", why...); };
  const struct { Word name; int32_t value, most; } sizes[] = {
      {"batch", p.batch, 1 << 30},      {"heads_q", p.heads_q, 1 << 20}, {"heads_kv", p.heads_kv, 1 << 20},
      {"len_q", p.len_q, INT32_MAX},    {"len_k", p.len_k, INT32_MAX},   {"dim_qk", p.dim_qk, 1 << 16},
      {"dim_v", p.dim_v, 1 << 16}};
  for (const auto& [name, value, most] : sizes)
    if (value < 1 || value > most) return no(name, " = ", value, " is not in 1 ... ", most);
  if (p.heads_q % p.heads_kv) return no("heads_kv = ", p.heads_kv, " does not divide heads_q = ", p.heads_q);
  if ((p.keys == KeySource::paged) != (p.page > 0) || p.page < 0)
    return no("page = ", p.page, " given; paged keys require at least 1, other keys 0");
  return Status::good();
}

Status valid_types(const Problem& p) {
  const auto no = [](const auto&... why) { return Status::no("problem: ", why...); };
  const auto& [q, kv, out, grad, bias] = p.dtype;
  for (const DType t : {q, kv, out})
    if (!is_floating(t)) return no("dtype ", name(t), " is not one of f64, f32, f16, bf16, e4m3");
  if ((grad == DType::none) != (p.pass == Pass::forward))
    return no("grad dtype ", name(grad), " given for a ", name(p.pass), "; a backward has one, a forward none");
  if (grad != DType::none && !is_floating(grad))
    return no("grad dtype ", name(grad), " is not one of f64, f32, f16, bf16, e4m3");
  if ((bias == DType::none) == p.has(Option::bias))
    return no("bias dtype ", name(bias), " given, but the problem ",
              p.has(Option::bias) ? "has option bias" : "does not have option bias");
  if (bias != DType::none && (!is_floating(bias) || bias == DType::e4m3))
    return no("bias dtype ", name(bias), " is not one of f64, f32, f16, bf16");
  return Status::good();
}

Status valid_mask(const Mask& m) {
  const auto no = [](const auto&... why) { return Status::no("problem: ", why...); };
  if (m.kind == MaskKind::window ? m.left < 0 : m.left || m.right)
    return no("left = ", m.left, ", right = ", m.right, "; only a window has them, with left at least 0");
  if (m.k_step < 1 || m.k_step > kMaxStep) return no("k_step = ", m.k_step, " is not in 1 ... 2^20");
  const Blocks b = m.blocks;
  if (!(b.q > 0 && b.k > 0 && b.bound > 0) && (b.q || b.k || b.bound))
    return no("blocks ", b.q, "x", b.k, "x", b.bound, ": all three must be above 0, or none given");
  return Status::good();
}

Status valid_options(const Problem& p) {
  const auto no = [](const auto&... why) { return Status::no("problem: ", why...); };
  const bool backward = p.pass == Pass::backward;
  const DType running = backward ? p.dtype.grad : p.dtype.out;
  if (p.has(Option::accumulate) && running != DType::f32 && running != DType::f64)
    return no("accumulate requires ", backward ? "gradients" : "out", " in f32 or f64, not ", name(running));
  if (backward && p.has(Option::append)) return no("a backward cannot have option append");
  if (p.has(Option::append) && p.keys == KeySource::ragged)
    return no("append requires linear or paged keys, not ragged");
  if (p.rotates() && !p.has(Option::append)) return no("rotary requires append");
  if (p.has(Option::rotary) && p.has(Option::rotary_half)) return no("rotary and rotary_half exclude each other");
  if (p.has(Option::block_bias) && !p.mask.blocks.q) return no("block_bias requires a block list");
  if (p.has(Option::block_bias) && p.has(Option::bias)) return no("bias and block_bias exclude each other");
  return Status::good();
}

Status valid_variant(const Problem& p) {
  const Variant& v = p.variant;
  if (v.text[sizeof v.text - 1]) return Status::no("problem: variant is not null-terminated");
  Variant again{};
  if (Status s = assign(again, v.text); !s.ok()) return s;
  if (std::memcmp(&again, &v, sizeof again))
    return Status::no("problem: variant is not in canonical form; expected '", again.text, "'");
  const VariantWord* known = find_variant(word(v));  // unknown variants are refused by every backend
  if (!known) return Status::good();
  // Bounds the problem so that no count of rows or bytes, summed over several tensors, overflows.
  const double numbers = double(p.batch) * std::max(p.len_q, p.len_k) * std::max(p.heads_q, p.heads_kv) *
                         std::max(p.dim_qk, p.dim_v);
  if (numbers > 0x1p48)
    return Status::no("problem: ", word(v), " tensors have ", numbers, " elements, over the limit of 2^48");
  return known->valid(p);
}

}  // namespace

std::string name(DType t) { return text(t, kDType); }
std::string name(Pass p) { return text(p, kPass); }
std::string name(Option o) { return text(o, kOption); }
std::string name(KeySource k) { return text(k, kKeys); }

std::string name(const Types& t) {
  const bool forward = t.grad == DType::none;
  if (t.q == t.kv && t.q == t.out && (forward || t.q == t.grad)) return name(t.q);
  return join(name(t.q), "/", name(t.kv), "/", name(t.out), forward ? std::string() : join("/", name(t.grad)));
}

std::string name(const Mask& m) {
  std::string s = text(m.kind, kMask);
  if (m.kind == MaskKind::window) s += side(m.left) + "," + side(m.right);
  if (m.align != Align::bottom_right) s += text(m.align, kAlign);
  if (m.k_step != 1 || m.k_phase) s += join("/", m.k_step, "+", m.k_phase);
  if (m.blocks.q) s += join(" blocks", m.blocks.q, "x", m.blocks.k, "x", m.blocks.bound);
  return s;
}

std::string name(const Problem& p) {
  std::string s = join(text(p.pass, kPass), " ", name(p.dtype), " b", p.batch, " h", pair(p.heads_q, p.heads_kv),
                       " q", p.len_q, " k", p.len_k, " d", pair(p.dim_qk, p.dim_v), " ", name(p.mask));
  for (size_t n = 0; n < std::size(kOption); ++n) {
    if (p.has(Option(n))) s += join(" ", text(n, kOption));
    if (p.has(Option(n)) && Option(n) == Option::bias && p.dtype.bias != DType::f32) s += join(".", name(p.dtype.bias));
  }
  if (p.keys != KeySource::linear) s += join(" ", text(p.keys, kKeys));
  if (p.keys == KeySource::paged) s += join(p.page);
  if (p.reproducible != Reproducible::no) s += join(" ", text(p.reproducible, kRepro));
  if (p.precision != Precision::full) s += join(" ", text(p.precision, kPrecision));
  if (!has_formula(p)) return p.variant.text[0] ? s + join(" : ", p.variant.text) : s;
  for (const Word part : {"mask", "score"})
    if (const Word text = value(p.variant, part); !text.empty()) s += join(" ", part, "{", text, "}");
  return s;
}

Status parse(std::string_view line, Problem& out) {
  LinePlace place;
  return parse(line, out, place);
}

Status parse(std::string_view line, Problem& out, LinePlace& place) {
  Reader r{line};
  Problem p;
  if (!r.next()) r.lacks("a pass", "forward or backward");
  else if (!r.is_one_of(kPass, p.pass))
    r.refuse(quoted(r.word), " is not a pass, with which a line begins; accepted are forward and backward",
             suggestion(r.word, kPass));
  p.dtype = read_types(r, p.pass);
  Words words{r, p};
  bool has_variant = false;
  while (r.next() && !(has_variant = r.word == ":"))
    if (!words.read_formula() && !words.read_mask() && !words.read_blocks() && !words.read_option() &&
        !words.read_setting() && !words.read_size())
      words.unknown();
  const bool reads_on = r.wrong.empty();
  if (const auto [what, accepted] = words.missing(); reads_on && !what.empty()) {
    if (has_variant) r.refuse("':' begins a variant; expected ", what, " before it: ", accepted);
    else r.lacks(what, accepted);
  }
  words.store_formula();
  if (r.wrong.empty() && has_variant) {
    const Word text = line.substr(std::min(r.end + 1, line.size()));
    if (text.empty()) r.lacks("a variant", "its name, then name=value");
    else if (has_formula(p)) r.refuse("':' begins a variant; it and mask{} or score{} exclude each other");
    else if (text.substr(0, text.find(' ')) == "formula")
      r.refuse("':' begins a variant; a formula is written mask{q>=k} score{s} instead");
    else if (Status s = assign(p.variant, text); !s.ok()) return s;
  }
  if (!r.wrong.empty()) return place = r.place, Status::no("problem line: ", r.wrong);
  if (Status s = valid(p); !s.ok()) return s;
  out = p;
  return Status::good();
}

std::string_view closest_word(std::string_view word, std::span<const std::string_view> candidates) {
  const size_t most = std::max<size_t>(1, word.size() / 3);
  std::string_view best{};
  size_t least = most + 1;
  // Damerau and Levenshtein: insertions, deletions, replacements, and swaps of neighbours count one each.
  std::vector<std::vector<size_t>> cost;
  for (const std::string_view other : candidates) {
    if (other.size() > word.size() + most || word.size() > other.size() + most) continue;
    cost.assign(word.size() + 1, std::vector<size_t>(other.size() + 1));
    for (size_t i = 0; i <= word.size(); ++i)
      for (size_t j = 0; j <= other.size(); ++j) {
        if (!i || !j) { cost[i][j] = i + j; continue; }
        const size_t replaced = cost[i - 1][j - 1] + (word[i - 1] != other[j - 1]);
        cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
        if (i > 1 && j > 1 && word[i - 1] == other[j - 2] && word[i - 2] == other[j - 1])
          cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    const size_t apart = cost[word.size()][other.size()];
    const bool begins_alike = !best.empty() && other.substr(0, 1) == word.substr(0, 1) && best[0] != other[0];
    if (apart < least || (apart == least && begins_alike)) least = apart, best = other;
  }
  return best;
}

Status parse(std::string_view word, DType& out) {
  for (size_t n = 1; n < std::size(kDType); ++n)
    if (word == kDType[n]) return out = DType(n), Status::good();
  return Status::no("dtype '", word, "' is not one of f64, f32, f16, bf16, e4m3");
}

Problem filled(Problem p) {
  if (p.dtype.kv == DType::none) p.dtype.kv = p.dtype.q;
  if (p.dtype.out == DType::none) p.dtype.out = p.dtype.q;
  if (p.dtype.grad == DType::none && p.pass == Pass::backward) p.dtype.grad = p.dtype.q;
  if (p.dtype.bias == DType::none && p.has(Option::bias)) p.dtype.bias = DType::f32;
  if (!p.heads_kv) p.heads_kv = p.heads_q;
  if (!p.dim_v) p.dim_v = p.dim_qk;
  if (!p.mask.k_step) p.mask.k_step = 1;
  return p;
}

Status valid(const Problem& p) {
  const auto inside = [](auto e, const auto& words) { return size_t(e) < std::size(words); };
  if (!inside(p.pass, kPass) || !inside(p.mask.kind, kMask) || !inside(p.mask.align, kAlign) ||
      !inside(p.keys, kKeys) || !inside(p.reproducible, kRepro) || !inside(p.precision, kPrecision) ||
      p.options >> std::size(kOption))
    return Status::no("problem: an enum or an option bit is unknown to this version");
  if (Status s = valid_sizes(p); !s.ok()) return s;
  if (Status s = valid_types(p); !s.ok()) return s;
  if (Status s = valid_mask(p.mask); !s.ok()) return s;
  if (Status s = valid_options(p); !s.ok()) return s;
  return valid_variant(p);
}

// Eight bytes per step, multiply and fold. The cache is probed on every call, and std::hash over bytes costs more than
// the probe.
size_t HashBytes::operator()(const Problem& p) const {
  static_assert(sizeof(Problem) % 4 == 0);
  const char* at = reinterpret_cast<const char*>(&p);
  uint64_t hash = 0x9E3779B97F4A7C15u;
  for (size_t n = 0; n + 8 <= sizeof p; n += 8) {
    uint64_t word;
    std::memcpy(&word, at + n, sizeof word);
    hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
    hash ^= hash >> 32;
  }
  if constexpr (sizeof(Problem) % 8) {
    uint32_t word;
    std::memcpy(&word, at + sizeof p - 4, sizeof word);
    hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
    hash ^= hash >> 32;
  }
  return size_t(hash);
}

}  // namespace attune
