// SPDX-License-Identifier: Apache-2.0
#include "verify/cases/cases.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

namespace attune {
namespace {

constexpr std::string_view kAxes = "bqhk";  // axes of a bias

// The maximum number of entries in block lists of this problem.
Blocks blocks_of(const Problem& p, int q, int k) {
  return {q, k, int(p.batch * p.heads_q * ceil_div(p.len_q, q) * ceil_div(p.len_k, k))};
}

template <Option o>
constexpr Topic topic(std::string_view word) {
  return {word, [](const Problem& p) { return p.has(o); },
          [](Problem& p) {
            p.set(o);
            if (o == Option::bias) p.dtype.bias = DType::f32;
            if (o == Option::block_bias) p.mask.blocks = blocks_of(p, 16, 16);
            if (o == Option::accumulate) (p.pass == Pass::forward ? p.dtype.out : p.dtype.grad) = DType::f32;
            if (o == Option::rotary || o == Option::rotary_half) p.set(Option::append);
          }};
}

// Rows of settings in which every pair of settings of any two axes occurs: greedy, from a seed.
std::vector<std::vector<int>> pairwise(const std::vector<int>& levels, uint64_t seed) {
  Random random{seed};
  std::set<std::array<int, 4>> open;
  const size_t axes = levels.size();
  for (size_t a = 0; a < axes; ++a)
    for (size_t b = a + 1; b < axes; ++b)
      for (int x = 0; x < levels[a]; ++x)
        for (int y = 0; y < levels[b]; ++y) open.insert({int(a), x, int(b), y});
  const auto each_pair = [&](const std::vector<int>& row, auto f) {
    for (size_t a = 0; a < axes; ++a)
      for (size_t b = a + 1; b < axes; ++b) f(std::array{int(a), row[a], int(b), row[b]});
  };
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    std::vector<int> best;
    int most = -1;
    for (int tries = 0; tries < 30; ++tries) {
      std::vector<int> row;
      for (const int l : levels) row.push_back(random.below(l));
      const auto& pair = *open.begin();  // guarantees that every row makes progress
      row[size_t(pair[0])] = pair[1], row[size_t(pair[2])] = pair[3];
      int gain = 0;
      each_pair(row, [&](const auto& p) { gain += int(open.count(p)); });
      if (gain > most) most = gain, best = row;
    }
    each_pair(best, [&](const auto& p) { open.erase(p); });
    rows.push_back(best);
  }
  return rows;
}

// The axes of the pairwise lists, in the order of the levels passed to pairwise().
struct Setting {
  enum Axis { len, head, dims, mask, align, source, dtype, blocks, lengths, magnitude, layout, pad, broadcast, repro,
              softcap, alibi, bias, dropout, sink, last, cache, cu_q, used_q, seed_even, d_lse, lean, count };
  static std::vector<int> levels() {
    return {8, 3, 7, 7, 3, 5, 4, 4, 3, 3, 2, 3, 4, 3, 2, 2, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2};
  }
  const std::vector<int>& at;
  int operator[](Axis a) const { return at[size_t(a)]; }
};

// Masks that show no key at full lengths, such as a window before a single query, compare nothing: they get one that
// does. Lists and lengths are drawn; a Trial draws them again until they show a key.
void show_a_key(Problem& p) {
  const auto shows = [&] {
    for (int b = 0; b < p.batch; ++b) {
      const BandWalk walk{band_of(p.mask, p.len_q, p.len_k, 17, 5 * b), p.len_k, 1};
      for (int i = 0; i < p.len_q; ++i)
        if (walk.first_key(i) < walk.last_key(i)) return true;
    }
    return false;
  };
  if (!shows()) p.mask.align = Align::bottom_right;
  if (!shows()) p.mask.right = 0;
}

Case case_of(const Setting& at, Pass pass, uint32_t seed) {
  static constexpr int kLens[][2] = {{1, 1}, {1, 200}, {33, 129}, {130, 65}, {64, 64}, {7, 300}, {127, 31}, {90, 90}};
  static constexpr int kHeads[][2] = {{2, 2}, {4, 2}, {3, 1}};
  static constexpr int kDims[][2] = {{64, 64}, {40, 24}, {8, 8}, {32, 96}, {128, 128}, {24, 16}, {256, 256}};
  static constexpr int kPages[] = {0, 0, 1, 16, 64};
  static constexpr KeySource kSources[] = {KeySource::linear, KeySource::ragged, KeySource::paged, KeySource::paged,
                                           KeySource::paged};
  static constexpr Mask kMasks[] = {{},
                                    {.kind = MaskKind::causal},
                                    {.kind = MaskKind::causal},
                                    {.kind = MaskKind::window, .left = 16},
                                    {.kind = MaskKind::window, .left = 5, .right = 3},
                                    {.kind = MaskKind::window, .left = kNoLimit, .right = -2},
                                    {.kind = MaskKind::causal, .k_step = 4, .k_phase = 3}};  // NSA's compressed keys
  static constexpr int kBlocks[][2] = {{0, 0}, {64, 64}, {128, 128}, {48, 32}};
  static constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::bf16};
  static constexpr DType kBias[] = {DType::none, DType::f32, DType::f16, DType::bf16};
  static constexpr int kMagnitudes[] = {0, 4, -4}, kPad[] = {8, 0, 3};
  using S = Setting;

