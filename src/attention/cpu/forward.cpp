// SPDX-License-Identifier: Apache-2.0
// Forward attention on the CPU, flash-style and in linear memory:
//   pack q -> for each key tile: pack, then for each panel of rows: scores, hide, admit, weights, accumulate -> store
// The running reference of a row is an integer. It moves only when the maximum of that row grew by more than kLazy
// powers of two, so the bits of a row depend on its own keys alone, whatever shares its panel, task or batch.
#include <atomic>
#include <cmath>

#include "attention/cpu/append.h"
#include "attention/cpu/decode.h"
#include "attention/cpu/finite.h"
#include "attention/cpu/forward_scratch.h"
#include "attention/cpu/packed_keys.h"
#include "attention/cpu/splits.h"
#include "attention/cpu/unit.h"
#include "attention/cpu/row_io.h"

namespace attune {
namespace {

using namespace cpu;

// Rows per task: how often a packed tile is reused. Packing costs about 1 / kTaskRows of the products.
constexpr int kTaskRows = 1024;
constexpr int kMaxRows = 64;          // per panel, for all instruction sets
constexpr int kMaxTile = 512;
constexpr int kMaxDim = 256;
constexpr float kLeastScale = 1e-6f;  // below, a block bias divided by the scale cannot shift scores

// Rows [first, first + rows) of a unit, from packing to storing.
class Task {
 public:
  Task(const Plan& plan, const Unit& unit, const CpuKernels& m, const ForwardScratch& scratch, const PackedKeys& keys,
       const FormulaCall& formula, int first, int rows)
      : p_(plan.problem), u_(unit), m_(m), x_(scratch), keys_(keys), formula_(formula),
        lanes_(formula, scratch.formula, FormulaLanes::kK), walk_{unit.seq.band, unit.seq.len_k, m.tile},
        first_(first), rows_(rows), dim_qk_(padded(m, p_.dim_qk)), dim_v_(padded(m, p_.dim_v)), panels_(m, rows) {
    const float scale = scale_of(p_, *u_.args);
    // Plain rows are used where no loop of the instruction set applies; a negative scale swaps maxima and minima. A
    // block bias is constant over a block, so its scores can be shifted in place.
    if (only_numbers(p_) && scale >= kLeastScale && !lanes_.scores()) numbers_ = u_.args->row<const float>(Role::bias);
    general_ = (needs_general(p_) && !numbers_) || scale < 0.f || lanes_.scores();
    scale_q_ = general_ || !m.scale_in_q ? 1.f : scale * kLog2e;
    scale_s_ = general_ || m.scale_in_q ? 1.f : scale * kLog2e;
  }

  void run(int split, int splits, const SplitRows& partial) {
    const SplitRows* to = splits > 1 ? &partial : nullptr;
    for (int i = 0; i < panels_.count(); ++i) start(i);
    p_.mask.blocks.q ? visit_list(split, splits) : visit_band(split, splits);
    for (int i = 0; i < panels_.count(); ++i) store(i, to, split);
  }

 private:
  int rows_in(int panel) const { return std::min(panels_[panel].rows, rows_ - panels_.first(panel)); }
  int row(int panel, int r) const { return first_ + panels_.first(panel) + r; }
  int position(int panel, int r) const { return u_.position(row(panel, r)); }
  float* o_of(int panel) const { return x_.o + int64_t(panels_.first(panel)) * dim_v_; }
  std::byte* q_of(int panel) const { return at(x_.q, m_, int64_t(panels_.first(panel)) * dim_qk_); }
  float* ref_of(int panel) const { return x_.ref + panels_.first(panel); }
  float* sum_of(int panel) const { return x_.sum + panels_.first(panel); }

