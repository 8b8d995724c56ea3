// SPDX-License-Identifier: Apache-2.0
#include "core/variant/nsa.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace attune {
namespace {

using Word = std::string_view;

// One row per word: required parameters and optional ones. "hidden" is valid only with phi=mlp.
struct Known { Word word, needs, may; };
constexpr Known kKnown[] = {
    {"compress", " d l phi ", " hidden "}, {"select", " d l n s ", " "},
    {"selected", " n s ", " "},            {"gate", " act ", " "},
    {"reads", " d l n s w ", " "},         {"nsa", " d gate l n phi s w ", " hidden only "}};

const Known* known(Word word) {
  const auto* it = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& k) { return k.word == word; });
  return it == std::end(kKnown) ? nullptr : it;
}

// Whether `name` is in a list of words delimited by spaces.
bool listed(Word names, Word name) {
  for (size_t at = names.find(name); at != Word::npos; at = names.find(name, at + 1))
    if (at > 0 && names[at - 1] == ' ' && names.substr(at + name.size()).starts_with(' ')) return true;
  return false;
}

Word without_end(Word names) { return names.substr(0, names.size() - 1); }

Status read_number(const Variant& v, Word name, int least, int most, int& out) {
  const Word text = value(v, name);
  if (text.empty()) return Status::good();  // not a parameter of this word
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc{} || end != text.data() + text.size() || out < least || out > most)
    return Status::no(word(v), ": ", name, " = ", text, " is not a number in ", least, " ... ", most);
  return Status::good();
}

template <class E, size_t N>
Status read_word(const Variant& v, Word name, const Word (&words)[N], Word said, E& out) {
  const Word text = value(v, name);
  if (text.empty()) return Status::good();
  for (size_t n = 0; n < N; ++n)
    if (words[n] == text) return out = E(n), Status::good();
  return Status::no(word(v), ": ", name, " = ", text, " is not one of ", said);
}

Status read_names(const Variant& v, const Known& k) {
  Word rest = v.text;
  rest.remove_prefix(k.word.size());
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const Word one = rest.substr(0, rest.find(' ')), name = one.substr(0, one.find('='));
    if (!listed(k.needs, name) && !listed(k.may, name))
      return Status::no(k.word, ": unknown parameter '", name, "'; required:", without_end(k.needs),
                        k.may == " " ? "" : join("; optional:", without_end(k.may)));
    rest.remove_prefix(one.size());
  }
  for (Word all = k.needs.substr(1); !all.empty();) {
    const Word name = all.substr(0, all.find(' '));
    if (value(v, name).empty())
      return Status::no(k.word, ": ", name, "= not given; required:", without_end(k.needs));
    all.remove_prefix(name.size() + 1);
  }
  return Status::good();
}

Status read_parameters(const Variant& v, Nsa& out) {
  constexpr int kMost = kMaxStep;
  constexpr Word kPhi[] = {"mean", "conv", "mlp", "none"}, kGate[] = {"sigmoid", "softmax", "none"};
  constexpr Word kOnly[] = {"cmp", "sel", "win"};
  const struct { Word name; int least, most; int* to; } numbers[] = {
      {"d", 1, kMost, &out.d},          {"l", 1, kMost, &out.l}, {"s", 1, kMost, &out.s},
      {"n", 3, kMostSelected, &out.n},  {"w", 0, kMost, &out.w}, {"hidden", 1, 1 << 16, &out.hidden}};
  for (const auto& [name, least, most, to] : numbers)
    if (Status s = read_number(v, name, least, most, *to); !s.ok()) return s;
  if (Status s = read_word(v, "phi", kPhi, "mean, conv, mlp, none", out.phi); !s.ok()) return s;
  if (Status s = read_word(v, "gate", kGate, "sigmoid, softmax, none", out.gate); !s.ok()) return s;
  if (Status s = read_word(v, "act", kGate, "sigmoid, softmax, none", out.gate); !s.ok()) return s;
  return read_word(v, "only", kOnly, "cmp, sel, win", out.only);
}

}  // namespace

bool is_nsa(Word word) { return known(word) != nullptr; }

Status read_nsa(const Problem& p, Nsa& out) {
  const Known* k = known(word(p.variant));
  if (!k) return Status::no("'", word(p.variant), "' is not a word of native sparse attention");
  if (Status s = read_names(p.variant, *k); !s.ok()) return s;
  Nsa a;
  if (Status s = read_parameters(p.variant, a); !s.ok()) return s;
  const auto no = [&](const auto&... why) { return Status::no(k->word, ": ", why...); };
  const bool backward = p.pass == Pass::backward;
  if (a.l % a.d) return no("d = ", a.d, " does not divide l = ", a.l);
  if (listed(k->needs, "s") && a.s % a.d) return no("d = ", a.d, " does not divide s = ", a.s);
  if (a.hidden && a.phi != Phi::mlp) return no("hidden = ", a.hidden, " requires phi=mlp");
  if (p.keys == KeySource::paged) return no("keys must be linear or ragged, not paged");
  if (p.options) return no("options of dense attention are not accepted");
  if (p.mask.blocks.q || p.mask.k_step != 1 || p.mask.k_phase || p.mask.align != Align::bottom_right)
    return no("mask ", name(p.mask), " has a block list, a key step or an alignment; none is accepted");
  if (k->word == "compress") {
    if (a.phi == Phi::none) return no("phi=none leaves nothing to compress");
    if (p.mask.kind != MaskKind::full) return no("mask ", name(p.mask), " is not full");
    if (p.heads_q != p.heads_kv || p.dim_qk != p.dim_v)
      return no("h", p.heads_q, "/", p.heads_kv, " d", p.dim_qk, "/", p.dim_v,
                ": both numbers of heads must be equal, and both head dims");
    if (p.len_k != std::max<int64_t>(1, a.compressed(p.len_q)))
      return no("k", p.len_k, " is not ", std::max<int64_t>(1, a.compressed(p.len_q)),
                ", the number of compressed tokens of q", p.len_q);
  } else if (k->word == "gate") {
    if (p.mask.kind != MaskKind::full) return no("mask ", name(p.mask), " is not full");
    if (p.heads_q != 3 * int64_t(p.heads_kv) || p.dim_qk != p.dim_v)
      return no("h", p.heads_q, "/", p.heads_kv, " d", p.dim_qk, "/", p.dim_v,
                ": heads must be 3H/H (three branches to one), and both head dims equal");
  } else if (p.mask.kind != MaskKind::causal) {
    return no("mask ", name(p.mask), " is not causal");
  }
  if (p.keys == KeySource::ragged && k->word != "compress" && k->word != "gate" && p.len_q != p.len_k)
    return no("q", p.len_q, " and k", p.len_k, " differ; with ragged keys they must be equal");
  if (backward && (k->word == "select" || k->word == "reads")) return no("has no gradient");
  out = a;
  return Status::good();
}

}  // namespace attune