  Case c;
  Problem& p = c.problem;
  p.pass = pass, p.batch = at[S::dims] == 6 || at[S::len] == 5 ? 2 : 3;
  p.heads_q = kHeads[at[S::head]][0], p.heads_kv = kHeads[at[S::head]][1];
  p.len_q = kLens[at[S::len]][0], p.len_k = kLens[at[S::len]][1];
  p.dim_qk = kDims[at[S::dims]][0], p.dim_v = kDims[at[S::dims]][1];
  p.mask = kMasks[at[S::mask]], p.mask.align = Align(at[S::align]);
  show_a_key(p);
  p.keys = kSources[at[S::source]], p.page = kPages[at[S::source]];
  p.reproducible = Reproducible(at[S::repro]);
  if (at[S::blocks]) p.mask.blocks = blocks_of(p, kBlocks[at[S::blocks]][0], kBlocks[at[S::blocks]][1]);
  for (const auto& [axis, option] : {std::pair{S::softcap, Option::softcap}, {S::alibi, Option::alibi},
                                     {S::bias, Option::bias}, {S::dropout, Option::dropout}, {S::sink, Option::sink}})
    if (at[axis]) p.set(option);
  p.dtype.bias = kBias[at[S::bias]];
  if (p.mask.blocks.q && p.dtype.bias == DType::f16)  // with a list, one bias in three is a block_bias
    p.clear(Option::bias), p.set(Option::block_bias), p.dtype.bias = DType::none;
  const DType type = kTypes[at[S::dtype]], f32 = DType::f32;
  const bool backward = pass == Pass::backward, accumulate = at[S::last] && !backward;
  const bool mixed = at[S::dtype] == 3 || accumulate;  // low precision in, f32 out
  if (accumulate) p.set(Option::accumulate);
  p.dtype.q = p.dtype.kv = type, p.dtype.out = mixed && !backward ? f32 : type;
  if (backward) p.dtype.grad = mixed ? f32 : type;
  if (backward && p.dtype.grad == f32 && at[S::seed_even]) p.set(Option::accumulate);

  Variation& v = c.variation;
  v.seed = 2 * seed + uint32_t(at[S::seed_even]);
  v.magnitude = kMagnitudes[at[S::magnitude]];
  // A kernel that keeps dS in f16 would overflow with values of the order of 1e4.
  if (backward && type == DType::f16 && v.magnitude > 0) v.magnitude = 0;
  v.lengths = Lengths(at[S::lengths]), v.layout = Layout(at[S::layout]), v.pad = kPad[at[S::pad]];
  v.cache = at[S::cache], v.cu_q = at[S::cu_q] && p.keys != KeySource::ragged, v.used_q = at[S::used_q];
  v.d_lse = backward && at[S::d_lse], v.lean = at[S::lean];
  v.shared = backward ? at[S::last] : at[S::d_lse];
  static constexpr uint32_t kOnce[] = {0, 1 | 4, 2, 8 | 1};
  if (p.has(Option::bias)) v.bias_once = kOnce[at[S::broadcast]];
  return c;
}

// Appending to a cache, with its own axes: where new rows go, how they are rotated, how many there are.
struct AppendSetting {
  enum Axis { len, head, dims, mask, align, source, dtype, options, lengths, layout, pad, rotary, pairs, added, cache,
              cu_q, used_q, shared, repro, count };
  static std::vector<int> levels() { return {6, 3, 5, 5, 3, 4, 4, 6, 3, 2, 3, 3, 3, 4, 2, 2, 2, 2, 3}; }
  const std::vector<int>& at;
  int operator[](Axis a) const { return at[size_t(a)]; }
};