  void start(int panel) {
    const void* rows[kMaxRows];
    u_.addresses(Role::q, row(panel, 0), rows_in(panel), rows);
    const CpuKernels& m = panels_[panel];
    m.pack_q(rows, rows_in(panel), p_.dim_qk, scale_q_, q_of(panel));
    std::fill_n(o_of(panel), m.rows * dim_v_, 0.f);
    std::fill_n(ref_of(panel), m.rows, -INFINITY);
    std::fill_n(sum_of(panel), m.rows, 0.f);
  }

  void visit_band(int split, int splits) {
    const Rows queries{u_.position(first_), u_.position(first_ + rows_ - 1) + 1};
    const int64_t tiles = walk_.tiles(queries);
    for (int64_t n = tiles * split / splits; n < tiles * (split + 1) / splits; ++n) {
      const Tile t = walk_.tile(queries, int(n));
      segments_[0] = {t.first, t.last - t.first, 0};
      count_ = t.first < t.last;
      if (formula_ && count_) divide(t);
      tile();
    }
  }

  // Under a formula, a tile is several segments, each decided for each panel: a document ends anywhere.
  void divide(const Tile& t) {
    count_ = 0;
    if (box_of(0, panels_.count() - 1, {t.first, t.last}) == BoxIs::hidden) return;
    const int size = int(round_up(FormulaLanes::kLanes, m_.keys));
    for (int key = t.first; key < t.last; key += size)
      segments_[count_++] = {key, std::min(size, t.last - key), key - t.first};
  }
  // Cuts off keys at both ends that the formula hides from the whole panel.
  void cut(int panel, const Segment& g, Range& range) const {
    const int step = int(round_up(FormulaLanes::kLanes / 4, m_.keys));
    const auto hidden = [&](int first, int last) {
      return box_of(panel, panel, {g.key + first, g.key + std::min(last, g.count)}) == BoxIs::hidden;
    };
    while (range.last - range.first > step && hidden(range.first, range.first + step)) range.first += step;
    while (range.last - range.first > step && hidden(range.last - step, range.last)) range.last -= step;
  }
  // What the formula says of panels, first to last, and a range of keys.
  BoxIs box_of(int first_panel, int last_panel, Rows keys) const {
    if (!formula_ || keys.first >= keys.last) return BoxIs::open;
    const Band& band = u_.seq.band;
    return formula_.decide({.q_first = band.q_position(position(first_panel, 0)),
                            .q_last = band.q_position(position(last_panel, rows_in(last_panel) - 1)),
                            .k_first = band.k_position(keys.first), .k_last = band.k_position(keys.last - 1),
                            .h_first = u_.head_q, .h_last = u_.head_q + u_.group - 1, .b = u_.b,
                            .group = formula_.group, .len_q = u_.seq.len_q, .len_k = u_.seq.len_k});
  }

  // Small blocks share a tile and large ones are divided: a tile is filled before it is processed.
  void visit_list(int split, int splits) {
    const BlockList list = list_of(p_, *u_.args, u_.b, u_.head_q);
    const int block = first_ / list.blocks.q;
    const int64_t entries = list.count(block);
    int used = 0;
    count_ = 0;
    for (int64_t n = entries * split / splits; n < entries * (split + 1) / splits; ++n) {
      const int64_t begin = int64_t(list.key_block(block, int(n))) * list.blocks.k;
      const int first = clamp(begin, 0, u_.seq.len_k), last = clamp(begin + list.blocks.k, 0, u_.seq.len_k);
      for (int key = first; key < last;) {
        int count = std::min(last - key, m_.tile - used);
        int64_t packed = -1;
        if (keys_) {  // a packed tile is taken whole, or the tile is full
          const int64_t nth = (key - begin) / m_.tile;
          count = std::min<int64_t>(last - key, m_.tile);
          if (round_up(count, m_.keys) > m_.tile - used) tile(), used = count_ = 0;
          packed = keys_.slot(p_, u_.b, u_.head_kv, begin / list.blocks.k * keys_.tiles_per_block + nth);
        }
        segments_[count_++] = {key, count, used, list.entry(block) + int(n), packed};
        used += int(round_up(count, m_.keys)), key += count;
        if (used < m_.tile && count_ < kSegments) continue;
        tile();
        used = count_ = 0;
      }
    }
    tile();
  }

