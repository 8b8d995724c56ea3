// SPDX-License-Identifier: Apache-2.0
#include <charconv>

#include "core/variant/nsa.h"
#include "verify/hunt/draw.h"

namespace attune {
namespace {

std::string dilated_text(Draw& d) {
  const int branches = d.of({1, 1, 2, 2, 3, 4, 5});
  std::string rates, segments;
  for (int n = 0; n < branches; ++n) {
    const char* comma = n ? "," : "";
    rates += join(comma, d.chance(70) ? d.of({1, 2, 3, 4}) : d.between(1, 12));
    segments += join(comma, d.chance(70) ? d.of({7, 8, 16, 31, 64, 100}) : d.between(1, 300));
  }
  std::string text = join("dilated rates=", rates, " segments=", segments);
  if (d.chance(30)) text += " mode=headgroup";
  else if (d.chance(40)) text += " offsets=contiguous";
  if (d.chance(35)) text += d.chance(50) ? " norm=divide" : " norm=none";
  if (d.chance(15)) text += " gradient=detached";
  return text;
}

std::string adaptive_text(Draw& d) {
  std::string text = join("adaptive block=", d.of({5, 8, 16, 16, 32, 64}), " density=",
                          d.of({"0", "0.2", "0.3", "0.5", "1"}), " hidden=", d.of({1, 8, 16, 24, 40}));
  if (d.chance(30)) text += " per_head=1";
  if (d.chance(25)) text += " noise=gumbel";
  return text;
}

// The word and its numbers; `p` gets the heads, dims and mask that the word asks for.
std::string nsa_text(Draw& d, Problem& p) {
  const int step = d.of({1, 2, 4, 4, 8, 16}), l = step * d.of({1, 2, 2, 3, 4}), s = step * d.of({1, 2, 2, 4, 8});
  const int n = d.of({3, 3, 4, 5, 6, 9, 16}), w = d.of({0, 1, 5, 20, 33, 64, 130});
  const auto phi = [&](bool may_be_none) {
    const int which = d.random.below(may_be_none ? 5 : 4);
    if (which == 3) return join("mlp", d.chance(50) ? join(" hidden=", d.of({1, 12, 40})) : std::string());
    return std::string(which < 2 ? "mean" : which == 2 ? "conv" : "none");
  };
  p.mask.kind = MaskKind::causal;
  switch (d.random.below(8)) {
    case 0:
      p.mask.kind = MaskKind::full, p.heads_kv = p.heads_q, p.dim_v = p.dim_qk;
      return join("compress d=", step, " l=", l, " phi=", phi(false));
    case 1:
      p.pass = Pass::forward, p.dtype.grad = DType::none;
      return join("select d=", step, " l=", l, " n=", n, " s=", s);
    case 2: case 3:
      return join("selected n=", n, " s=", d.chance(70) ? s : d.between(1, 100));
    case 4:
      p.mask.kind = MaskKind::full, p.heads_q = 3 * p.heads_kv, p.dim_v = p.dim_qk;
      return join("gate act=", d.of({"sigmoid", "softmax", "none"}));
    case 5:
      p.pass = Pass::forward, p.dtype.grad = DType::none;
      return join("reads d=", step, " l=", l, " n=", n, " s=", s, " w=", w);
    default: {
      std::string text = join("nsa d=", step, " gate=", d.of({"sigmoid", "softmax", "none"}), " l=", l, " n=", n,
                              " phi=", phi(true), " s=", s, " w=", w);
      if (d.chance(20)) text += join(" only=", d.of({"cmp", "sel", "win"}));
      return text;
    }
  }
}

void draw_sizes(Draw& d, Problem& p, HuntKind kind) {
  p.batch = d.of({1, 1, 2, 2, 3, 5});
  p.heads_kv = d.of({1, 1, 1, 2, 2, 3});
  p.heads_q = p.heads_kv * d.of({1, 1, 2, 2, 3, 4, 7});
  p.dim_qk = p.dim_v = d.of({8, 16, 16, 24, 32, 64, 64, 72, 128});
  if (d.chance(25)) p.dim_v = d.of({8, 16, 24, 40, 64});
  const bool small = d.chance(70);
  p.len_q = p.len_k = small ? d.between(1, 70) : edge_length(d, 400);
  const bool apart = kind == HuntKind::nsa || kind == HuntKind::adaptive;
  if (apart && d.chance(30)) p.len_q = d.chance(50) ? d.between(1, 4) : d.between(1, p.len_k);
}

void draw_dense_words(Draw& d, Problem& p) {
  p.mask.kind = d.of({MaskKind::full, MaskKind::causal, MaskKind::causal, MaskKind::window});
  if (p.mask.kind == MaskKind::window)
    p.mask.left = d.of({0, 1, 5, 31, 64}), p.mask.right = d.of({0, 0, 3, 20}) - (d.chance(10) ? 4 : 0);
  if (d.chance(60)) return;
  for (const Option o : {Option::softcap, Option::alibi, Option::dropout, Option::sink})
    if (d.chance(30)) p.set(o);
}

void draw_variation(Draw& d, Case& c) {
  Variation& v = c.variation;
  v.seed = uint32_t(d.between(1, 1 << 20));
  v.lengths = d.chance(50) ? Lengths::full : d.chance(60) ? Lengths::drawn : Lengths::odd;
  v.layout = d.chance(70) ? Layout::bshd : Layout::bhsd;
  v.pad = d.of({0, 8, 8, 16, 3});
  v.cu_q = c.problem.keys != KeySource::ragged && d.chance(15);
  v.cache = d.chance(20), v.used_q = d.chance(15), v.lean = d.chance(15);
  v.d_lse = c.problem.pass == Pass::backward && d.chance(40);
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> all;
  while (!text.empty()) {
    all.emplace_back(text.substr(0, text.find(' ')));
    text.remove_prefix(std::min(text.size(), all.back().size() + 1));
  }
  return all;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += w.empty() ? "" : (text.empty() ? "" : " ") + w;
  return text;
}

}  // namespace

Case variant_case(Draw& d, HuntKind kind) {
  Case c;
  Problem& p = c.problem;
  p.pass = d.chance(50) ? Pass::forward : Pass::backward;
  draw_types(d, p);
  draw_sizes(d, p, kind);
  if (kind != HuntKind::dilated && kind != HuntKind::ring && d.chance(25)) p.keys = KeySource::ragged;
  std::string text;
  if (kind == HuntKind::nsa) {
    text = nsa_text(d, p);
  } else if (kind == HuntKind::dilated) {
    p.mask.kind = d.chance(50) ? MaskKind::causal : MaskKind::full;
    text = dilated_text(d);
  } else {
    draw_dense_words(d, p);
    text = kind == HuntKind::adaptive ? adaptive_text(d)
                                      : join("ring layout=", d.of({"ring", "zigzag", "striped", "ulysses"}),
                                             " ranks=1 tokens=1");
  }
  (void)assign(p.variant, text);
  follow_sizes(p);
  draw_variation(d, c);
  Variation& v = c.variation;
  // A ring has as many tokens as it says, and no tensors of lengths.
  if (kind == HuntKind::ring) v.lengths = Lengths::full, v.used_q = v.cu_q = false;
  // The gradient of an adaptive network's last bias cancels to 0 without a gradient of lse.
  if (kind == HuntKind::adaptive && p.pass == Pass::backward) v.d_lse = true;
  return c;
}

void follow_sizes(Problem& p) {
  const std::string_view variant = word(p.variant);
  if (variant == "compress" && numbers(p.variant, "l").count && numbers(p.variant, "d").count) {
    const Nsa nsa{.d = std::max(1, numbers(p.variant, "d")[0]), .l = std::max(1, numbers(p.variant, "l")[0])};
    p.len_k = int(std::max<int64_t>(1, nsa.compressed(p.len_q)));
  }
  if (variant != "ring") return;
  std::vector<std::string> words = words_of(p.variant.text);
  for (std::string& w : words)
    if (w.starts_with("tokens=")) w = join("tokens=", p.keys == KeySource::ragged ? p.len_q * p.batch : p.len_q);
  (void)assign(p.variant, joined(words));
}

std::vector<Variant> smaller_variants(const Variant& from) {
  std::vector<Variant> all;
  const std::vector<std::string> words = words_of(from.text);
  const auto add = [&](const std::vector<std::string>& changed) {
    Variant v{};
    if (assign(v, joined(changed)).ok()) all.push_back(v);
  };
  // The last branch of a dilated problem: of both lists.
  std::vector<std::string> fewer = words;
  for (std::string& w : fewer)
    if (const size_t comma = w.rfind(','); comma != w.npos) w.resize(comma);
  if (fewer != words) add(fewer);
  for (size_t n = 1; n < words.size(); ++n) {
    std::vector<std::string> changed = words;
    changed[n].clear();  // the default; required ones make it invalid
    add(changed);
    const size_t sign = words[n].find('=');
    int value = 0;
    const char* end = words[n].data() + words[n].size();
    if (sign == std::string::npos) continue;
    const auto [at, error] = std::from_chars(words[n].data() + sign + 1, end, value);
    if (error != std::errc{} || at != end || value < 1) continue;
    for (const int less : {value / 2, value - 1}) {
      changed[n] = words[n].substr(0, sign + 1) + std::to_string(less);
      add(changed);
    }
  }
  return all;
}

}  // namespace attune