Case append_case_of(const AppendSetting& at, uint32_t seed) {
  static constexpr int kLens[][2] = {{1, 1}, {1, 200}, {5, 64}, {33, 129}, {64, 64}, {7, 300}};
  static constexpr int kHeads[][2] = {{2, 2}, {4, 2}, {3, 1}};
  static constexpr int kDims[][2] = {{64, 64}, {40, 24}, {8, 8}, {128, 128}, {256, 256}};
  static constexpr Mask kMasks[] = {{},
                                    {.kind = MaskKind::causal},
                                    {.kind = MaskKind::window, .left = 16},
                                    {.kind = MaskKind::window, .left = 5, .right = 3},
                                    {.kind = MaskKind::causal, .k_step = 4, .k_phase = 3}};
  static constexpr int kPages[] = {0, 1, 16, 64}, kPad[] = {8, 0, 3}, kPairs[] = {0, 4, 3}, kAdded[] = {-1, 1, 5, 0};
  static constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::bf16};
  static constexpr uint32_t kOptions[] = {0,
                                          1u << int(Option::softcap) | 1u << int(Option::alibi),
                                          1u << int(Option::bias),
                                          1u << int(Option::dropout) | 1u << int(Option::sink),
                                          1u << int(Option::accumulate),
                                          0};  // the last: a block list
  using S = AppendSetting;
  Case c;
  Problem& p = c.problem;
  p.batch = 3, p.heads_q = kHeads[at[S::head]][0], p.heads_kv = kHeads[at[S::head]][1];
  p.len_q = kLens[at[S::len]][0], p.len_k = kLens[at[S::len]][1];
  p.dim_qk = kDims[at[S::dims]][0], p.dim_v = kDims[at[S::dims]][1];
  p.mask = kMasks[at[S::mask]], p.mask.align = Align(at[S::align]);
  show_a_key(p);
  p.page = kPages[at[S::source]], p.keys = p.page ? KeySource::paged : KeySource::linear;
  p.reproducible = Reproducible(at[S::repro]);
  p.options = kOptions[at[S::options]];
  if (at[S::options] == 5) p.mask.blocks = blocks_of(p, 48, 32);
  p.set(Option::append);
  if (at[S::rotary]) p.set(at[S::rotary] == 1 ? Option::rotary : Option::rotary_half);
  const bool f32 = at[S::dtype] == 3 || p.has(Option::accumulate);
  const DType type = kTypes[at[S::dtype]];
  p.dtype = {type, type, f32 ? DType::f32 : type, DType::none, p.has(Option::bias) ? DType::f32 : DType::none};

  Variation& v = c.variation;
  v.seed = seed, v.lengths = Lengths(at[S::lengths]), v.layout = Layout(at[S::layout]), v.pad = kPad[at[S::pad]];
  v.cu_q = at[S::cu_q], v.cache = at[S::cache], v.shared = at[S::shared], v.used_q = at[S::used_q];
  v.added = kAdded[at[S::added]], v.pairs = at[S::rotary] ? kPairs[at[S::pairs]] : 0;
  return c;
}

