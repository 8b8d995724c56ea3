// SPDX-License-Identifier: Apache-2.0
// Parsing of patterns, and bounds on the blocks that each can list.
#include "core/variant/pattern.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>
#include <vector>

namespace attune {
namespace {

constexpr std::string_view kNames[] = {"dense", "local_window", "dilated_rates", "dilated_offsets", "dilated_multiples",
                                       "global_local", "strided", "random", "hierarchical", "streaming"};
static_assert(std::size(kNames) == size_t(PatternKind::count));
constexpr std::string_view kHeadKinds[] = {"sparse", "dense", "streaming"};
// Parameters of each pattern, besides `kinds`, and besides `sink` and `local` for streaming heads in kinds.
constexpr std::string_view kTakes[] = {"", "window", "rates", "rates ratio reach", "strides", "global window rows",
                                       "stride", "density seed", "preset strides windows", "sink local"};
static_assert(std::size(kTakes) == size_t(PatternKind::count));

// Levels of the published presets: strides in blocks, windows in tokens, 0 for all. The strides of `standard` are
// published in tokens. The others are described as tokens too, but then every block would see everything.
struct Preset {
  std::string_view name;
  bool stride_tokens;
  int count, stride[4], window[4];
};
constexpr Preset kPresets[] = {
    {"standard", true, 3, {64, 256, 1024}, {256, 1024, 0}},
    {"fine_grained", false, 4, {1, 2, 8, 32}, {128, 512, 2048, 0}},
    {"long_range", false, 3, {1, 8, 64}, {512, 4096, 0}},
    {"ultra_sparse", false, 3, {1, 16, 256}, {64, 1024, 0}},
};

std::string_view cut(std::string_view& rest, char at) {
  const std::string_view piece = rest.substr(0, rest.find(at));
  rest.remove_prefix(std::min(rest.size(), piece.size() + 1));
  return piece;
}

template <class T>
bool number(std::string_view s, T& out) {
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), out);
  return !s.empty() && error == std::errc{} && end == s.data() + s.size();
}

struct Reader {
  std::string_view text;
  const Problem& problem;
  Pattern& out;
  std::vector<std::pair<std::string_view, std::string_view>> given{};

  Status no(const auto&... why) const { return Status::no("pattern '", text, "': ", why...); }
  bool has(std::string_view name) const { return !value(name).empty(); }
  std::string_view value(std::string_view name) const {
    for (const auto& [n, v] : given)
      if (n == name) return v;
    return {};
  }

  Status split() {
    std::string_view rest = text;
    const std::string_view word = cut(rest, ' ');
    const auto at = std::find(std::begin(kNames), std::end(kNames), word);
    if (at == std::end(kNames)) {
      std::string all;
      for (const std::string_view n : kNames) all += join(all.empty() ? "" : ", ", n);
      return no("'", word, "' is not one of ", all);
    }
    out.kind = PatternKind(at - std::begin(kNames));
    while (!rest.empty()) {
      std::string_view v = cut(rest, ' ');
      const std::string_view whole = v, n = cut(v, '=');
      if (n.empty() || v.empty()) return no("'", whole, "' is not name=value");
      if (has(n)) return no("'", n, "' is given twice");
      given.emplace_back(n, v);
    }
    return Status::good();
  }

  // Rejects names that the pattern does not have.
  Status known() const {
    const bool streams = value("kinds").find("streaming") != std::string_view::npos;
    const std::string all = join(kTakes[int(out.kind)], " kinds", streams ? " sink local" : "");
    for (const auto& [n, v] : given) {
      bool found = false;
      for (std::string_view rest = all; !rest.empty();) found |= cut(rest, ' ') == n;
      if (found) continue;
      std::string says;
      for (std::string_view rest = all; !rest.empty();)
        if (const std::string_view one = cut(rest, ' '); !one.empty()) says += join(says.empty() ? "" : ", ", one);
      return no("unknown parameter '", n, "'; accepted: ", says);
    }
    return Status::good();
  }

  Status integer(std::string_view name, int32_t otherwise, int32_t least, int32_t& x) const {
    x = otherwise;
    if (has(name) && (!number(value(name), x) || x < least))
      return no(name, "=", value(name), " is not an integer of at least ", least);
    return Status::good();
  }
  // Converts tokens to blocks: rounded down, or up where a requested feature must not vanish.
  Status tokens(std::string_view name, int32_t otherwise, bool up, int32_t& blocks) const {
    int32_t x = 0;
    if (Status s = integer(name, otherwise, up ? 1 : 0, x); !s.ok()) return s;
    blocks = up ? int32_t(ceil_div(x, problem.mask.blocks.k)) : x / problem.mask.blocks.k;
    return Status::good();
  }
  Status list(std::string_view name, std::string_view otherwise, int32_t least, int32_t* x, int32_t& count) const {
    std::string_view rest = has(name) ? value(name) : otherwise;
    const std::string_view whole = rest;
    if (whole.ends_with(',')) return no(name, "=", whole, " ends in a comma");
    for (count = 0; !rest.empty(); ++count) {
      const std::string_view one = cut(rest, ',');
      if (count == Pattern::kMost) return no(name, "=", whole, " has more than ", Pattern::kMost, " numbers");
      if (!number(one, x[count]) || x[count] < least)
        return no(name, "=", whole, ": '", one, "' is not an integer of at least ", least);
    }
    return Status::good();
  }

