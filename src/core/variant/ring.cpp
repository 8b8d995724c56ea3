// SPDX-License-Identifier: Apache-2.0
#include "core/variant/ring.h"

#include <algorithm>
#include <iterator>

#include "core/variant/dilated.h"
#include "core/variant/dilated_offsets.h"

namespace attune {
namespace {

constexpr std::string_view kCut[] = {"ring", "zigzag", "striped", "ulysses"};
constexpr std::string_view kOwn[] = {"inner", "layout", "ranks", "tokens"};
constexpr int kMostRanks = 1 << 16;

bool one_of(std::string_view s, const auto& words) {
  for (const std::string_view w : words)
    if (s == w) return true;
  return false;
}

// Parameters that do not belong to ring belong to the inner variant: "dilated rates=1,2 segments=8,16".
Status read_inner(const Variant& v, Variant& out) {
  std::string text(value(v, "inner"));
  std::string_view rest = v.text;
  rest.remove_prefix(std::min(rest.size(), word(v).size() + 1));
  std::string others;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    if (!one_of(one.substr(0, one.find('=')), kOwn)) others += join(" ", one);
  }
  if (text.empty() && !others.empty())
    return Status::no("ring:", others, " given without inner=; accepted: layout, ranks, tokens, inner");
  return assign(out, text + others);
}

// Whether the lists of the whole divide into lists of the pieces, so that no piece starts inside a block. For striped
// tokens: whether every rank gets the same number of each block.
Status blocks_fit(const Problem& p, const Shards& shards) {
  const auto no = [&](const auto&... why) { return Status::no("ring: ", why...); };
  const Blocks size = p.mask.blocks;
  if (p.keys == KeySource::ragged) return no("block lists require linear keys, not ragged");
  if (shards.cut == Cut::striped) {
    if (size.q % shards.ranks == 0 && size.k % shards.ranks == 0) return Status::good();
    return no("layout striped requires block sizes that are multiples of the ", shards.ranks, " ranks, not ", size.q,
              " and ", size.k);
  }
  for (int r = 0; r < shards.ranks; ++r)
    for (int n = 0; n < shards.pieces(); ++n)
      if (const int64_t at = shards.piece(r, n).first; at % size.q || at % size.k)
        return no(n ? "the second piece" : "the shard", " of rank ", r, " begins at token ", at,
                  ", not at a multiple of the block sizes ", size.q, " and ", size.k);
  return Status::good();
}

}  // namespace

std::string_view name(Cut c) { return kCut[int(c)]; }

Status read_ring(const Variant& v, Ring& out) {
  const auto number = [&](std::string_view of, int most, int32_t& to) {
    const Numbers n = numbers(v, of);
    if (n.count != 1 || n[0] < 1 || n[0] > most)
      return Status::no("ring: ", of, "=", value(v, of), " is not a number in 1 ... ", most);
    return to = n[0], Status::good();
  };
  int cut = 0;
  while (cut < int(std::size(kCut)) && kCut[cut] != value(v, "layout")) ++cut;
  if (cut == int(std::size(kCut)))
    return Status::no("ring: layout=", value(v, "layout"), " is not one of ring, zigzag, striped, ulysses");
  out.shards.cut = Cut(cut);
  if (Status s = number("ranks", kMostRanks, out.shards.ranks); !s.ok()) return s;
  if (Status s = number("tokens", INT32_MAX, out.shards.tokens); !s.ok()) return s;
  return read_inner(v, out.inner);
}