  // Packs the segments, unless already packed, and processes every panel against them. Panels that see only a part of
  // them come last, if some rows of v must be left out for these.
  void tile() {
    if (!count_) return;
    if (!keys_) {
      m_.pack_k(x_.rows, gather(Role::k), p_.dim_qk, x_.k);
      m_.pack_v(x_.rows, gather(Role::v), p_.dim_v, x_.v, m_.tile);
    }
    const bool leaves_out = hides({0, panels_.count() - 1}) && mark_left_out();
    for (int i = 0; i < panels_.count(); ++i)
      if (!leaves_out || !hides({i, i})) step(i, false);
    if (!leaves_out) return;
    const int total = gather(Role::v);
    for (int k = 0; k < total; ++k)
      if (left_out_[k]) x_.rows[k] = kZeroRow;
    m_.pack_v(x_.rows, total, p_.dim_v, x_.v, m_.tile);
    for (int i = 0; i < panels_.count(); ++i)
      if (hides({i, i})) step(i, true);
  }
  // Finds the addresses of all rows of the tile, and returns their number. Rows between two segments are 0.
  int gather(Role role) {
    int total = 0;
    for (int n = 0; n < count_; ++n) {
      const Segment& g = segments_[n];
      std::fill(x_.rows + total, x_.rows + g.at, kZeroRow);
      gather_keys(u_, role, g.key, g.count, x_.rows + g.at);
      total = g.at + g.count;
    }
    return total;
  }
  // True if some row of these panels, from the first to the last, does not see some key of the tile.
  bool hides(Rows panels) const {
    const int first = position(panels.first, 0), last = position(panels.last, rows_in(panels.last) - 1);
    return std::any_of(segments_, segments_ + count_, [&](const Segment& g) {
      if (box_of(panels.first, panels.last, {g.key, g.key + g.count}) != BoxIs::open) return true;
      return walk_.first_key(last) > g.key || walk_.last_key(first) < g.key + g.count;
    });
  }
  // Marks the rows of v that are not finite; true if there are any.
  bool mark_left_out() {
    const int total = gather(Role::v);
    return mark_rows(m_, x_.rows, total, p_.dim_v, left_out_);
  }
  // Adds the rows of v that were left out to the rows that see their keys.
  [[gnu::cold, gnu::noinline]] void add_left_out(int panel, const Range* range, int n) {
    const CpuKernels& m = panels_[panel];
    const bool dropout = p_.has(Option::dropout);  // x_.plain has the weights
    if (!dropout) m.read_scores(x_.s, n, x_.plain, m.tile);
    each_key(range, [&](const Segment& g, Range keys, int offset) {
      for (int k = keys.first; k < std::min(keys.last, g.count); ++k) {
        if (!left_out_[g.at + k]) continue;
        float v[kMaxDim] = {}, x[kMaxDim];
        m.widen(key_address(u_, Role::v, g.key + k), p_.dim_v, v);
        for (int r = 0; r < rows_in(panel); ++r) {
          const int i = position(panel, r);
          if (g.key + k < walk_.first_key(i) || g.key + k >= walk_.last_key(i)) continue;
          const float s = x_.plain[int64_t(r) * m.tile + offset + k - keys.first], ref = ref_of(panel)[r];
          if (formula_ && s == (dropout ? 0.f : -INFINITY)) continue;  // hidden by the formula
          const float weight = dropout ? s : std::exp2(s * scale_s_ - (ref == -INFINITY ? 0.f : ref));
          for (int d = 0; d < dim_v_; ++d) x[d] = weight * v[d];
          m.add_row(x, dim_v_, r, o_of(panel));
        }
      }
    });
  }
  const std::byte* keys_of(const Segment& g, int first) const {
    return g.packed < 0 ? at(x_.k, m_, int64_t(g.at + first) * dim_qk_)
                        : at(keys_.k + g.packed * keys_.k_bytes, m_, int64_t(first) * dim_qk_);
  }

