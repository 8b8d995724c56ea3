// SPDX-License-Identifier: Apache-2.0
#include "core/variant/dilated.h"

#include <algorithm>
#include <numeric>

#include "core/variant/dilated_offsets.h"

namespace attune {
namespace {

using Word = std::string_view;

template <class E, size_t N>
Status read_word(const Variant& v, Word name, const Word (&words)[N], Word said, E& out) {
  const Word text = value(v, name);
  for (size_t n = 0; n < N; ++n)
    if (words[n] == text) return out = E(n), Status::good();
  return text.empty() ? Status::good() : Status::no("dilated: ", name, " = ", text, " is not one of ", said);
}

Status read_names(const Variant& v) {
  Word rest = v.text;
  rest.remove_prefix(word(v).size());
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const Word one = rest.substr(0, rest.find(' ')), name = one.substr(0, one.find('='));
    if (name != "gradient" && name != "mode" && name != "norm" && name != "offsets" && name != "rates" &&
        name != "segments")
      return Status::no("dilated: unknown parameter '", name,
                        "'; accepted: gradient, mode, norm, offsets, rates, segments");
    rest.remove_prefix(one.size());
  }
  return Status::good();
}

Status read_branches(const Variant& v, Dilated& out) {
  const auto no = [](const auto&... why) { return Status::no("dilated: ", why...); };
  const Numbers segments = numbers(v, "segments"), rates = numbers(v, "rates");
  if (!segments.count) return no("segments = '", value(v, "segments"), "' is not a list of 1 ... 32 numbers");
  if (!rates.count) return no("rates = '", value(v, "rates"), "' is not a list of 1 ... 32 numbers");
  if (segments.count != rates.count)
    return no(segments.count, " segments and ", rates.count, " rates given; each segment has one rate");
  out.branches = rates.count;
  for (int n = 0; n < rates.count; ++n) {
    if (rates[n] < 1 || rates[n] > segments[n])
      return no("rate ", rates[n], " is not in 1 ... ", segments[n], ", the length of its segment");
    out.segment[n] = segments[n], out.rate[n] = rates[n];
  }
  return Status::good();
}

// The number of heads after which offsets and KV heads repeat together, so that a stride through both is a view.
int period(const Problem& p, int rate) {
  const int group = p.heads_q / p.heads_kv;
  return group % rate == 0 ? rate : int(std::min<int64_t>(std::lcm(int64_t(rate), int64_t(group)), p.heads_q));
}

HeadSet longnet_set(const Problem& p, int rate, int i) {
  const int group = p.heads_q / p.heads_kv, step = period(p, rate), count = (p.heads_q - i + step - 1) / step;
  HeadSet s{i % rate, i, i / group, std::max(count, 0), std::max(count, 0), step, std::max(step / group, 1)};
  if (group % rate == 0) s.heads_kv = p.heads_kv, s.step_kv = 1;
  return s;
}

// Part i of a range of heads with one offset: those before its first complete GQA group, the complete groups, the rest.
HeadSet part_of(const Problem& p, const Rows& all, int offset, int i) {
  const int group = p.heads_q / p.heads_kv;
  // The range of complete GQA groups. If both ends fall inside one group, there is no complete group.
  int first = int(round_up(all.first, group)), last = all.last / group * group;
  if (first > last) first = last = all.last;
  const Rows parts[] = {{all.first, first}, {first, last}, {last, all.last}};
  const Rows part = parts[i];
  const int heads = part.last - part.first;
  return {offset, part.first, part.first / group, heads, i == 1 ? heads / group : std::min(heads, 1), 1, 1};
}

// Contiguous offsets: a range of heads for each. A range of complete GQA groups, or within one, is one set, so that no
// set is empty and neighbours become one call; any other range is three.
struct Ranges {
  int each, count, parts = 3;

  Ranges(const Problem& p, int rate)
      : each(int(ceil_div(p.heads_q, rate))), count(int(ceil_div(p.heads_q, each))) {
    const int group = p.heads_q / p.heads_kv;
    if (each % group == 0 || group % each == 0) parts = 1;
  }
  HeadSet set(const Problem& p, int i) const {
    const int n = i / parts, first = n * each, last = std::min(first + each, int(p.heads_q));
    if (parts == 3) return part_of(p, {first, last}, n, i % 3);
    const int heads = last - first, group = p.heads_q / p.heads_kv;
    return {n, first, first / group, heads, std::max(heads / group, 1), 1, 1};
  }
};

}  // namespace