// Individually hard lines: rows that see nothing, more queries than keys, one query, long and odd lengths, values far
// from 1.
constexpr std::string_view kNasty[] = {
    "forward f32 b1 h1 q1 k1 d8 full",
    "forward f32 b1 h1 q1 k1 d8 causal@top_left",
    "forward f32 b1 h2 q1 k1025 d64 causal",
    "forward bf16 b1 h4/1 q1 k1025 d128 full",
    "forward f16 b1 h2 q3 k1025 d64 causal",
    "forward f32 b1 h1 q1025 k1025 d16 causal",
    "forward f32 b1 h1 q1025 k31 d16 causal",
    "forward f32 b1 h1 q130 k1 d32 causal",
    "forward f32 b2 h2 q127 k33 d64 causal",
    "forward f32 b2 h2 q65 k64 d64 causal@top_left",
    "forward f32 b2 h2 q64 k65 d64 window0,0",
    "forward f32 b2 h2 q64 k65 d64 window0,0@top_left",
    "forward f32 b2 h2 q70 k70 d64 window3,-2",
    "forward f32 b2 h2 q70 k70 d64 window2,-3 | empty",
    "forward f32 b2 h2 q70 k40 d64 window*,-69 | empty",
    "forward f32 b2 h2 q33 k65 d64 window*,*",
    "forward f32 b2 h2 q33 k65 d64 window1000000,1000000",
    "forward f32 b1 h2 q96 k96 d64 full sink",
    "forward f32 b1 h2 q40 k40 d64 window*,-39 sink | seed=3",
    "forward f32 b2 h2 q65 k127 d248 causal",
    "forward bf16 b2 h2 q65 k127 d192/128 causal",
    "forward bf16 b1 h2 q128 k128 d256 full",
    "forward bf16 b5 h2 q40 k48 d64 causal",
    "forward f16 b2 h3 q129 k257 d72/40 window100,0",
    "forward f32 b6 h2 q127 k127 d32 causal ragged | seed=2 odd",
    "forward bf16 b6 h2/1 q127 k127 d64 full ragged | seed=3 odd",
    "forward f32 b3 h2 q1 k1025 d64 causal paged16 | seed=2 odd cache",
    "forward f32 b6 h4/2 q5 k200 d64 causal paged1 | seed=4 drawn cache shared",
    "forward f32 b8 h2 q33 k65 d64 full ragged | seed=5 drawn",
    "forward f32 b1 h2 q48 k65 d64 full | seed=1 x1e4",
    "forward f32 b1 h2 q48 k65 d64 causal | seed=2 x1e4",
    "forward bf16 b1 h2 q48 k65 d64 causal | seed=1 x1e4",
    "forward f16 b1 h2 q48 k65 d64 full | seed=1 x1e4",
    "forward f32 b1 h2 q48 k65 d64 full | seed=1 x1e-4",
    "forward f32 b1 h2 q48 k65 d64 full accumulate | seed=2 x1e-4",
    "forward bf16 b1 h2 q48 k65 d64 causal | seed=1 x1e-4",
    "forward f16 b1 h2 q48 k65 d64 causal | seed=2 x1e-4",
    "forward f32 b1 h2 q200 k200 d64 full blocks48x32x100 | seed=2",
    "forward f32 b2 h4/2 q160 k200 d64 causal/4+3 blocks64x64x200",
    "forward f32 b3 h4/2 q80 k96 d64 causal@absolute alibi dropout sink",
    "forward f32 b1 h8 q512 k512 d64 causal",
    "forward bf16 b1 h2 q300 k1025 d64 causal",
    "forward f32 b1 h4 q64 k1600 d64 full | seed=1 x1e1",
    "forward bf16 b1 h4 q64 k1600 d64 full | seed=1 x1e1",
    "forward f32 b1 h2 q3 k1600 d64 causal sink",
    "forward f32 b1 h2 q3 k1600 d64 causal sink accumulate",
    "forward f32 b2 h2 q70 k40 d64 causal append | new=40",
    "forward bf16 b2 h2 q300 k600 d64 causal | seed=3 drawn cu_q cache",
    "forward f16 b2 h2 q300 k600 d64 causal paged16 | seed=2 drawn used_q",
    "forward bf16 b2 h4/2 q1 k1025 d128 causal append rotary_half | cache",
    "forward f16 b3 h4/1 q3 k1025 d64 causal append rotary paged1 | seed=2 odd cache new=7 pairs=5",
    "forward bf16 b2 h2 q300 k512 d64 causal append rotary | seed=3 drawn cache cu_q",
    "forward bf16 b3 h16/1 q1 k1500 d128 causal paged3 | seed=2 drawn cache",
    "forward f16 b2 h8/2 q5 k2100 d96 window300,2 paged16 | seed=2 drawn cache",
    "forward bf16 b2 h8/2 q9 k1300 d64 causal sink | seed=3 drawn cache bhsd",
    "forward bf16 b2 h4/2 q3 k1300 d256 full repro=batch | seed=2 drawn cache",
    "forward bf16 b3 h8/2 q40 k1100 d128 causal paged16 repro=batch | seed=4 drawn cache used_q",
    "forward f16 b1 h4/1 q1 k9000 d128/72 full",
    "forward f32 b2 h2 q4 k64 d64 full append rotary | seed=2 x1e4",
    "forward bf16 b2 h2 q4 k64 d64 causal append rotary_half paged16 | seed=2 x1e-4 cache shared",
    "forward f32 b2 h3/1 q65 k70 d13/7 causal precision=tf32",
    "forward f32 b2 h2 q65 k70 d1/130 window9,3 precision=tf32x3 | bhsd pad=3",
    "forward f32 b1 h2 q130 k300 d256 causal precision=tf32x3",
    "backward f32 b1 h1 q1 k1 d8 full",
    "backward f32 b1 h2 q1 k1025 d64 causal",
    "backward f32 b1 h1 q1025 k65 d16 causal",
    "backward f32 b2 h2 q127 k33 d64 causal",
    "backward f32 b2 h2 q65 k64 d64 causal@top_left",
    "backward f32 b2 h2 q64 k65 d64 window0,0",
    "backward f32 b2 h2 q70 k70 d64 window3,-2 | seed=2 d_lse",
    "backward f32 b2 h2 q70 k70 d64 window2,-3 | empty",
    "backward f32 b1 h2 q40 k40 d64 window*,-39 sink | seed=3",
    "backward f32 b2 h2 q65 k127 d248 causal",
    "backward bf16 b2 h2 q65 k127 d192/128 causal",
    "backward f16 b2 h3 q129 k257 d72/40 window100,0",
    "backward bf16 b1 h1 q65 k65 d256 full",
    "backward bf16 b5 h2 q40 k48 d64 causal",
    "backward f16 b2 h2 q128 k128 d64 full",
    "backward f16 b2 h2 q128 k128 d64 causal",
    "backward f16 b2 h2 q128 k128 d64 window40,0",
    "backward f16 b2 h2 q128 k128 d64 causal@top_left",
    "backward f16 b2 h4/2 q128 k128 d64/32 full",
    "backward bf16 b2 h2 q128 k128 d64 full",
    "backward bf16 b2 h2 q128 k128 d64 causal",
    "backward bf16 b2 h2 q128 k128 d64 window40,0",
    "backward bf16 b2 h2 q128 k128 d64 causal@top_left",
    "backward bf16 b2 h4/2 q128 k128 d64/32 full",
    "backward bf16 b2 h3 q100 k2048 d64 full",
    "backward f32 b6 h2 q127 k127 d32 causal ragged | seed=2 odd",
    "backward bf16 b6 h2/1 q127 k127 d64 full ragged | seed=3 odd",
    "backward f32 b3 h4/2 q33 k64 d64 causal paged16 | seed=2 drawn cache shared",
    "backward f32 b8 h2 q33 k65 d64 full ragged | seed=5 drawn",
    "backward f32 b1 h2 q48 k65 d64 causal | seed=2 x1e4",
    "backward f32 b1 h2 q48 k65 d64 causal | seed=2 x1e-4",
    "backward bf16 b1 h2 q48 k65 d64 causal | seed=2 x1e4",
    "backward f16 b1 h2 q48 k65 d64 causal | seed=2 x1e-4",
    "backward f32 b2 h2 q64 k65 d64 full bias | seed=2 bias=bqhk",
    "backward f32 b2 h2 q64 k65 d64 full bias | seed=2 bias=bh d_lse",
    "backward f32 b1 h2 q200 k200 d64 full blocks48x32x100 | seed=2",
    "backward f32 b3 h4/2 q80 k96 d64 causal@absolute alibi dropout sink | seed=2 d_lse",
    "backward f32 b1 h2 q300 k300 d64 causal",
    "backward f32 b1 h2 q70 k65 d64 causal accumulate",
    "backward bf16/bf16/bf16/f32 b2 h4/2 q130 k200 d128 causal accumulate | seed=2 drawn d_lse",
    "backward bf16/bf16/bf16/f32 b3 h4/2 q33 k64 d64 causal sink accumulate paged16 | seed=2 drawn cache shared used_q",
    "backward f16/f16/f16/f32 b6 h2/1 q127 k127 d96 full accumulate ragged | seed=3 odd used_q",
    "backward bf16/bf16/bf16/f32 b2 h2 q200 k200 d64 full blocks48x32x240 bias sink accumulate | seed=2 bias=b",
    "backward bf16/bf16/bf16/f32 b2 h4/2 q200 k200 d64 full blocks48x32x240 accumulate repro=run | seed=2",
    "backward bf16/bf16/bf16/f32 b2 h2 q100 k300 d192/128 causal accumulate repro=run | cache",
    "forward f32 b2 h4/2 q200 k260 d64 causal blocks64x64x160 softcap block_bias",
    "forward bf16 b2 h4/2 q300 k260 d128 full blocks128x128x72 block_bias | seed=2 drawn cache",
    "forward f16 b2 h2 q200 k200 d64 full blocks48x32x70 block_bias | shared",
    "backward f32 b2 h4/2 q200 k260 d64 causal blocks64x64x160 softcap block_bias",
    "backward bf16 b2 h4 q512 k512 d64 full blocks512x512x99 block_bias | seed=2",
    "backward bf16 b2 h4/2 q300 k260 d128 full blocks128x128x72 block_bias | seed=2 drawn cache d_lse",
    "backward f16 b2 h4/2 q200 k200 d64 full blocks48x32x70 dropout block_bias | shared seed=2",
    "backward bf16/bf16/bf16/f32 b2 h2 q200 k200 d64 full blocks64x64x128 accumulate block_bias | lean",
    "backward bf16 b2 h4/2 q1100 k70 d64 full blocks1x32x9000 | lean",
    "backward bf16 b2 h4/2 q1100 k70 d128 causal blocks1x32x2000 paged16 repro=run | seed=2 lean shared cache",
    "backward bf16 b1 h2/1 q1030 k64 d128 full blocks1x32x40 paged16 repro=run | lean shared",  // nearly empty
    "backward f16 b2 h2 q64 k300 d64 full bias repro=run | seed=3 x1e4 d_lse",  // dS kept in f16
    "backward f16 b2 h2 q64 k300 d64 full | seed=3 x1e-4 d_lse",
    "backward f16 b2 h4/2 q130 k300 d128 causal sink repro=run | seed=3 x1e-4 d_lse",
    "backward f32 b2 h3/1 q65 k70 d13/7 causal precision=tf32",
    "backward f32 b2 h2 q65 k70 d130/1 window9,3 precision=tf32x3 | bhsd pad=3",
    "backward f32 b1 h2 q130 k300 d256 causal precision=tf32x3",
    // A ring of one rank is the whole problem.
    "forward f32 b2 h4/2 q65 k65 d32 causal : ring layout=ring ranks=1 tokens=65",
    "backward f32 b2 h4/2 q65 k65 d32 causal : ring layout=zigzag ranks=1 tokens=65",
    "forward bf16 b2 h4/2 q65 k65 d64 window9,3 sink : ring layout=zigzag ranks=1 tokens=65",
    "backward bf16 b2 h4/2 q65 k65 d64 window9,3 sink : ring layout=striped ranks=1 tokens=65",
    "forward f16 b2 h4/2 q65 k65 d64 causal sink : ring layout=ulysses ranks=1 tokens=65",
    "backward f16 b2 h4/2 q65 k65 d64 causal sink : ring layout=ulysses ranks=1 tokens=65",
};