Status valid_ring(const Problem& p) {
  Ring ring;
  if (Status s = read_ring(p.variant, ring); !s.ok()) return s;
  const auto no = [&](const auto&... why) { return Status::no("ring: ", why...); };
  const Shards& shards = ring.shards;
  const bool ragged = p.keys == KeySource::ragged, whole = shards.cut == Cut::ulysses;
  if (p.keys == KeySource::paged) return no("keys must be linear or ragged, not paged");
  if (p.mask.align == Align::absolute || p.mask.k_step != 1 || p.mask.k_phase)
    return no("mask ", name(p.mask), " has @absolute or a key step; neither is accepted");
  for (const Option o : {Option::append, Option::bias, Option::block_bias, Option::descale, Option::accumulate})
    if (p.has(o)) return no("cannot be combined with option ", name(o));
  if (p.len_q != p.len_k) return no("len_q = ", p.len_q, " is not len_k = ", p.len_k, "; q and k are divided alike");
  if (!ragged && p.len_q < shards.most())
    return no("len_q = ", p.len_q, " is below the ", shards.most(), " tokens of a shard");
  if (ring.inner.text[0] && word(ring.inner) != "dilated") return no("inner=", word(ring.inner), " is not dilated");
  if (whole) {
    if (p.heads_q % shards.ranks) return no("heads_q = ", p.heads_q, " is not divisible by ", shards.ranks, " ranks");
    if (p.heads_kv % shards.ranks && shards.ranks % p.heads_kv)
      return no("heads_kv = ", p.heads_kv, " and ", shards.ranks, " ranks: neither divides the other");
    if (p.has(Option::dropout))
      return no("layout ulysses cannot be combined with dropout: its mask depends on the head, and heads move");
    if (Status s = valid(whole_of(p, ring)); !s.ok() || !ring.inner.text[0]) return s;
    const Dilated d = dilated_of(whole_of(p, ring));
    if (shards.ranks > 1 && d.mode != Dilated::Mode::longnet)
      return no("layout ulysses requires mode=longnet of dilated: the heads of a rank would form other groups");
    if (shards.ranks > 1 && dilated_offsets(whole_of(p, ring)) != DilatedOffsets::cyclic)
      return no("layout ulysses requires offsets=cyclic of dilated: the heads of a rank would have other offsets");
    for (int n = 0; n < d.branches; ++n)
      if (shards.ranks > 1 && p.heads_q / shards.ranks % d.rate[n])
        return no("layout ulysses: rate ", d.rate[n], " does not divide the ", p.heads_q / shards.ranks,
                  " heads of a rank");
    return Status::good();
  }
  if (shards.cut == Cut::striped)
    for (const Option o : {Option::alibi, Option::dropout})
      if (p.has(o)) return no("layout striped cannot be combined with ", name(o), ", which depends on token positions");
  if (shards.cut == Cut::striped && ragged && p.mask.kind == MaskKind::window)
    return no("layout striped does not support windows over ragged keys");
  if (shards.cut == Cut::striped && p.mask.kind == MaskKind::window && p.mask.right < 0)
    return no("layout striped does not support windows that end before the query: right = ", p.mask.right);
  if (p.mask.blocks.q)
    if (Status s = blocks_fit(p, shards); !s.ok()) return s;
  if (!ring.inner.text[0]) return Status::good();
  const Problem all = whole_of(p, ring);
  if (Status s = valid(all); !s.ok()) return s;
  const Dilated d = dilated_of(all);
  if (ragged) return no("inner=dilated requires linear keys, not ragged");
  if (d.norm != Dilated::Norm::lse || d.detached)
    return no("layout ", name(shards.cut),
              " requires norm=lse and gradient=exact of dilated: it merges one softmax over all keys");
  return Status::good();
}

void declare_ring(const Problem& p, const Args&, Declared& out) {
  out.self = true;
  if (p.mask.blocks.q) out.listed = ring_of(p).shards.tokens;
  if (p.keys == KeySource::ragged)
    out.tensor[kRingSequences] = {
        .name = "sequences", .use = Use::list, .dtype = DType::i32, .extent = {1, 1, 1, p.batch + 1}};
}

Problem whole_of(const Problem& p, const Ring& ring) {
  Problem w = p;
  w.variant = ring.inner;
  if (p.keys == KeySource::linear) w.len_q = w.len_k = ring.shards.tokens;
  return w;
}

}  // namespace attune