Status read_dilated(const Problem& p, Dilated& out) {
  constexpr Word kMode[] = {"longnet", "headgroup"}, kNorm[] = {"lse", "divide", "none"},
                 kGradient[] = {"exact", "detached"}, kOffsets[] = {"cyclic", "contiguous"};
  const auto no = [](const auto&... why) { return Status::no("dilated: ", why...); };
  Dilated d;
  DilatedOffsets offsets = DilatedOffsets::cyclic;
  if (Status s = read_names(p.variant); !s.ok()) return s;
  if (Status s = read_word(p.variant, "mode", kMode, "longnet, headgroup", d.mode); !s.ok()) return s;
  if (Status s = read_word(p.variant, "norm", kNorm, "lse, divide, none", d.norm); !s.ok()) return s;
  if (Status s = read_word(p.variant, "gradient", kGradient, "exact, detached", d.detached); !s.ok()) return s;
  if (Status s = read_word(p.variant, "offsets", kOffsets, "cyclic, contiguous", offsets); !s.ok()) return s;
  if (Status s = read_branches(p.variant, d); !s.ok()) return s;
  if (d.detached && !(d.mode == Dilated::Mode::longnet && d.norm == Dilated::Norm::lse))
    return no("gradient=detached requires mode=longnet and norm=lse");
  if (offsets != DilatedOffsets::cyclic && d.mode != Dilated::Mode::longnet)
    return no("offsets=contiguous requires mode=longnet; heads of a group have the same offset");
  if (d.mode == Dilated::Mode::headgroup && p.heads_q < d.branches)
    return no("mode=headgroup requires a head per branch: ", d.branches, " branches, heads_q = ", p.heads_q);
  if (p.options) return no("options of dense attention are not accepted");
  if (p.keys != KeySource::linear) return no("keys must be linear, not ", name(p.keys));
  if (p.len_q != p.len_k) return no("q", p.len_q, " and k", p.len_k, " differ; queries and keys must be the same rows");
  // Queries and keys of a branch are the same rows, so causal stays causal; a window would have to be divided.
  const Mask& m = p.mask;
  if (m.kind == MaskKind::window || m.align == Align::absolute || m.blocks.q || m.k_step != 1 || m.k_phase)
    return no("mask ", name(m), " is not full or causal");
  out = d;
  return Status::good();
}

Status valid_dilated(const Problem& p) {
  Dilated d;
  return read_dilated(p, d);
}

void declare_dilated(const Problem& p, const Args& a, Declared& d) {
  const bool backward = p.pass == Pass::backward, joined = dilated_of(p).norm == Dilated::Norm::lse;
  d.dense = false;
  d.required = roles(Role::q, Role::k, Role::v, Role::out) |
               roles_if(backward, roles(Role::lse, Role::d_out, Role::dq, Role::dk, Role::dv));
  // The lse of a sum of softmaxes only reflects the number of keys, so it has no gradient.
  d.optional = roles(Role::lse) | roles_if(backward && joined, roles(Role::d_lse));
  d.self = true;
  d.k.seq = a[Role::q].extent.seq;
}

DilatedOffsets dilated_offsets(const Problem& p) {
  return value(p.variant, "offsets") == "contiguous" ? DilatedOffsets::contiguous : DilatedOffsets::cyclic;
}

int head_sets(const Dilated& d, const Problem& p, int n) {
  if (d.mode == Dilated::Mode::headgroup) return 3;
  if (dilated_offsets(p) == DilatedOffsets::cyclic) return period(p, d.rate[n]);
  const Ranges ranges(p, d.rate[n]);
  return ranges.count * ranges.parts;
}

HeadSet head_set(const Dilated& d, const Problem& p, int n, int i) {
  if (d.mode == Dilated::Mode::headgroup)
    return part_of(p, group_heads(p.heads_q, d.branches, n), n % d.rate[n], i);
  if (dilated_offsets(p) == DilatedOffsets::cyclic) return longnet_set(p, d.rate[n], i);
  return Ranges(p, d.rate[n]).set(p, i);
}

double dilated_pairs(const Problem& p, int64_t length) {
  const Dilated d = dilated_of(p);
  double pairs = 0;
  for (int n = 0; n < d.branches; ++n)
    for (int i = 0; i < head_sets(d, p, n); ++i) {
      const HeadSet s = head_set(d, p, n, i);
      const int64_t whole = length / d.segment[n], rest = length % d.segment[n];
      const auto of_segment = [&](int64_t rows) {
        const auto count = double(pick(s.offset, d.rate[n], 0, rows).count);
        return p.mask.kind == MaskKind::causal ? count * (count + 1) / 2 : count * count;
      };
      pairs += s.heads_q * (double(whole) * of_segment(d.segment[n]) + of_segment(rest));
    }
  return pairs;
}

}  // namespace attune
