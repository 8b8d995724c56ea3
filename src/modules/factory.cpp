// SPDX-License-Identifier: Apache-2.0
#include "modules/factory.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "core/work.h"
#include "core/variant/pattern.h"
#include "core/variant/ring.h"
#include "modules/settings.h"
#include "plan/backend.h"
#include "plan/tuned.h"

namespace attune {
namespace {

using Word = std::string_view;

enum class Form { dense, dilated, longnet, torchscale, lists, adaptive, nsa };
struct Implementation {
  Word name;
  Form form;
  bool ranks;       // distributed over ranks
  Word norm;        // for dilated
  Word pattern;     // for lists; "": from density
};
constexpr Implementation kImplementations[] = {
    {"dense", Form::dense, false, "", ""},
    {"dilated", Form::dilated, false, "divide", ""},
    {"standard", Form::dilated, false, "divide", ""},
    {"improved", Form::dilated, false, "divide", ""},
    {"improved_dilated", Form::dilated, false, "divide", ""},
    {"longnet", Form::longnet, false, "lse", ""},
    {"torchscale", Form::torchscale, false, "lse", ""},
    {"ring", Form::dilated, true, "lse", ""},
    {"ring_dilated", Form::dilated, true, "lse", ""},
    {"ring_dilated_v2", Form::dilated, true, "lse", ""},
    {"ring_dilated_v2_collective", Form::dilated, true, "lse", ""},
    {"ring_dilated_v2_flash", Form::dilated, true, "lse", ""},
    {"ring_dilated_production", Form::dilated, true, "lse", ""},
    {"true_ring_dilated", Form::dilated, true, "lse", ""},
    {"simulated_ring_dilated", Form::dilated, true, "lse", ""},
    {"ring_distributed", Form::dilated, true, "lse", ""},
    {"ring_dense", Form::dense, true, "", ""},
    {"distributed", Form::dilated, true, "lse", ""},
    {"distributed_dilated", Form::dilated, true, "lse", ""},
    {"improved_distributed", Form::dilated, true, "lse", ""},
    {"block_sparse", Form::lists, false, "", ""},
    {"block_sparse_optimized", Form::lists, false, "", ""},
    {"block_sparse_torch_sparse", Form::lists, false, "", ""},
    {"block_sparse_hierarchical", Form::lists, false, "", "hierarchical"},
    {"block_sparse_adaptive", Form::adaptive, false, "", ""},
    {"block_sparse_ring", Form::lists, true, "", ""},
    {"block_sparse_ring_dilated", Form::lists, true, "", ""},
    {"block_sparse_ring_distributed", Form::lists, true, "", ""},
    {"nsa", Form::nsa, false, "", ""},
};
constexpr bool in_segments(const Implementation& i) {
  return i.form == Form::dilated || i.form == Form::longnet || i.form == Form::torchscale;
}
constexpr Word kMultihead = "multihead_";
constexpr Word kPaper = "d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512";  // arXiv 2502.11089
constexpr int kMostRanks = 1 << 16;
constexpr int kLong = 32768;  // tokens: above, the reason of auto also names what a cheaper function computes

Status no(const auto&... why) { return Status::no("make: ", why...); }
double tera(double flops) { return std::round(flops / 1e9) / 1e3; }

// A density in the form that patterns parse: digits without exponent.
std::string millionths(double x) {
  std::string text = std::to_string(int64_t(std::llround(x * 1e6)) + 10000000);  // the first digit is a placeholder
  text = join(text[1], ".", text.substr(2));
  text.resize(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// The part of an implementation that depends on sizes.
struct Maker {
  const MakeOptions& o;
  const Device& device;
  std::string segments{}, rates{};
  Status failed{};

  Maker(const MakeOptions& options, const Device& d)
      : o(options), device(d), segments(options.segments), rates(options.rates) {
    if (segments.empty() != rates.empty()) failed = no("segments and rates must be given together, or neither");
    if (!segments.empty() || !failed.ok()) return;
    // 2048, 4096, ... up to the length, at most five, each with twice the rate of the previous one.
    int64_t segment = std::min(2048, o.len), rate = 1;
    for (int n = 0; n < 5 && (n == 0 || segment <= o.len); ++n, segment *= 2, rate *= 2) {
      segments += join(n ? "," : "", segment);
      rates += join(n ? "," : "", rate);
    }
  }

  std::string dilated(const Implementation& i) const {
    const bool torchscale = i.form == Form::torchscale;
    return join("dilated ", torchscale ? "gradient=detached " : "", "mode=",
                i.form == Form::dilated ? "headgroup" : "longnet", " norm=", i.norm,
                torchscale ? " offsets=contiguous" : "", " rates=", rates, " segments=", segments);
  }
  // How the ranks divide the tokens. With block lists, ranks exchange heads if these divide evenly, so each rank sees
  // the whole sequence for some heads. Otherwise they exchange keys, if pieces start at block boundaries. All other
  // forms exchange keys.
  Shards shards(const Implementation& i) const {
    const bool lists = i.form == Form::lists;
    const auto cut = [&](Cut c) { return Shards{.cut = c, .tokens = o.len, .ranks = o.ranks}; };
    const Cut keys = o.causal && (lists || i.form == Form::dense) ? Cut::zigzag : Cut::ring;
    if (!lists) return cut(keys);
    for (const Cut c : {Cut::ulysses, keys, Cut::ring, Cut::striped}) {
      Problem p;
      if (!parse(line(i, cut(c)), p).ok()) continue;
      p.mask.blocks = {.q = o.block, .k = o.block, .bound = 1};
      if (valid(p).ok()) return cut(c);
    }
    return cut(Cut::ulysses);
  }
  // The text after the head dim: mask and variant. Over ranks: inside the attention that spans them.
  std::string tail(const Implementation& i, const Shards& by) const {
    std::string variant = in_segments(i) ? dilated(i)
                          : i.form == Form::nsa ? join("nsa ", o.nsa.empty() ? kPaper : Word(o.nsa))
                          : i.form == Form::adaptive
                              ? join("adaptive block=", o.block, " density=", millionths(density()), " hidden=128")
                              : "";
    if (spread(i))
      variant = join("ring", variant.empty() ? "" : " inner=", variant, " layout=", name(by.cut), " ranks=", o.ranks,
                     " tokens=", o.len);
    const bool causal = o.causal || i.form == Form::nsa;
    return join(causal ? "causal" : "full", variant.empty() ? "" : " : ", variant);
  }
  bool spread(const Implementation& i) const { return i.ranks && o.ranks > 1; }
  std::string pattern(const Implementation& i) const {
    if (i.form != Form::lists) return "";
    if (!o.pattern.empty()) return o.pattern;
    if (!i.pattern.empty()) return std::string(i.pattern);
    return join("random density=", millionths(density()), " seed=0");
  }
  double density() const { return o.density > 0 ? o.density : 0.25; }

  int heads_kv() const { return o.heads_kv ? o.heads_kv : o.heads; }
  int dim_v() const { return o.dim_v ? o.dim_v : o.dim; }
  std::string line(const Implementation& i, const Shards& by) const {
    const int rows = spread(i) ? by.most() : o.len;
    return join(o.backward ? "backward " : "forward ", name(o.dtype), " b", o.batch, " h", o.heads, "/", heads_kv(),
                " q", rows, " k", rows, " d", o.dim, "/", dim_v(), " ", tail(i, by));
  }
  Status problem(const Implementation& i, Problem& out) const {
    Problem p;
    if (Status s = parse(line(i, shards(i)), p); !s.ok()) return s.after("make: ");
    if (i.form != Form::lists) return out = p, Status::good();
    if (o.block < 1) return no("block = ", o.block, " is below 1");
    p.mask.blocks.q = p.mask.blocks.k = o.block;
    Problem whole = spread(i) ? whole_of(p, ring_of(p)) : p;
    whole.mask.blocks.bound = 1;
    Pattern read;
    if (Status s = parse(pattern(i), whole, read); !s.ok()) return s.after("make: ");
    const int64_t most = bound(read, whole, 1, read.by_head() ? p.heads_q : 1, true);
    if (most > INT32_MAX) return no("the block lists have more than 2^31 - 1 entries");
    p.mask.blocks.bound = int32_t(std::max<int64_t>(most, 1));
    if (Status s = valid(p); !s.ok()) return s.after("make: ");
    return out = p, Status::good();
  }
  // Appends the planner's choice to `why`.
  Status planned(const Problem& p, std::string& why) const {
    Tuned tuned;
    Plan plan;
    Status s = load_tuned(device, tuned);
    if (s.ok()) s = Planner{.device = device, .rules = tuned.rules}.plan(p, plan);
    why = s.ok() ? join(plan.backend->name, ", ", plan.why) : s.message;
    return s;
  }
};

// Lists options that have no effect, and computations that were not requested; "" if there are none.
std::string beside(const Implementation& i, const MakeOptions& o) {
  const bool segments = in_segments(i), lists = i.form == Form::lists;
  const bool drawn = i.form == Form::adaptive || (lists && o.pattern.empty() && i.pattern.empty());
  std::string unused;
  const auto add = [&](bool given, bool used, Word what) {
    if (given && !used) unused += join(unused.empty() ? "" : ", ", what);
  };
  add(!o.segments.empty(), segments, "segments and rates");
  add(!o.pattern.empty(), lists, "pattern");
  add(o.density > 0, drawn, "density");
  add(!o.nsa.empty(), i.form == Form::nsa, "nsa");
  std::string text = unused.empty() ? "" : join("; it does not use ", unused);
  if (o.ranks > 1 && !i.ranks) text += join("; it is not spread, so each of the ", o.ranks, " ranks has all of it");
  if (o.ranks == 1 && i.ranks) text += "; one rank has the whole sequence, so nothing travels";
  if (i.form == Form::nsa && !o.causal) text += "; it is causal, which is its definition";
  return text;
}

const Implementation* find(Word name) {
  const auto* it = std::find_if(std::begin(kImplementations), std::end(kImplementations),
                                [&](const Implementation& i) { return i.name == name; });
  return it == std::end(kImplementations) ? nullptr : it;
}

// Selects a name from the options, with the reason. The length never changes what is computed: without lists,
// parameters of native sparse attention or segments it is plain attention.
Word automatic(const MakeOptions& o, const Maker& m, std::string& why) {
  const bool lists = !o.pattern.empty() || (o.density > 0 && o.density < 1);
  const bool ranks = o.ranks > 1;
  if (lists) {
    why = join(o.pattern.empty() ? join("a density of ", o.density, " is given")
                                 : join("the pattern '", o.pattern, "' is given"),
               ranks ? join(", over ", o.ranks, " ranks") : "");
    return ranks ? "block_sparse_ring" : "block_sparse";
  }
  if (!o.nsa.empty()) return why = "parameters of native sparse attention are given", "nsa";
  if (!o.segments.empty()) {
    why = join("segments ", o.segments, " and rates ", o.rates, " are given",
               ranks ? join(", over ", o.ranks, " ranks") : "");
    return ranks ? "ring_dilated" : "improved_dilated";
  }
  why = join("no lists, segments or parameters of native sparse attention are given, so attention is exact",
             ranks ? join(", over ", o.ranks, " ranks") : "");
  Problem dense, dilated;
  if (o.len > kLong && m.problem(*find("dense"), dense).ok() && m.problem(*find("longnet"), dilated).ok())
    why += join("; it computes ", tera(cost(dense).flops), " Tflop, and longnet, another function, ",
                tera(cost(dilated).flops));
  return ranks ? "ring_dense" : "dense";
}

Status module_line(const Implementation& i, const Maker& m, const MakeOptions& o, std::string& out) {
  const int embed = o.embed ? o.embed : o.heads * o.dim;
  const std::string blocks = m.pattern(i);
  const Shards shards = m.shards(i);
  const int rows = m.spread(i) ? shards.count(o.rank) : o.len;
  if (rows < 1)
    return no("rank ", o.rank, " of ", o.ranks, " holds none of the ", o.len, " tokens; a module requires one");
  const std::string line =
      join("multihead ", name(o.dtype), " b", o.batch, " s", rows, " e", embed, " h", o.heads, "/", m.heads_kv(),
           " dim=", o.dim, " dim_v=", m.dim_v(), " norm=1 | ", m.tail(i, shards),
           blocks.empty() ? "" : join(" | ", o.block, "x", o.block, " ", blocks));
  Settings s;
  if (Status wrong = read_settings(line, s); !wrong.ok()) return wrong;
  return out = name(s), Status::good();
}

}  // namespace

std::string implementation_names() {
  std::string all;
  for (const Implementation& i : kImplementations) all += join(i.name, ", ");
  return all + "auto, or multihead_ followed by any of them";
}

Status choose(Word name, const MakeOptions& o, const Device& device, MakeChoice& out) {
  const struct { Word what; int value; } sizes[] = {
      {"batch", o.batch}, {"len", o.len}, {"heads", o.heads}, {"dim", o.dim}, {"ranks", o.ranks}};
  for (const auto& [what, value] : sizes)
    if (value < 1) return no(what, " = ", value, " is below 1");
  if (o.ranks > kMostRanks) return no("ranks = ", o.ranks, " is over ", kMostRanks);
  if (o.rank < 0 || o.rank >= o.ranks) return no("rank = ", o.rank, " is not in 0 ... ", o.ranks - 1);
  if (!(o.density >= 0 && o.density <= 1)) return no("density = ", o.density, " is not in 0 ... 1");
  if (o.density > 0 && o.density < 0.5e-6) return no("density = ", o.density, " is below a millionth");
  MakeChoice c;
  c.module = name.starts_with(kMultihead) || name == "multihead";
  Word which = c.module ? name.substr(std::min(name.size(), kMultihead.size())) : name;
  if (which.empty()) which = "dense";
  const Maker m(o, device);
  if (!m.failed.ok()) return m.failed;
  if (which == "auto") which = automatic(o, m, c.why);
  const Implementation* i = find(which);
  if (!i) return no("'", name, "' is not one of ", implementation_names());
  if (c.why.empty()) c.why = "selected by name";
  c.why += beside(*i, o);
  c.name = join(c.module ? kMultihead : "", i->name);
  Problem p;
  if (Status s = m.problem(*i, p); !s.ok()) return s;
  c.pattern = c.module ? "" : m.pattern(*i);
  c.line = attune::name(p);
  std::string said;
  (void)m.planned(p, said);  // a refusal is reported here and becomes an error only in a run
  c.why = join(c.name, ": ", c.why, "\n  ", c.line, ": ", said);
  if (c.module)
    if (Status s = module_line(*i, m, o, c.line); !s.ok()) return s;
  out = std::move(c);
  return Status::good();
}

}  // namespace attune