// Repeats f32 cases with the precisions that tensor cores allow, alternately.
void add_precisions(std::vector<Case>& all) {
  const size_t count = all.size();
  for (size_t n = 0; n < count; ++n) {
    Case c = all[n];
    if (c.problem.dtype.q != DType::f32 || c.problem.dtype.kv != DType::f32) continue;
    if (c.problem.precision != Precision::full) continue;
    // Where one key dominates a row, tf32 may select another key.
    c.problem.precision = all.size() % 2 && !c.variation.large_logits ? Precision::tf32 : Precision::tf32x3;
    c.quick = c.quick && all.size() % 3 == 0;
    all.push_back(c);
  }
}

bool take(std::string_view& word, std::string_view prefix) {
  if (!word.starts_with(prefix)) return false;
  word.remove_prefix(prefix.size());
  return true;
}

bool number(std::string_view text, auto& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

bool read_word(std::string_view word, Variation& v) {
  const auto flag = [&](std::string_view text, bool& on) { return word == text && (on = true); };
  if (flag("cu_q", v.cu_q) || flag("cache", v.cache) || flag("shared", v.shared) || flag("used_q", v.used_q) ||
      flag("d_lse", v.d_lse) || flag("lean", v.lean) || flag("far", v.large_logits) || flag("empty", v.empty))
    return true;
  for (const Lengths l : {Lengths::drawn, Lengths::odd})
    if (word == name(l)) return v.lengths = l, true;
  if (word == name(Layout::bhsd)) return v.layout = Layout::bhsd, true;
  if (take(word, "seed=")) return number(word, v.seed);
  if (take(word, "new=")) return number(word, v.added) && v.added >= 0;
  if (take(word, "pairs=")) return number(word, v.pairs) && v.pairs > 0;
  if (take(word, "pad=")) return number(word, v.pad) && v.pad >= 0 && v.pad <= 64;
  if (take(word, "x1e")) return number(word, v.magnitude) && v.magnitude >= -4 && v.magnitude <= 4;
  if (!take(word, "bias=") || word.empty()) return false;
  for (const char axis : word) {
    const size_t n = kAxes.find(axis);
    if (n == kAxes.npos) return false;
    v.bias_once |= 1u << n;
  }
  return true;
}

}  // namespace