  // The range of a segment that some row of the panel sees (seen), and the range that every row sees (open).
  Range seen(int panel, const Segment& g) const {
    const int first = walk_.first_key(position(panel, 0)) - g.key;
    const int last = walk_.last_key(position(panel, rows_in(panel) - 1)) - g.key;
    return {clamp(first, 0, g.count) / m_.keys * m_.keys, int(round_up(clamp(last, 0, g.count), m_.keys))};
  }
  Range open(int panel, const Segment& g) const {
    const int first = walk_.first_key(position(panel, rows_in(panel) - 1)) - g.key;
    const int last = walk_.last_key(position(panel, 0)) - g.key;
    return {int(round_up(clamp(first, 0, g.count), m_.keys)), clamp(last, 0, g.count) / m_.keys * m_.keys};
  }

  // Processes one panel against the tile. `leaves_out`: x_.v is packed without the marked rows.
  void step(int panel, bool leaves_out) {
    const CpuKernels& m = panels_[panel];
    Range range[kSegments];
    float top[kMaxRows];
    int n = 0;
    std::fill_n(top, m.rows, -INFINITY);
    for (int g = 0; g < count_; ++g) {
      range[g] = seen(panel, segments_[g]);
      if (range[g].first >= range[g].last) continue;
      const Segment& of = segments_[g];
      box_[g] = box_of(panel, panel, {of.key + range[g].first, of.key + std::min(range[g].last, of.count)});
      if (box_[g] == BoxIs::hidden) range[g] = {0, 0};
      if (box_[g] == BoxIs::mixed) cut(panel, of, range[g]);
      if (range[g].first >= range[g].last) continue;
      float own[kMaxRows], *const s = x_.s + int64_t(n) * m.rows;
      std::fill_n(own, m.rows, -INFINITY);
      scores(panel, segments_[g], range[g], s, own);
      if (box_[g] == BoxIs::mixed && !general_) mask(panel, segments_[g], range[g], s, own);
      for (int r = 0; r < m.rows; ++r) top[r] = own[r] > top[r] || own[r] != own[r] ? own[r] : top[r];
      n += range[g].last - range[g].first;
    }
    if (!n) return;
    // The previous output is not in cache when it is read, once, at the end; prefetch it.
    if (p_.has(Option::accumulate)) {
      const char* out[kMaxRows];
      u_.addresses(Role::out, row(panel, 0), rows_in(panel), out);
      for (int r = 0; r < rows_in(panel); ++r) fetch(out[r], p_.dim_v * int64_t(sizeof(float)));
    }
    if (general_) general_scores(panel, range, n, top);
    admit(panel, top);
    if (p_.has(Option::dropout)) dropped_weights(panel, range, n);
    else m.weights(x_.s, n, scale_s_, ref_of(panel), sum_of(panel), x_.p);
    KeyRun runs[kSegments];
    const bool packed = keys_ && !leaves_out;
    int many = 0;
    for (int g = 0; g < count_; ++g) {
      const auto [first, last] = range[g];
      if (first >= last) continue;
      if (packed) runs[many++] = {keys_.v + segments_[g].packed * keys_.v_bytes, first, last - first};
      else runs[many++] = {x_.v, segments_[g].at + first, last - first};
    }
    accumulate(m, x_.p, runs, many, packed ? keys_.capacity : m.tile, dim_v_, o_of(panel));
    if (leaves_out) add_left_out(panel, range, n);
  }

