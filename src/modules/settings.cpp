// SPDX-License-Identifier: Apache-2.0
#include "modules/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/dtypes.h"
#include "core/variant/ring.h"

namespace attune {
namespace {

using Word = std::string_view;
constexpr Word kKind[] = {"multihead", "feed_forward", "longnet_encoder", "longnet_decoder", "llama"};
constexpr Word kAct[] = {"relu", "gelu", "silu"};
constexpr Word kRope[] = {"no", "pairs", "half"};
constexpr Word kYes[] = {"0", "1"};

// The kinds that have a setting.
constexpr int of(ModuleKind k) { return 1 << int(k); }
constexpr int kMultihead = of(ModuleKind::multihead), kFeed = of(ModuleKind::feed_forward),
              kLlama = of(ModuleKind::llama);
constexpr int kEncoder = of(ModuleKind::longnet_encoder), kDecoder = of(ModuleKind::longnet_decoder);
constexpr int kLongnet = kEncoder | kDecoder, kAttends = kMultihead | kLongnet | kLlama;

Word next(Word& rest, char at) {
  const Word piece = rest.substr(0, rest.find(at));
  rest.remove_prefix(std::min(rest.size(), piece.size() + 1));
  return piece;
}

template <class T>
bool number(Word text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

template <class T, size_t N>
bool one_of(Word text, const Word (&words)[N], T& out) {
  const auto* it = std::find(std::begin(words), std::end(words), text);
  if (it != std::end(words)) out = T(it - std::begin(words));
  return it != std::end(words);
}

// One entry per setting: the kinds that have it, accepted values, reading and printing.
struct Entry {
  Word name;
  int kinds;
  Word accepted;
  bool (*read)(Word, Settings&);
  std::string (*print)(const Settings&);
};
template <auto Member>
bool read_size(Word w, Settings& s) { return number(w, s.*Member) && s.*Member >= 0; }
template <auto Member>
bool read_real(Word w, Settings& s) { return number(w, s.*Member) && std::isfinite(s.*Member) && s.*Member >= 0; }
template <auto Member>
std::string print(const Settings& s) { return join(s.*Member); }
template <auto Member>
constexpr Entry size_of_name(Word name, int kinds) {
  return {name, kinds, "an integer of at least 0", read_size<Member>, print<Member>};
}
template <auto Member>
constexpr Entry real_of_name(Word name, int kinds) {
  return {name, kinds, "a number of at least 0", read_real<Member>, print<Member>};
}

constexpr Entry kEntries[] = {
    {"act", kFeed | kLongnet, "relu, gelu or silu", [](Word w, Settings& s) { return one_of(w, kAct, s.act); },
     [](const Settings& s) { return std::string(kAct[int(s.act)]); }},
    {"bias", kMultihead | kFeed | kLongnet, "0 or 1", [](Word w, Settings& s) { return one_of(w, kYes, s.bias); },
     [](const Settings& s) { return join(int(s.bias)); }},
    size_of_name<&Settings::decoder_layers>("decoder_layers", kMultihead | kFeed | kLongnet),
    size_of_name<&Settings::dim>("dim", kAttends),
    size_of_name<&Settings::dim_v>("dim_v", kAttends),
    {"dropout", kMultihead | kFeed | kLongnet | kLlama, "in 0 <= dropout < 1",
     [](Word w, Settings& s) { return read_real<&Settings::dropout>(w, s) && s.dropout < 1; },
     print<&Settings::dropout>},
    size_of_name<&Settings::encoder_layers>("encoder_layers", kMultihead | kFeed | kLongnet),
    real_of_name<&Settings::eps>("eps", kAttends | kFeed),
    size_of_name<&Settings::ffn>("ffn", kFeed | kLongnet | kLlama),
    real_of_name<&Settings::gain>("gain", kMultihead | kFeed | kLongnet),
    size_of_name<&Settings::memory>("memory", kMultihead | kDecoder),
    {"norm", kMultihead | kLongnet, "0 or 1", [](Word w, Settings& s) { return one_of(w, kYes, s.norm); },
     [](const Settings& s) { return join(int(s.norm)); }},
    {"rope", kAttends, "no, pairs or half", [](Word w, Settings& s) { return one_of(w, kRope, s.rope); },
     [](const Settings& s) { return std::string(kRope[int(s.rope)]); }},
    real_of_name<&Settings::rope_scale>("rope_scale", kAttends),
    size_of_name<&Settings::seed>("seed", kAttends | kFeed),
    real_of_name<&Settings::softcap>("softcap", kAttends),
    real_of_name<&Settings::theta>("theta", kAttends),
};

constexpr int kMostFfn = (1 << 30) - 1;  // a llama block has twice as many columns, in an int

// For a kind whose sizes are set. ffn is -1 if the default exceeds the limit.
Settings with_defaults(Settings s) {
  const bool llama = s.kind == ModuleKind::llama;
  s.dim = s.dim_v = 0;
  const int64_t ffn = llama ? round_up(int64_t(s.embed) * 8 / 3, 256) : 4 * int64_t(s.embed);
  s.ffn = ffn <= kMostFfn ? int(ffn) : -1;
  s.rope = llama ? Rope::half : Rope::no;
  s.norm = s.kind == ModuleKind::longnet_encoder || s.kind == ModuleKind::longnet_decoder;
  s.bias = !llama;
  s.memory = s.kind == ModuleKind::longnet_decoder ? s.len : 0;
  s.attention = llama ? "causal" : s.kind == ModuleKind::feed_forward ? "" : "full";
  return s;
}

Status read_sizes(Word& rest, Settings& s) {
  const auto size = [&](char letter, int& to) {
    const Word w = next(rest, ' ');
    if (w.starts_with(letter) && number(w.substr(1), to) && to > 0 && to <= 1 << 30) return Status::good();
    return Status::no("module: expected ", letter, "# with # at least 1 at '", w, "'");
  };
  if (Status e = size('b', s.batch); !e.ok()) return e;
  if (Status e = size('s', s.len); !e.ok()) return e;
  if (Status e = size('e', s.embed); !e.ok()) return e;
  if (s.kind == ModuleKind::feed_forward) return Status::good();
  Word w = next(rest, ' '), all = w;
  const Word first = next(w, '/');
  if (!first.starts_with('h') || !number(first.substr(1), s.heads) || s.heads < 1)
    return Status::no("module: expected h# with # at least 1 at '", all, "'");
  s.heads_kv = s.heads;
  if (first.size() < all.size() && (!number(w, s.heads_kv) || s.heads_kv < 1 || s.heads % s.heads_kv))
    return Status::no("module: heads '", all, "' are not h#/# where the second divides the first");
  return Status::good();
}

Status read_named(Word rest, Settings& s) {
  bool given[std::size(kEntries)] = {};
  while (!rest.empty()) {
    Word value = next(rest, ' ');
    const Word name = next(value, '=');
    const auto* e =
        std::find_if(std::begin(kEntries), std::end(kEntries), [&](const Entry& x) { return x.name == name; });
    if (e == std::end(kEntries) || !(e->kinds & of(s.kind))) {
      std::string known;
      for (const Entry& x : kEntries)
        if (x.kinds & of(s.kind)) known += join(known.empty() ? "" : ", ", x.name);
      return Status::no("module: '", name, "' is not a setting of ", kKind[int(s.kind)], "; accepted: ", known);
    }
    if (std::exchange(given[e - kEntries], true)) return Status::no("module: '", name, "' is given twice");
    if (!e->read(value, s)) return Status::no("module: ", name, " = '", value, "' is not ", e->accepted);
  }
  return Status::good();
}

Status complete(Settings& s) {
  const auto no = [](const auto&... why) { return Status::no("module: ", why...); };
  if (s.kind != ModuleKind::multihead) {
    if (s.ffn < 0) return no("ffn not given, and its default for e", s.embed, " is not below 2^30");
    if (s.ffn == 0) return no("ffn = 0 is not above 0");
    if (s.ffn > kMostFfn) return no("ffn = ", s.ffn, " is not below 2^30");
  }
  if (s.kind == ModuleKind::feed_forward) return Status::good();
  if (!s.dim && s.embed % s.heads)
    return no("e", s.embed, " is not divisible by ", s.heads, " heads, and dim is not given");
  if (!s.dim) s.dim = s.embed / s.heads;
  if (!s.dim_v) s.dim_v = s.dim;
  if (s.rope != Rope::no && s.dim % 2) return no("rope rotates pairs, but dim = ", s.dim, " is odd");
  if (s.rope_scale <= 0 || s.theta <= 0)
    return no("theta = ", s.theta, " and rope_scale = ", s.rope_scale, " are not both above 0");
  if (s.kind == ModuleKind::longnet_decoder && !s.memory)
    return no("memory = 0 given; a longnet_decoder requires memory");
  Problem p;
  Pattern pattern;
  const bool cross = s.memory && s.kind == ModuleKind::multihead;
  return attention_of(s, s.attention, s.pattern, cross ? s.memory : s.len, p, pattern);
}

}  // namespace

Status read_settings(Word line, Settings& out) {
  Settings s;
  Word head = line.substr(0, line.find(" | "));
  const bool attends = head.size() < line.size();
  const Word tail = attends ? line.substr(head.size() + 3) : Word{};
  const Word attention = tail.substr(0, tail.find(" | "));
  Word rest = head;
  const Word kind = next(rest, ' '), dtype = next(rest, ' ');
  if (!one_of(kind, kKind, s.kind))
    return Status::no("module: '", kind,
                      "' is not one of multihead, feed_forward, longnet_encoder, longnet_decoder, llama");
  if (Status e = parse(dtype, s.dtype); !e.ok() || !is_f32_or_half(s.dtype))
    return Status::no("module: dtype '", dtype, "' is not one of f32, f16, bf16");
  if (Status e = read_sizes(rest, s); !e.ok()) return e;
  s = with_defaults(s);
  if (Status e = read_named(rest, s); !e.ok()) return e;
  if (attends && s.kind == ModuleKind::feed_forward) return Status::no("module: feed_forward has no attention");
  if (attends) s.attention = attention;
  if (attention.size() < tail.size()) s.pattern = tail.substr(attention.size() + 3);
  if (Status e = complete(s); !e.ok()) return e;
  out = std::move(s);
  return Status::good();
}

std::string name(const Settings& s) {
  std::string line = join(kKind[int(s.kind)], " ", name(s.dtype), " b", s.batch, " s", s.len, " e", s.embed);
  if (s.kind != ModuleKind::feed_forward)
    line += s.heads == s.heads_kv ? join(" h", s.heads) : join(" h", s.heads, "/", s.heads_kv);
  Settings usual = with_defaults(s);
  if (s.kind != ModuleKind::feed_forward) usual.dim = s.embed % s.heads ? 0 : s.embed / s.heads, usual.dim_v = s.dim;
  const Settings none{};
  usual.act = none.act, usual.theta = none.theta, usual.rope_scale = none.rope_scale, usual.eps = none.eps;
  usual.gain = none.gain, usual.encoder_layers = usual.decoder_layers = 0, usual.dropout = usual.softcap = 0;
  usual.seed = 0;
  for (const Entry& e : kEntries)
    if (e.kinds & of(s.kind) && e.print(s) != e.print(usual)) line += join(" ", e.name, "=", e.print(s));
  if (s.kind != ModuleKind::feed_forward) line += join(" | ", s.attention);
  return s.pattern.empty() ? line : join(line, " | ", s.pattern);
}

Status attention_of(const Settings& s, Word tail, int keys, Problem& out) {
  const auto no = [](const auto&... why) { return Status::no("module: ", why...); };
  // The lengths of a problem over ranks are those of the longest shard, which not every rank has.
  int queries = s.len;
  Variant variant;
  Ring ring;
  if (const size_t at = tail.find(" : ring "); at != Word::npos && keys == s.len &&
      assign(variant, tail.substr(at + 3)).ok() && read_ring(variant, ring).ok()) {
    const Shards& shards = ring.shards;
    int rank = 0;
    while (rank < shards.ranks && shards.count(rank) != s.len) ++rank;
    if (rank == shards.ranks)
      return no("s", s.len, " is not the size of a shard; the longest of ", shards.tokens, " tokens over ",
                shards.ranks, " ranks has ", shards.most());
    queries = keys = shards.most();
  }
  const std::string line = join("forward ", name(s.dtype), " b", s.batch, " h", s.heads, "/", s.heads_kv, " q", queries,
                                " k", keys, " d", s.dim, "/", s.dim_v, " ", tail);
  Problem p;
  if (Status e = parse(line, p); !e.ok()) return e.after("module: its attention '", line, "': ");
  for (const Option o : {Option::bias, Option::accumulate, Option::append, Option::descale})
    if (p.has(o)) return no("option ", name(o), " is not accepted in a module; use attune_call");
  if (p.keys != KeySource::linear) return no("keys must be linear, not ", name(p.keys));
  if (p.mask.align == Align::absolute) return no("@absolute is not accepted; positions are row numbers");
  if (p.mask.blocks.q) return no("'", tail, "' has blocks; a module takes a pattern, after a second ' | '");
  if (p.has(Option::softcap) != (s.softcap > 0))
    return no("softcap requires both the option and the setting softcap=, or neither");
  if (p.has(Option::dropout) && s.dropout == 0) return no("option dropout requires the setting dropout=");
  out = p;
  return Status::good();
}

Status attention_of(const Settings& s, Word tail, Word blocks, int keys, Problem& out, Pattern& pattern) {
  Problem p;
  if (Status e = attention_of(s, tail, keys, p); !e.ok()) return e;
  if (blocks.empty()) return out = p, Status::good();
  Word words = blocks;
  Word columns = next(words, ' ');
  const Word rows = next(columns, 'x');
  if (!number(rows, p.mask.blocks.q) || !number(columns, p.mask.blocks.k) || p.mask.blocks.q < 1 || p.mask.blocks.k < 1)
    return Status::no("module: block list '", blocks, "' does not begin with #x# (tokens per block)");
  // If ranks exchange heads, the lists are those of the whole sequence.
  const Problem whole = word(p.variant) == "ring" ? whole_of(p, ring_of(p)) : p;
  if (Status e = parse(words, whole, pattern); !e.ok()) return e.after("module: ");
  const int64_t most = bound(pattern, whole, 1, pattern.by_head() ? p.heads_q : 1, true);
  if (most > INT32_MAX) return Status::no("module: block list '", blocks, "' has more than 2^31 - 1 entries");
  p.mask.blocks.bound = int32_t(std::max<int64_t>(most, 1));
  if (Status e = valid(p); !e.ok()) return e.after("module: ");
  out = p;
  return Status::good();
}

double magneto_gain(bool decoder, int encoder_layers, int decoder_layers) {
  const double n = encoder_layers, m = decoder_layers;
  if (n == 0 && m == 0) return 1;
  if (n == 0 || m == 0) return std::sqrt(std::log(2 * std::max(n, m)));  // only one stack
  return decoder ? std::sqrt(std::log(3 * m)) : std::sqrt(std::log(3 * m) * std::log(2 * n) / 3);
}

}  // namespace attune