std::string name(const Variation& v) {
  const Variation plain;
  std::string s;
  const auto say = [&](bool differs, const auto&... text) {
    if (differs) s += join(s.empty() ? "" : " ", text...);
  };
  say(v.seed != plain.seed, "seed=", v.seed);
  say(v.lengths != plain.lengths, name(v.lengths));
  say(v.magnitude != 0, "x1e", v.magnitude), say(v.large_logits, "far");
  say(v.layout != plain.layout, name(v.layout));
  say(v.pad != plain.pad, "pad=", v.pad);
  say(v.cu_q, "cu_q"), say(v.cache, "cache"), say(v.shared, "shared"), say(v.used_q, "used_q");
  std::string once;
  for (size_t n = 0; n < kAxes.size(); ++n)
    if (v.bias_once >> n & 1) once += kAxes[n];
  say(!once.empty(), "bias=", once);
  say(v.d_lse, "d_lse"), say(v.lean, "lean");
  say(v.added != plain.added, "new=", v.added), say(v.pairs != 0, "pairs=", v.pairs);
  say(v.empty, "empty");
  return s;
}

std::string name(const Case& c) {
  const std::string words = name(c.variation);
  return name(c.problem) + (words.empty() ? "" : " | " + words);
}

Status parse(std::string_view text, Case& out) {
  const size_t bar = text.find(" | ");
  Case c;
  if (Status s = parse(text.substr(0, bar), c.problem); !s.ok()) return s;
  for (std::string_view rest = bar == text.npos ? "" : text.substr(bar + 3); !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    if (!read_word(word, c.variation))
      return Status::no("case: '", word, "' is not one of seed=#, drawn, odd, x1e#, far, bhsd, pad=#, cu_q, cache, "
                        "shared, used_q, bias=<of bqhk>, d_lse, lean, new=#, pairs=#, empty");
  }
  out = c;
  return Status::good();
}