  // Scores of one segment. Only keys around the edges of the visible range are masked; most tiles have none.
  void scores(int panel, const Segment& g, Range range, float* s, float* top) {
    const CpuKernels& m = panels_[panel];
    Range whole = open(panel, g);
    whole = {std::max(whole.first, range.first), std::min(whole.last, range.last)};
    if (whole.first >= whole.last) whole = {range.last, range.last};
    for (const auto& [first, last] : {Range{range.first, whole.first}, whole, Range{whole.last, range.last}}) {
      if (first >= last) continue;
      float* part = s + int64_t(first - range.first) * m.rows;
      float more[kMaxRows];
      m.scores(q_of(panel), keys_of(g, first), last - first, dim_qk_, part, more);
      if (numbers_) {
        const float by = numbers_[g.entry] * kLog2e / scale_s_;
        for (int n = 0; n < (last - first) * m.rows; ++n) part[n] += by;
        for (int r = 0; r < m.rows; ++r) more[r] += by;
      }
      if (!general_ && first != whole.first) {
        int from[kMaxRows], until[kMaxRows];
        const int rows = rows_in(panel), begin = g.key + first, end = g.key + g.count;
        fill_steps(rows, [&](int r) { return walk_.first_key(position(panel, r)) - begin; }, from);
        fill_steps(rows, [&](int r) { return std::min(walk_.last_key(position(panel, r)), end) - begin; }, until);
        std::fill(from + rows, from + m.rows, from[rows - 1]);
        std::fill(until + rows, until + m.rows, until[rows - 1]);
        m.hide(part, last - first, from, until, more);
      }
      for (int r = 0; r < m.rows; ++r) top[r] = more[r] > top[r] || more[r] != more[r] ? more[r] : top[r];
    }
  }

  // The general policy: copies all of s to plain rows, applies logits and mask there, and copies it back.
  void general_scores(int panel, const Range* range, int n, float* top) {
    const CpuKernels& m = panels_[panel];
    m.read_scores(x_.s, n, x_.plain, m.tile);
    std::fill_n(top, m.rows, -INFINITY);
    for (int r = 0; r < m.rows; ++r) {
      float* x = x_.plain + int64_t(r) * m.tile;
      if (r >= rows_in(panel)) {
        std::fill_n(x, n, -INFINITY);
        continue;
      }
      each_key(range, [&](const Segment& g, Range keys, int offset) {
        const int i = position(panel, r), key = g.key + keys.first, count = std::min(keys.last, g.count) - keys.first;
        logits(u_.score(row(panel, r)), g.entry, i, key, count, x + offset);
        if (!formula_) hide_plain(i, key, count, keys.last - keys.first, x + offset);
      });
    }
    if (formula_) formula_scores(panel, range);
    for (int r = 0; r < rows_in(panel); ++r) {
      const float* x = x_.plain + int64_t(r) * m.tile;
      for (int k = 0; k < n; ++k) top[r] = x[k] > top[r] || x[k] != x[k] ? x[k] : top[r];
    }
    m.write_scores(x_.plain, m.tile, n, x_.s);
  }
  // Hides the keys that row i does not see among `width` from `key` on, of which `count` exist.
  void hide_plain(int i, int key, int count, int width, float* x) const {
    const int from = clamp(walk_.first_key(i) - key, 0, count), until = clamp(walk_.last_key(i) - key, from, count);
    std::fill(x, x + from, -INFINITY);
    std::fill(x + until, x + width, -INFINITY);
  }

