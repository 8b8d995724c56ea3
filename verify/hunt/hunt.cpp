#include "verify/hunt/hunt.h"

#include <cmath>

#include "core/check.h"
#include "verify/compare.h"
#include "verify/hunt/draw.h"

namespace attune {
namespace {

constexpr int kTile = 128;               // queries in most tiles
constexpr double kPassesOfBackward = 4;  // cost of a backward in the reference, in forwards

int64_t tiles_of(const Problem& p, int tile) { return ceil_div(p.len_q, tile) * p.batch * p.heads_q; }

void draw_dims(Draw& d, Problem& p) {
  static constexpr int kPairs[][2] = {{64, 64},   {96, 96},   {128, 128}, {256, 256}, {192, 128}, {192, 192}, {256, 64},
                                      {256, 128}, {256, 32},  {128, 256}, {64, 128},  {40, 24},   {80, 80},   {8, 8},
                                      {160, 160}, {224, 200}, {112, 112}, {32, 96},   {72, 256},  {248, 8}};
  const int n = d.chance(30) ? 3 : d.random.below(int(std::size(kPairs)));  // head dim 256 more often than others
  p.dim_qk = kPairs[n][0], p.dim_v = kPairs[n][1];
  if (d.chance(8)) p.dim_qk = 8 * d.between(1, 32), p.dim_v = 8 * d.between(1, 32);
}

void draw_mask(Draw& d, Problem& p) {
  Mask& m = p.mask;
  m.kind = d.chance(60) ? MaskKind::window : d.chance(60) ? MaskKind::causal : MaskKind::full;
  if (m.kind == MaskKind::window) {
    const auto side = [&] { return d.chance(70) ? d.of({0, 1, 3, 5, 31, 63, 64, 65, 127}) : d.between(0, 400); };
    m.left = d.chance(10) ? kNoLimit : side(), m.right = d.chance(8) ? kNoLimit : d.chance(50) ? 0 : side();
    // A window with a negative side sees keys only if the other side reaches further.
    if (m.right != kNoLimit && d.chance(12)) m.right = -d.between(1, 20);
    else if (m.left != kNoLimit && d.chance(8)) m.left = -d.between(1, 20);
  }
  m.align = d.chance(75) ? Align::bottom_right : d.chance(60) ? Align::top_left : Align::absolute;
  if (m.kind != MaskKind::full && d.chance(5)) m.k_step = d.of({2, 4, 16}), m.k_phase = d.of({0, 3, 31});
}

// More query tiles than SMs, about as many, or fewer. Returns the requested number.
int64_t draw_sizes(Draw& d, Problem& p, int units) {
  p.heads_kv = d.of({1, 1, 2, 2, 3, 4, 8, 16});
  p.heads_q = p.heads_kv * d.of({1, 1, 2, 3, 4, 5, 7, 8});
  const bool long_rows = d.chance(12);
  p.len_q = long_rows ? d.between(500, 1500) : edge_length(d, 600);
  p.len_k = long_rows && d.chance(70) ? p.len_q : d.chance(8) ? d.of({1000, 1025, 1500}) : edge_length(d, 600);
  const int64_t wanted = d.chance(40)   ? d.between(units + 1, 3 * units)
                         : d.chance(40) ? d.between(units - 2, units + 2)
                                        : d.between(1, units);
  p.batch = 1;
  const int64_t each = std::max<int64_t>(1, tiles_of(p, kTile));
  p.batch = int(std::clamp<int64_t>(ceil_div(wanted, each), 1, 40));
  return wanted;
}

// Shrinks a problem that is too large for the reference. If many tiles are requested, their number is kept as long as
// anything else can shrink: keys, then the reach of the mask, then rows of a tile.
void fit(Draw& d, Problem& p, const HuntLimits& limits, int64_t wanted) {
  const auto over = [&] { return hunt_work(p) > limits.work || hunt_elements(p) > limits.elements; };
  const auto narrow = [&] {
    const Mask& m = p.mask;
    return m.kind == MaskKind::window && m.left != kNoLimit && m.right != kNoLimit && m.left + m.right < 12;
  };
  while (over() && wanted > limits.units) {
    const int64_t tiles = tiles_of(p, kTile);
    if (p.batch > 1 && tiles - tiles / p.batch >= wanted) --p.batch;
    else if (p.len_k > 257) p.len_k = p.len_k * 2 / 3;
    else if (p.len_q > 257) p.len_q = p.len_q * 2 / 3, p.batch = std::min(40, p.batch + 1);
    else if (!narrow() && p.mask.align != Align::absolute)
      p.mask.kind = MaskKind::window, p.mask.left = d.of({0, 0, 1, 3, 5}), p.mask.right = d.of({0, 0, 3, 5});
    else if (p.len_k > 65) p.len_k = p.len_k * 2 / 3;
    else if (p.len_q % kTile > 1) p.len_q -= (p.len_q % kTile) / 2;
    else if (p.pass == Pass::backward) p.pass = Pass::forward, p.dtype.grad = DType::none;
    else break;
  }
  // Few tiles need no large problem, and small problems are fast, so more of them can run.
  const double part = wanted > limits.units && tiles_of(p, kTile) > limits.units ? 1 : 0.2;
  while (hunt_work(p) > part * limits.work || hunt_elements(p) > part * limits.elements) {
    if (p.batch > 1) p.batch -= (p.batch + 3) / 4;
    else if (p.heads_q > p.heads_kv) p.heads_q -= p.heads_kv;
    else if (p.heads_kv > 1) p.heads_q = p.heads_kv = p.heads_kv / 2;
    else if (p.len_q > 1 || p.len_k > 1) p.len_q = (p.len_q + 1) / 2, p.len_k = (p.len_k + 1) / 2;
    else break;
  }
}

void draw_options(Draw& d, Problem& p) {
  if (d.chance(60)) return;
  for (const Option o : {Option::softcap, Option::alibi, Option::dropout, Option::sink})
    if (d.chance(22)) p.set(o);
  if (d.chance(18)) p.set(Option::bias), p.dtype.bias = d.of({DType::f32, p.dtype.q});
  const DType written = p.pass == Pass::forward ? p.dtype.out : p.dtype.grad;
  if (written == DType::f32 && d.chance(30)) p.set(Option::accumulate);
  if (d.chance(20)) p.reproducible = d.of({Reproducible::run, Reproducible::batch});
}

void draw_blocks(Draw& d, Problem& p) {
  Blocks& b = p.mask.blocks;
  b.q = d.of({64, 128, 64, 128, 48, 16, 1, 100}), b.k = d.of({64, 128, b.q, b.q, 32, 8, 100});
  const int64_t all = p.batch * p.heads_q * ceil_div(p.len_q, b.q) * ceil_div(p.len_k, b.k);
  const int most = int(std::clamp<int64_t>(all, 1, 1 << 20));
  b.bound = d.chance(25) ? d.between(1, most) : most;
  if (!p.has(Option::bias) && d.chance(25)) p.set(Option::block_bias);
}

void draw_variation(Draw& d, Case& c) {
  const Problem& p = c.problem;
  Variation& v = c.variation;
  v.seed = uint32_t(d.between(1, 1 << 20));
  v.lengths = d.chance(60) ? Lengths::full : d.chance(60) ? Lengths::drawn : Lengths::odd;
  v.layout = d.chance(70) ? Layout::bshd : Layout::bhsd;
  v.pad = d.of({0, 8, 8, 16});
  if (d.chance(4)) v.pad = 3;
  v.cu_q = p.keys != KeySource::ragged && d.chance(15);
  v.cache = d.chance(12), v.used_q = d.chance(10), v.lean = d.chance(10), v.shared = d.chance(8);
  v.d_lse = p.pass == Pass::backward && d.chance(20);
  if (p.has(Option::bias)) v.bias_once = d.of({0u, 1u | 4u, 2u, 8u | 1u});
}

HuntKind draw_kind(Draw& d, const HuntLimits& limits) {
  if (!limits.kinds.empty()) return limits.kinds[size_t(d.random.below(int(limits.kinds.size())))];
  const int percent = d.random.below(100);
  return percent < 45   ? HuntKind::dense
         : percent < 57 ? HuntKind::blocks
         : percent < 73 ? HuntKind::append
         : percent < 85 ? HuntKind::nsa
         : percent < 91 ? HuntKind::dilated
         : percent < 96 ? HuntKind::adaptive
                        : HuntKind::ring;
}

// Decode, a chunk of a prefill, or any length. A query before the first key has no row in the tables of rotary.
Case append_case(Draw& d, const HuntLimits& limits) {
  Case c;
  Problem& p = c.problem;
  draw_types(d, p);
  p.batch = d.of({1, 2, 2, 3, 5, 8});
  p.heads_kv = d.of({1, 1, 2, 2, 3, 4}), p.heads_q = p.heads_kv * d.of({1, 1, 2, 3, 4, 7, 8});
  p.len_q = d.chance(60) ? d.between(1, 9) : edge_length(d, 300);
  p.len_k = d.chance(50) ? d.between(1, 200) : edge_length(d, 600);
  draw_dims(d, p);
  draw_mask(d, p);
  if (d.chance(45)) p.keys = KeySource::paged, p.page = d.of({1, 2, 3, 7, 16, 16, 64, 128});
  HuntLimits small = limits;
  small.work /= 10, small.elements /= 10;
  fit(d, p, small, 1);
  draw_options(d, p);
  if (d.chance(12)) draw_blocks(d, p);
  p.set(Option::append);
  if (d.chance(60)) {
    p.set(d.chance(50) ? Option::rotary : Option::rotary_half);
    p.len_k = std::max(p.len_k, p.len_q);
    p.mask.blocks = {}, p.clear(Option::block_bias);
  }
  draw_variation(d, c);
  Variation& v = c.variation;
  v.cache = d.chance(60), v.shared = d.chance(15);
  v.added = d.chance(55) ? -1 : d.of({0, 1, 1, 2, 5, 17, 40});
  if (p.rotates() && d.chance(40)) v.pairs = d.between(1, std::max(1, p.dim_qk / 2));
  return c;
}

Case drawn(Draw& d, const HuntLimits& limits) {
  const HuntKind kind = draw_kind(d, limits);
  if (kind == HuntKind::append) return append_case(d, limits);
  if (kind != HuntKind::dense && kind != HuntKind::blocks) return variant_case(d, kind);
  Case c;
  Problem& p = c.problem;
  p.pass = d.chance(60) ? Pass::forward : Pass::backward;
  draw_types(d, p);
  const int64_t wanted = draw_sizes(d, p, limits.units);
  draw_dims(d, p);
  draw_mask(d, p);
  p.keys = d.chance(65) ? KeySource::linear : d.chance(70) ? KeySource::ragged : KeySource::paged;
  if (p.keys == KeySource::paged) p.page = d.of({1, 3, 16, 64, 128});
  fit(d, p, limits, wanted);
  draw_options(d, p);
  if (kind == HuntKind::blocks) draw_blocks(d, p);
  draw_variation(d, c);
  if (p.mask.blocks.q && d.chance(15)) c.variation.shared = true;
  return c;
}

// Some output element must depend on a key: comparing only zeros would pass a kernel that does nothing.
bool sees_something(const Case& c) {
  const Problem& p = c.problem;
  // Lengths and lists are drawn later.
  if (p.mask.blocks.q || p.keys != KeySource::linear || p.variant.text[0] || p.has(Option::append)) return true;
  const Band band = band_of(p.mask, p.len_q, p.len_k, int64_t(17), 0);
  for (int i = 0; i < p.len_q; i += std::max(1, p.len_q / 64))
    for (int j = 0; j < p.len_k; ++j)
      if (band.visible(i, j)) return true;
  return false;
}

// Whether a variant or an append takes the arguments of the case: each has its own rules for lengths and caches. These
// problems are small, so their inputs may be made twice.
bool takes_arguments(const Case& c) {
  const Problem& p = c.problem;
  if (!p.variant.text[0] && !p.has(Option::append)) return true;
  World world(p, c.variation);
  if (p.pass == Pass::backward) (void)world.forward_result();
  const Outputs typed = world.outputs(false);
  return check(p, typed.args).ok() && check_values(p, typed.args).ok();
}

}  // namespace

int edge_length(Draw& d, int most) {
  const int edge = d.of({1, 2, 16, 31, 33, 63, 64, 65, 80, 81, 96, 97, 100, 127, 128, 129, 130, 191, 192, 193, 200, 256,
                         257, 300, 385, 513});
  return std::min(most, d.chance(75) ? edge : d.between(1, 600));
}

void draw_types(Draw& d, Problem& p) {
  const DType type = d.chance(45) ? DType::bf16 : d.chance(70) ? DType::f16 : DType::f32;
  const bool mixed = d.chance(12);
  p.dtype.q = p.dtype.kv = p.dtype.out = type;
  if (p.pass == Pass::forward && mixed) p.dtype.out = DType::f32;
  if (p.pass == Pass::backward) p.dtype.grad = mixed ? DType::f32 : type;
}

double hunt_work(const Problem& p) {
  const Mask& m = p.mask;
  double seen = p.len_k;
  if (m.kind == MaskKind::window && m.left != kNoLimit && m.right != kNoLimit && m.k_step == 1)
    seen = std::clamp<double>(double(m.left) + m.right + 1, 1, p.len_k);
  const double rows = double(p.batch) * p.heads_q * p.len_q;
  const double pairs = rows * (seen * (p.dim_qk + p.dim_v) + 4. * p.len_k);  // masked pairs are visited too
  return pairs * (p.pass == Pass::backward ? kPassesOfBackward : 1);
}

double hunt_elements(const Problem& p) {
  const double q = double(p.batch) * p.heads_q * p.len_q, k = double(p.batch) * p.heads_kv * p.len_k;
  const double all = (q + k) * (p.dim_qk + p.dim_v) * (p.pass == Pass::backward ? 2 : 1);
  return all + (p.has(Option::bias) ? double(p.batch) * p.heads_q * p.len_q * p.len_k : 0);
}

Case hunted_case(uint64_t seed, uint64_t index, const HuntLimits& limits,
                 const std::function<bool(const Problem&)>& served) {
  Draw d{{seed * 0x9E3779B97F4A7C15u ^ (index + 1) * 0xD1B54A32D192ED03u}};
  for (int tries = 0;; ++tries) {
    Case c = drawn(d, limits);
    if (tries > 4000) return c;  // no backend serves anything here; the caller reports it
    if (valid(c.problem).ok() && golden_supports(c.problem).ok() && hunt_work(c.problem) <= 2 * limits.work &&
        sees_something(c) && served(c.problem) && takes_arguments(c))
      return c;
  }
}

std::vector<Case> smaller_cases(const Case& from) {
  std::vector<Case> all;
  const auto add = [&](auto change) {
    Case c = from;
    change(c.problem, c.variation);
    follow_sizes(c.problem);
    if (Blocks& b = c.problem.mask.blocks; b.q) {
      const Problem& p = c.problem;
      b.bound = int(std::max<int64_t>(1, p.batch * p.heads_q * ceil_div(p.len_q, b.q) * ceil_div(p.len_k, b.k)));
    }
    const bool same = c.problem == from.problem && c.variation == from.variation;
    if (!same && valid(c.problem).ok() && golden_supports(c.problem).ok()) all.push_back(c);
  };
  // The problem, from the largest simplification to the smallest.
  add([](Problem&, Variation& v) { v = {.seed = v.seed}; });
  if (from.problem.variant.text[0]) {
    add([](Problem& p, Variation&) { p.variant = {}; });
    for (const Variant& v : smaller_variants(from.problem.variant)) add([&](Problem& p, Variation&) { p.variant = v; });
  }
  add([](Problem& p, Variation&) { p.keys = KeySource::linear, p.page = 0; });
  add([](Problem& p, Variation& v) {
    for (const Option o : {Option::append, Option::rotary, Option::rotary_half}) p.clear(o);
    v.added = -1, v.pairs = 0;
  });
  add([](Problem& p, Variation& v) { p.clear(Option::rotary), p.clear(Option::rotary_half), v.pairs = 0; });
  add([](Problem& p, Variation&) { p.mask.blocks = {}, p.clear(Option::block_bias); });
  add([](Problem& p, Variation& v) { p.options = 0, p.dtype.bias = DType::none, v.bias_once = 0; });
  for (int o = 0; o < int(Option::count); ++o)
    if (from.problem.has(Option(o)))
      add([o](Problem& p, Variation& v) {
        p.clear(Option(o));
        if (Option(o) == Option::bias) p.dtype.bias = DType::none, v.bias_once = 0;
      });
  add([](Problem& p, Variation&) { p.reproducible = Reproducible::no; });
  add([](Problem& p, Variation&) { p.precision = Precision::full; });
  add([](Problem& p, Variation&) { p.dtype.out = p.dtype.q; });
  add([](Problem& p, Variation&) { if (p.dtype.grad != DType::none) p.dtype.grad = p.dtype.q; });
  add([](Problem& p, Variation&) { p.mask.align = Align::bottom_right; });
  add([](Problem& p, Variation&) { p.mask.k_step = 1, p.mask.k_phase = 0; });
  add([](Problem& p, Variation&) { p.mask = {.kind = MaskKind::causal, .blocks = p.mask.blocks}; });
  add([](Problem& p, Variation&) { p.mask = {.blocks = p.mask.blocks}; });
  // Sizes: halved, then reduced by one.
  for (const int part : {2, 1}) {
    const auto less = [part](int n) { return part == 2 ? (n + 1) / 2 : std::max(1, n - 1); };
    add([&](Problem& p, Variation&) { p.batch = less(p.batch); });
    add([&](Problem& p, Variation&) {
      const int group = less(p.heads_q / p.heads_kv);
      p.heads_q = group * p.heads_kv;
    });
    add([&](Problem& p, Variation&) {
      const int group = p.heads_q / p.heads_kv;
      p.heads_kv = less(p.heads_kv), p.heads_q = group * p.heads_kv;
    });
    add([&](Problem& p, Variation&) { p.len_q = less(p.len_q); });
    add([&](Problem& p, Variation&) { p.len_k = less(p.len_k); });
    add([&](Problem& p, Variation&) { p.len_q = less(p.len_q), p.len_k = less(p.len_k); });
  }
  add([](Problem& p, Variation&) { p.dim_v = p.dim_qk; });
  for (const int dim : {64, 128}) {
    add([dim](Problem& p, Variation&) { p.dim_qk = p.dim_v = std::min(dim, std::max(p.dim_qk, p.dim_v)); });
    add([dim](Problem& p, Variation&) { p.dim_v = std::min(dim, p.dim_v); });
  }
  const auto nearer = [](int side) { return side == kNoLimit ? kNoLimit : side / 2; };
  add([&](Problem& p, Variation&) { p.mask.left = nearer(p.mask.left); });
  add([&](Problem& p, Variation&) { p.mask.right = nearer(p.mask.right); });
  // The arguments.
  add([](Problem&, Variation& v) { v.lengths = Lengths::full; });
  add([](Problem&, Variation& v) { v.layout = Layout::bshd, v.pad = 8; });
  add([](Problem&, Variation& v) { v.cu_q = false; });
  add([](Problem&, Variation& v) { v.cache = v.shared = false; });
  add([](Problem&, Variation& v) { v.used_q = v.d_lse = v.lean = false; });
  add([](Problem&, Variation& v) { v.added = -1, v.pairs = 0; });
  if (from.variation.added > 0) add([](Problem&, Variation& v) { v.added /= 2; });
  add([](Problem&, Variation& v) { v.seed = 1; });
  return all;
}

}  // namespace attune