std::span<const std::string_view> nasty_lines() { return kNasty; }

std::vector<std::string> with_passes(std::string_view word, std::span<const VariantLine> lines) {
  std::vector<std::string> all;
  for (const auto& [sizes, variant, variation] : lines)
    for (const std::string_view pass : {"forward", "backward"})
      for (const std::string_view dtype : {"f32", "f16", "bf16"})
        all.push_back(join(pass, " ", dtype, " ", sizes, " : ", word, " ", variant, variation.empty() ? "" : " | ",
                           variation));
  return all;
}

const std::vector<Topic>& topics() {
  static const std::vector<Topic> all = with_nsa_topics({
      {"plain", [](const Problem& p) { return !p.options && p.mask.kind == MaskKind::full && !p.mask.blocks.q; },
       [](Problem&) {}},
      {"causal", [](const Problem& p) { return p.mask.kind == MaskKind::causal; },
       [](Problem& p) { p.mask.kind = MaskKind::causal; }},
      {"window", [](const Problem& p) { return p.mask.kind == MaskKind::window; },
       [](Problem& p) { p.mask.kind = MaskKind::window, p.mask.left = 7, p.mask.right = 2; }},
      {"top_left", [](const Problem& p) { return p.mask.align == Align::top_left; },
       [](Problem& p) { p.mask.kind = MaskKind::causal, p.mask.align = Align::top_left; }},
      {"absolute", [](const Problem& p) { return p.mask.align == Align::absolute; },
       [](Problem& p) { p.mask.kind = MaskKind::causal, p.mask.align = Align::absolute; }},
      {"k_step", [](const Problem& p) { return p.mask.k_step > 1; },
       [](Problem& p) { p.mask.kind = MaskKind::causal, p.mask.k_step = 4, p.mask.k_phase = 3; }},
      {"blocks", [](const Problem& p) { return p.mask.blocks.q > 0; },
       [](Problem& p) { p.mask.blocks = blocks_of(p, 16, 16); }},
      {"gqa", [](const Problem& p) { return p.heads_q != p.heads_kv; },
       [](Problem& p) { p.heads_q = 4, p.heads_kv = 2; }},
      {"dim_v", [](const Problem& p) { return p.dim_qk != p.dim_v; }, [](Problem& p) { p.dim_v = 24; }},
      {"repro=run", [](const Problem& p) { return p.reproducible == Reproducible::run; },
       [](Problem& p) { p.reproducible = Reproducible::run; }},
      {"repro=batch", [](const Problem& p) { return p.reproducible == Reproducible::batch; },
       [](Problem& p) { p.reproducible = Reproducible::batch; }},
      topic<Option::softcap>("softcap"),
      topic<Option::alibi>("alibi"),
      topic<Option::bias>("bias"),
      topic<Option::dropout>("dropout"),
      topic<Option::sink>("sink"),
      topic<Option::accumulate>("accumulate"),
      topic<Option::append>("append"),
      topic<Option::rotary>("rotary"),
      topic<Option::rotary_half>("rotary_half"),
      topic<Option::descale>("descale"),
      topic<Option::block_bias>("block_bias"),
  });
  return all;
}