  // Calls f(r, first, n) for up to 64 keys and each row of a panel, where lanes_ stands at these pairs.
  template <class F>
  void each_lanes(int panel, int key, int count, F f) {
    const Band& band = u_.seq.band;
    for (int first = 0; first < count; first += FormulaLanes::kLanes) {
      const int n = std::min(FormulaLanes::kLanes, count - first);
      lanes_.keys(u_.seq, u_.b, band.k_position(key + first), band.k_step, n);
      for (int r = 0; r < rows_in(panel); ++r) {
        lanes_.query(band.q_position(position(panel, r)), u_.head(row(panel, r)));
        f(r, first, n);
      }
    }
  }
  // Hides what the formula's mask hides, and finds the maxima again.
  void mask(int panel, const Segment& g, Range keys, float* s, float* top) {
    const CpuKernels& m = panels_[panel];
    const int width = keys.last - keys.first, count = std::min(keys.last, g.count) - keys.first;
    m.read_scores(s, width, x_.plain, m.tile);
    each_lanes(panel, g.key + keys.first, count, [&](int r, int first, int n) {
      lanes_.hide(n, x_.plain + int64_t(r) * m.tile + first);
    });
    m.write_scores(x_.plain, m.tile, width, s);
    int from[kMaxRows] = {}, until[kMaxRows];
    std::fill_n(until, m.rows, count);
    m.hide(s, width, from, until, top);
  }
  // Masks and scores logits on plain rows.
  void formula_scores(int panel, const Range* range) {
    const CpuKernels& m = panels_[panel];
    int at = 0;  // the segment of each_key
    each_key(range, [&](const Segment& g, Range keys, int offset) {
      while (&segments_[at] != &g) ++at;
      const int key = g.key + keys.first, count = std::min(keys.last, g.count) - keys.first;
      if (box_[at] == BoxIs::mixed)
        each_lanes(panel, key, count, [&](int r, int first, int n) {
          score_lanes(n, x_.plain + int64_t(r) * m.tile + offset + first);
        });
      for (int r = 0; r < rows_in(panel); ++r)
        hide_plain(position(panel, r), key, count, keys.last - keys.first, x_.plain + int64_t(r) * m.tile + offset);
    });
  }
  void score_lanes(int n, float* x) {  // base-2 logits in place
    if (lanes_.scores()) {
      double s[FormulaLanes::kLanes];
      for (int k = 0; k < FormulaLanes::kLanes; ++k) s[k] = double(x[std::min(k, n - 1)]) / double(kLog2e);
      const double* score = lanes_.score(s);
      for (int k = 0; k < n; ++k) x[k] = in_base_2(score[k]);
    }
    if (lanes_.masks()) lanes_.hide(n, x);
  }

  // Dropout changes the weight but not the sum that normalizes it.
  void dropped_weights(int panel, const Range* range, int n) {
    const CpuKernels& m = panels_[panel];
    for (int r = 0; r < rows_in(panel); ++r) {
      float* x = x_.plain + int64_t(r) * m.tile;
      const float ref = ref_of(panel)[r];
      for (int k = 0; k < n; ++k) {
        x[k] = x[k] == -INFINITY ? 0.f : std::exp2(x[k] - (ref == -INFINITY ? 0.f : ref));
        sum_of(panel)[r] += x[k];
      }
      each_key(range, [&](const Segment& g, Range keys, int offset) {
        const General& score = u_.score(row(panel, r));
        for (int k = keys.first; k < std::min(keys.last, g.count); ++k)
          x[offset + k - keys.first] *= score.keep(position(panel, r), g.key + k);
      });
    }
    for (int r = rows_in(panel); r < m.rows; ++r) std::fill_n(x_.plain + int64_t(r) * m.tile, n, 0.f);
    m.write_weights(x_.plain, m.tile, n, x_.p);
  }

  template <class F>
  void each_key(const Range* range, F f) {
    int offset = 0;
    for (int g = 0; g < count_; ++g) {
      if (range[g].first >= range[g].last) continue;
      f(segments_[g], range[g], offset);
      offset += range[g].last - range[g].first;
    }
  }

  void admit(int panel, const float* top) {
    const CpuKernels& m = panels_[panel];
    float *ref = ref_of(panel), *sum = sum_of(panel), factor[kMaxRows];
    bool moved = false;
    for (int r = 0; r < m.rows; ++r) {
      const bool first = ref[r] == -INFINITY;  // nothing to rescale: o is 0
      factor[r] = raise(ref[r], top[r] * scale_s_);
      sum[r] *= factor[r];
      moved |= factor[r] != 1.f && !first;
    }
    if (moved) m.rescale(o_of(panel), dim_v_, factor);
  }