  Status window(int32_t otherwise) const {
    int32_t blocks = 0;
    if (Status s = tokens("window", otherwise, false, blocks); !s.ok()) return s;
    out.half = blocks / 2;
    return Status::good();
  }
  Status streaming() const {
    if (Status s = tokens("sink", 64, true, out.sink); !s.ok()) return s;
    return tokens("local", 256, true, out.local);
  }
  Status offsets() const {
    if (Status s = list("rates", "1,2,4,8", 1, out.rate, out.count); !s.ok()) return s;
    if (has("ratio") == has("reach")) return no("requires either ratio= (0 ... 1) or reach= (blocks)");
    if (has("reach")) return integer("reach", 0, 0, out.steps);
    int32_t ratio = 0;
    if (!parse_millionths(value("ratio"), ratio)) return no("ratio=", value("ratio"), " is not in 0 ... 1");
    out.steps = int32_t(ceil_div(problem.len_k, problem.mask.blocks.k) * ratio / Pattern::kWhole / 2);
    return Status::good();
  }
  Status random() const {
    if (!parse_millionths(value("density"), out.density))
      return no("density=", value("density"), " is not in 0 ... 1 with at most six decimals");
    uint64_t seed = 0;
    if (has("seed") && !number(value("seed"), seed)) return no("seed=", value("seed"), " is not a number");
    out.seed[0] = uint32_t(seed), out.seed[1] = uint32_t(seed >> 32);
    return Status::good();
  }
  Status hierarchical() const {
    const int block = problem.mask.blocks.k;
    const auto set = [&](int n, int stride, int tokens) {
      out.rate[n] = std::max(1, stride);
      out.reach[n] = tokens ? std::max(1, tokens / block) / 2 : Pattern::kEverywhere;
    };
    if (has("strides") || has("windows")) {
      int32_t windows[Pattern::kMost] = {}, strides[Pattern::kMost] = {}, count = 0;
      if (has("preset")) return no("has both preset= and levels (strides=, windows=); only one is accepted");
      if (Status s = list("strides", "", 1, strides, out.count); !s.ok()) return s;
      if (Status s = list("windows", "", 0, windows, count); !s.ok()) return s;
      if (!count || count != out.count)
        return no(out.count, " strides and ", count, " windows given; each level has one of each");
      for (int n = 0; n < count; ++n) set(n, strides[n] / block, windows[n]);
      return Status::good();
    }
    const std::string_view asked = has("preset") ? value("preset") : "standard";
    for (const Preset& p : kPresets) {
      if (p.name != asked) continue;
      out.count = p.count;
      for (int n = 0; n < p.count; ++n) set(n, p.stride_tokens ? p.stride[n] / block : p.stride[n], p.window[n]);
      return Status::good();
    }
    return no("preset=", asked, " is not one of standard, fine_grained, long_range, ultra_sparse");
  }

  // "dense", "30*sparse,2*dense".
  Status kinds() const {
    for (std::string_view rest = value("kinds"); !rest.empty();) {
      std::string_view one = cut(rest, ',');
      const std::string_view whole = one;
      int32_t times = 1;
      if (one.find('*') != std::string_view::npos && (!number(cut(one, '*'), times) || times < 1))
        return no("kinds: '", whole, "' is not number*kind");
      const auto at = std::find(std::begin(kHeadKinds), std::end(kHeadKinds), one);
      if (at == std::end(kHeadKinds)) return no("kinds: '", one, "' is not one of sparse, dense, streaming");
      if (times > Pattern::kHeads - out.head_kinds) return no("kinds: more than ", Pattern::kHeads, " heads");
      for (; times > 0; --times, ++out.head_kinds)
        out.head_kind[out.head_kinds / 16] |= uint32_t(at - std::begin(kHeadKinds)) << (out.head_kinds % 16 * 2);
    }
    return Status::good();
  }

  Status parameters() const {
    switch (out.kind) {
      case PatternKind::local_window: return window(512);
      case PatternKind::dilated_rates: return list("rates", "1,2,4", 1, out.rate, out.count);
      case PatternKind::dilated_offsets: return offsets();
      case PatternKind::dilated_multiples: return list("strides", "2,4,8", 1, out.rate, out.count);
      case PatternKind::global_local:
        if (Status s = tokens("global", 64, true, out.first); !s.ok()) return s;
        if (Status s = integer("rows", 0, 0, out.global_rows); !s.ok()) return s;
        if (out.global_rows > 1) return no("rows=", out.global_rows, " is not 0 or 1");
        return window(512);
      case PatternKind::strided: return integer("stride", 4, 1, out.rate[0]);
      case PatternKind::random: return random();
      case PatternKind::hierarchical: return hierarchical();
      case PatternKind::streaming: return streaming();
      default: return Status::good();
    }
  }
};