Problem plainest(const Topic& t, Pass pass, DType dtype, KeySource keys) {
  Problem p{.pass = pass, .batch = 2, .heads_q = 2, .heads_kv = 2, .len_q = 19, .len_k = 37, .dim_qk = 32, .dim_v = 32};
  p.dtype = {dtype, dtype, dtype, pass == Pass::backward ? dtype : DType::none, DType::none};
  p.keys = keys, p.page = keys == KeySource::paged ? 16 : 0;
  t.set(p);
  return p;
}

namespace {

// Every head dim that the fused GPU kernels accept, in both passes and with one query. Kernels exist for a few widths
// and serve dims in between with the rest of a row unused.
void add_head_dims(std::vector<Case>& all) {
  for (int dim = 8; dim <= 256; dim += 8) {
    const bool a_width = dim == 64 || dim == 96 || dim == 128 || dim == 192 || dim == 256;  // covered above
    for (const std::string_view line : {"forward ? b1 h2/1 q66 k134 d? causal", "backward ? b1 h2/1 q66 k134 d? causal",
                                        "forward ? b2 h4/2 q1 k200 d? full"}) {
      Case c;
      std::string text(line);
      text.replace(text.rfind('?'), 1, join(dim)).replace(text.find('?'), 1, dim % 16 ? "f16" : "bf16");
      if (!parse(text, c).ok() || (a_width && c.problem.len_q > 1)) continue;
      c.variation.seed = uint32_t(dim), all.push_back(c);
    }
  }
}

void add_lines(const std::vector<std::string>& lines, std::vector<Case>& all) {
  uint32_t n = 0;
  for (const std::string& line : lines) {
    Case c;
    const Status s = parse(line, c);
    c.quick = n++ % 5 == 0;
    if (s.ok()) all.push_back(c);
  }
}

}  // namespace

std::vector<Case> cases(bool quick) {
  std::vector<Case> all;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    uint32_t n = 0;
    for (const Topic& t : topics())
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        for (const KeySource keys : {KeySource::linear, KeySource::ragged, KeySource::paged}) {
          Case c{.problem = plainest(t, pass, dtype, keys), .variation = {.seed = ++n}, .quick = n % 3 == 0};
          if (keys != KeySource::linear) c.variation.lengths = Lengths::drawn;
          if (valid(c.problem).ok()) all.push_back(c);
        }
    for (uint32_t seed = 1; seed <= 2; ++seed)
      for (const auto& row : pairwise(Setting::levels(), seed))
        all.push_back(case_of({row}, pass, uint32_t(all.size())));
  }
  for (const auto& row : pairwise(AppendSetting::levels(), 1))
    all.push_back(append_case_of({row}, uint32_t(all.size())));
  for (const std::span lines : {nasty_lines(), nsa_lines(), tile_lines(), large_logit_lines()})
    for (const std::string_view line : lines) {
      Case c;
      const bool some = lines.data() == large_logit_lines().data() && all.size() % 4;
      if (parse(line, c).ok()) c.quick = lines.data() != tile_lines().data() && !some, all.push_back(c);
    }
  add_precisions(all);
  add_head_dims(all);
  add_lines(with_passes("dilated", dilated_lines()), all);
  add_lines(with_passes("adaptive", adaptive_lines()), all);
  add_lines(formula_lines(), all);
  for (const std::string_view line : large_lines())  // slowest cases start first
    if (Case c; parse(line, c).ok()) c.large = true, all.insert(all.begin(), c);
  if (quick) std::erase_if(all, [](const Case& c) { return !c.quick; });
  return all;
}

}  // namespace attune