  // The output of a row that sees one key is its value, to the bit, if it is divided by the weight as rounded in p. The
  // sum holds the unrounded weight, which the lse needs.
  void divide_one_key(int panel, float* now) const {
    const int n = rows_in(panel);
    const auto first = [&](int r) { return walk_.first_key(position(panel, r)); };
    const auto last = [&](int r) { return walk_.last_key(position(panel, r)); };
    if (!m_.rounded_weight || p_.has(Option::dropout) || last(0) - first(n - 1) > 1) return;
    int from[kMaxRows], until[kMaxRows];
    fill_steps(n, first, from);
    fill_steps(n, last, until);
    for (int r = 0; r < n; ++r)
      if (until[r] - from[r] == 1 && now[r] != 0.f) now[r] *= sum_of(panel)[r] / m_.rounded_weight(sum_of(panel)[r]);
  }

  void store(int panel, const SplitRows* partial, int split) {
    const CpuKernels& m = panels_[panel];
    const int n = rows_in(panel);
    float now[kMaxRows] = {}, before[kMaxRows];
    for (int r = 0; r < n; ++r) {
      RowEnd end = row_end({ref_of(panel)[r], sum_of(panel)[r]});
      float* lse = reinterpret_cast<float*>(u_.address(Role::lse, row(panel, r)));
      if (!partial && p_.has(Option::accumulate)) end.merge_running(*lse);
      if (!partial && p_.has(Option::sink))
        end.merge_sink(*u_.args->row<const float>(Role::sinks, 0, 0, u_.head(row(panel, r))));
      now[r] = end.now, before[r] = end.before;
      if (partial) partial->lse[split * partial->rows + partial_row(panel, r)] = end.lse;
      else if (u_.args->given(Role::lse)) *lse = end.lse;
    }
    divide_one_key(panel, now);
    char* out[kMaxRows];
    if (!partial) u_.addresses(Role::out, row(panel, 0), n, out);
    if (!partial && !p_.has(Option::accumulate))
      return store_panel(m, p_.dtype.out, o_of(panel), p_.dim_v, now, n, x_.row, out);
    if (!partial && m.join) return m.join(o_of(panel), p_.dim_v, now, before, n, out);
    m.unpack(o_of(panel), p_.dim_v, now, n, x_.row, p_.dim_v);
    for (int r = 0; r < n; ++r) {
      const float* from = x_.row + int64_t(r) * p_.dim_v;
      if (partial)
        std::copy_n(from, p_.dim_v, partial->out + (split * partial->rows + partial_row(panel, r)) * p_.dim_v);
      else store_row(m_, p_, from, before[r], out[r]);
    }
  }
  int64_t partial_row(int panel, int r) const {
    return (int64_t(u_.b) * p_.heads_q + u_.head(row(panel, r))) * p_.len_q + position(panel, r);
  }

