// Problem <-> one line. Printing and parsing follow one grammar in one order:
//   pass dtype b# h#[/#] q# k# d#[/#] mask {option} [ragged|paged#] [repro=run|batch] [precision=tf32|tf32x3]
//   [: variant]
//   dtype   bf16, or q/kv/out, or q/kv/out/grad in a backward
//   mask    full | causal | window#,#   then [@top_left|@absolute] [/step+phase] [ blocks#x#x#]
//   option  softcap | alibi | bias[.dtype] | dropout | ...: in the order of enum Option
// Defaults are not printed, so the common line is short and a new field breaks no existing line.
#include "core/problem.h"

#include <algorithm>
#include <charconv>

#include "core/dtypes.h"
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

// Reads from the left. After the first error every step is a no-op, so the grammar below needs no branches.
struct Cursor {
  std::string_view rest;
  std::string wrong{};

  void miss(std::string_view what) {
    if (wrong.empty()) wrong = join("expected ", what, " at '", rest, "'");
  }
  bool take(std::string_view text) {
    if (!wrong.empty() || !rest.starts_with(text)) return false;
    rest.remove_prefix(text.size());
    return true;
  }
  // Takes a whole word: "rotary" does not match the start of "rotary_half". Digits and '.' may follow a word.
  bool take_word(std::string_view before, std::string_view word) {
    const std::string whole = join(before, word);
    const char next = rest.size() > whole.size() ? rest[whole.size()] : ' ';
    return !(next == '_' || (next >= 'a' && next <= 'z')) && take(whole);
  }
  void expect(std::string_view text) { if (!take(text)) miss(text); }
  int32_t number() {
    int32_t x = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), x);
    if (error != std::errc{}) miss("a number below 2^31");
    if (wrong.empty()) rest.remove_prefix(size_t(end - rest.data()));
    return x;
  }
  int32_t side() { return take("*") ? kNoLimit : number(); }
  int32_t after(std::string_view word) { return expect(word), number(); }
  template <class E, size_t N>
  bool maybe(E& e, std::string_view before, const Word (&words)[N]) {
    for (size_t n = N; n-- > 0;)  // reversed: "precision=tf32x3" before its prefix "precision=tf32"
      if (take_word(before, words[n])) return e = E(n), true;
    return false;
  }
  template <class E, size_t N>
  E one_of(const Word (&words)[N], std::string_view what) {
    E e{};
    if (!maybe(e, "", words)) miss(what);
    return e;
  }
  DType dtype() { return one_of<DType>(kDType, "a dtype (f64, f32, f16, bf16 or e4m3)"); }
};

Types read_types(Cursor& c, Pass pass) {
  const DType first = c.dtype();
  const bool backward = pass == Pass::backward;
  Types t{first, first, first, backward ? first : DType::none, DType::none};
  if (c.take("/")) {
    t.kv = c.dtype(), c.expect("/"), t.out = c.dtype();
    if (backward) c.expect("/"), t.grad = c.dtype();
  }
  return t;
}

Mask read_mask(Cursor& c) {
  Mask m;
  m.kind = c.one_of<MaskKind>(kMask, "full, causal or window");
  if (m.kind == MaskKind::window) m.left = c.side(), c.expect(","), m.right = c.side();
  c.maybe(m.align, "", kAlign);
  if (c.take("/")) m.k_step = c.number(), m.k_phase = c.after("+");
  if (c.take(" blocks")) {
    m.blocks.q = c.number(), m.blocks.k = c.after("x"), m.blocks.bound = c.after("x");
    if (c.wrong.empty() && !(m.blocks.q || m.blocks.k || m.blocks.bound))
      c.wrong = "blocks0x0x0: all three must be above 0, or none given";
  }
  return m;
}

void read_options(Cursor& c, Problem& p) {
  for (size_t n = 0; n < std::size(kOption); ++n) {
    if (!c.take_word(" ", kOption[n])) continue;
    p.set(Option(n));
    if (Option(n) == Option::bias) p.dtype.bias = c.take(".") ? c.dtype() : DType::f32;
  }
}

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
  if (p.variant.text[0]) s += join(" : ", p.variant.text);
  return s;
}

Status parse(std::string_view line, Problem& out) {
  Cursor c{line};
  Problem p;
  p.pass = c.one_of<Pass>(kPass, "forward or backward");
  c.expect(" ");
  p.dtype = read_types(c, p.pass);
  p.batch = c.after(" b");
  p.heads_q = p.heads_kv = c.after(" h");
  if (c.take("/")) p.heads_kv = c.number();
  p.len_q = c.after(" q");
  p.len_k = c.after(" k");
  p.dim_qk = p.dim_v = c.after(" d");
  if (c.take("/")) p.dim_v = c.number();
  c.expect(" ");
  p.mask = read_mask(c);
  read_options(c, p);
  if (c.maybe(p.keys, " ", kKeys) && p.keys == KeySource::paged) p.page = c.number();
  c.maybe(p.reproducible, " ", kRepro);
  c.maybe(p.precision, " ", kPrecision);
  if (c.take(" : ")) {
    if (Status s = assign(p.variant, c.rest); !s.ok()) return s;
    c.rest = {};
  }
  if (!c.rest.empty())
    c.miss("an option (in the order of the grammar), a key source, repro=, precision= or ' : variant'");
  if (!c.wrong.empty()) return Status::no("problem line: ", c.wrong);
  if (Status s = valid(p); !s.ok()) return s;
  out = p;
  return Status::good();
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