// Upper bound on the blocks listed by a row with `shown` visible blocks that spans `homes` key blocks.
int64_t row_bound(const Pattern& p, HeadKind head, int64_t shown, int64_t homes) {
  const auto window = [&](int64_t half) { return 2 * half + homes; };
  const int64_t streaming = p.sink + window(p.local - 1);
  int64_t most = shown;
  if (head == HeadKind::streaming) most = streaming;
  if (head == HeadKind::sparse) switch (p.kind) {
      case PatternKind::local_window: most = window(p.half); break;
      case PatternKind::dilated_rates: most = homes * (2 * p.count + 1); break;
      case PatternKind::dilated_offsets: most = homes * (2 * int64_t(p.steps) + 1); break;
      case PatternKind::dilated_multiples:
        most = window(1);
        for (int n = 0; n < p.count; ++n) most += shown / p.rate[n] + 1;
        break;
      case PatternKind::global_local: most = p.global_rows ? shown : p.first + window(p.half); break;
      case PatternKind::strided: most = shown / p.rate[0] + 1 + window(1); break;
      case PatternKind::hierarchical:
        most = 0;
        for (int n = 0; n < p.count; ++n) most += window(p.reach[n]);
        break;
      case PatternKind::streaming: most = streaming; break;
      default: break;
    }
  return std::min(shown, most);
}

}  // namespace

std::string name(PatternKind k) { return std::string(kNames[int(k)]); }

bool parse_millionths(std::string_view s, int32_t& out) {
  const std::string_view whole = cut(s, '.');
  if ((whole != "0" && whole != "1") || s.size() > 6) return false;
  int32_t part = 0;
  if (!s.empty() && (s[0] == '-' || !number(s, part))) return false;
  for (size_t n = s.size(); n < 6; ++n) part *= 10;
  out = (whole == "1" ? 1000000 : 0) + part;
  return out <= Pattern::kWhole;
}

Status parse(std::string_view text, const Problem& p, Pattern& out) {
  out = {};
  Reader reader{text, p, out};
  if (p.mask.blocks.q < 1 || p.mask.blocks.k < 1)
    return reader.no("the problem has no blocks, such as blocks64x64x5; a variant stands after ' : '");
  constexpr int64_t kMostRows = 1 << 22;  // each is looked at
  if (const int64_t rows = ceil_div(p.len_q, p.mask.blocks.q); rows > kMostRows)
    return reader.no("the problem has ", rows, " rows of blocks; at most ", kMostRows, " are accepted");
  if (Status s = reader.split(); !s.ok()) return s;
  if (Status s = reader.known(); !s.ok()) return s;
  if (Status s = reader.kinds(); !s.ok()) return s;
  if (reader.value("kinds").find("streaming") != std::string_view::npos)
    if (Status s = reader.streaming(); !s.ok()) return s;
  return reader.parameters();
}

int64_t bound(const Pattern& p, const Problem& problem, int batch, int heads, bool full) {
  const Blocks size = problem.mask.blocks;
  const BlockGrid grid{band_of(problem.mask, problem.len_q, problem.len_k, 0, 0), problem.len_q, problem.len_k, size};
  const bool known = full && problem.mask.align != Align::absolute;
  const int64_t columns = grid.columns();
  // With unknown lengths, a query block may straddle key blocks.
  const int64_t astride = std::min<int64_t>(columns, (size.q - 1) / size.k + 2);
  constexpr double kTooMany = 0x1p62;
  const int cycle = std::max(1, p.head_kinds);
  int64_t all = 0;
  for (const HeadKind kind : {HeadKind::sparse, HeadKind::dense, HeadKind::streaming}) {  // whose heads list alike
    int64_t heads_of = 0, shown = 0, listed = 0;
    for (int h = 0; h < std::min(cycle, heads); ++h)
      if (p.kind_of(h) == kind) heads_of += heads / cycle + (h < heads % cycle);
    for (int row = 0; row < grid.rows() && heads_of; ++row) {
      const Rows s = grid.shown(row), at = grid.homes(row);
      const int64_t seen = known ? s.last - s.first : columns;
      shown += seen;
      listed += row_bound(p, kind, seen, known ? at.last - at.first : astride);
    }
    // Blocks are drawn from the sum; rounding is monotone, so fewer visible blocks never draw more.
    const bool draws = p.kind == PatternKind::random && kind == HeadKind::sparse;
    const int64_t one = draws ? shown / Pattern::kWhole * p.density + p.drawn(shown % Pattern::kWhole) : listed;
    if (double(one) * double(heads_of) + double(all) > kTooMany) return int64_t(kTooMany);
    all += one * heads_of;
  }
  return double(all) * batch > kTooMany ? int64_t(kTooMany) : all * batch;
}

}  // namespace attune