  static constexpr int kSegments = 64;
  const Problem& p_;
  const Unit& u_;
  const CpuKernels& m_;
  const ForwardScratch& x_;
  const PackedKeys& keys_;
  const FormulaCall& formula_;
  FormulaLanes lanes_;
  const BandWalk walk_;
  const int first_, rows_, dim_qk_, dim_v_;
  const Panels panels_;
  float scale_q_, scale_s_;  // the softmax runs in base 2: exp(x scale) = exp2(x scale log2 e)
  bool general_;
  const float* numbers_ = nullptr;  // block biases, if scores are shifted by them
  Segment segments_[kSegments];
  BoxIs box_[kSegments]{};  // what the formula says of each segment, for the current panel
  int count_ = 0;
  bool left_out_[kMaxTile];  // of the tile's rows of v, where some are
};

Status supports(const Problem& p, const Device& d) { return cpu::supports("cpu_forward", Pass::forward, p, d); }

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  const CpuKernels& m = kernels_of(p, plan.device);
  if (is_decode(p, m)) return shape_decode(plan);
  const int64_t rows = int64_t(p.len_q) * group(p), sets = int64_t(p.batch) * units(p), threads = plan.device.units;
  // Enough tasks for the threads, none larger than kTaskRows, all about equal.
  int64_t blocks = ceil_div(rows, kTaskRows);
  while (sets * blocks < 4 * threads && rows / (blocks + 1) >= 8 * m.rows) ++blocks;
  plan.tile_q = int(round_up(ceil_div(rows, blocks), m.rows));
  plan.tile_k = m.tile;
  const int64_t tasks = sets * Tasks(plan, p.len_q).count, most = ceil_div(p.len_k, m.tile);
  // If there are too few rows for the threads, split the keys; never with repro=batch.
  if (tasks < threads && p.reproducible != Reproducible::batch)
    plan.splits = int(std::clamp<int64_t>(ceil_div(2 * threads, tasks), 1, most));
  Workspace count;
  carve_rotated(count, p);
  carve_splits(count, plan);
  carve_keys(count, plan, m);
  carve_formula(count, p);
  return count_workspace(plan, count, [&](Workspace& own) { carve(own, plan, m); });
}

Status attend(const Plan& plan, const Args& a, Workspace ws, Stream) {
  const Problem& p = plan.problem;
  const CpuKernels& m = kernels_of(p, plan.device);
  const SplitRows partial = carve_splits(ws, plan);
  const PackedKeys keys = carve_keys(ws, plan, m);
  FormulaCall formula = carve_formula(ws, p);
  begin_formula(p, a, formula);
  const auto scratch_of = by_worker(ws, [&](Workspace& own) { return carve(own, plan, m); });
  const Tasks of_unit(plan, longest(p, a).q);
  const int64_t sets = int64_t(p.batch) * units(p), tasks = sets * of_unit.count * plan.splits;
  if (!tasks) return Status::good();
  std::atomic<int64_t> next{0};
  auto work = [&](int worker) {
    const ForwardScratch scratch = scratch_of(worker);
    for (int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      const int split = int(n % plan.splits);
      // Longest first.
      const int64_t set = n / plan.splits % sets, block = of_unit.count - 1 - n / plan.splits / sets;
      const Unit unit = unit_of(p, a, int(set / units(p)), int(set % units(p)), scratch.scores);
      const Rows rows = of_unit.rows_of(p, block, unit.rows());
      if (rows.first >= rows.last) continue;
      Task task(plan, unit, m, scratch, keys, formula, rows.first, rows.last - rows.first);
      task.run(split, plan.splits, partial);
    }
  };
  const int workers = int(std::min<int64_t>(plan.device.units, tasks));
  if (keys) {
    auto pack = [&](int worker) {
      const ForwardScratch scratch = scratch_of(worker);
      const int64_t of_head = ceil_div(longest(p, a).k, p.mask.blocks.k) * keys.tiles_per_block;
      for (int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < p.batch * p.heads_kv * of_head;)
        pack_keys(p, a, m, keys, scratch.rows, scratch.scores, n, of_head);
    };
    parallel(plan.device.units, pack);
    next = 0;
  }
  parallel(workers, work);
  if (plan.splits == 1) return Status::good();

  next = 0;
  auto merge = [&](int worker) {
    const ForwardScratch scratch = scratch_of(worker);
    for (int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < int64_t(p.batch) * p.heads_q;)
      merge_splits(plan, a, m, partial, scratch.row, int(n / p.heads_q), int(n % p.heads_q));
  };
  parallel(workers, merge);
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  return append_then(plan.kernel == kDecodeKernel ? attend_decode : attend, plan, a, ws, stream);
}

}  // namespace

extern const Backend cpu_forward{.name = "cpu_forward", .supports = supports, .shape = shape, .run = run};

}  // namespace attune
