// SPDX-License-Identifier: Apache-2.0
// Many rows: for each key tile that some row sees
//   pack the keys from the first to the last that some row sees
//   for each panel: scores -> hide, or logits on plain rows -> raise -> weights -> accumulate
#include "attention/cpu/unit.h"
#include "plugins/ggml/call.h"

namespace attune::ggml {
namespace {

class PanelTask {
 public:
  PanelTask(const Call& c, const Scratch& x, int b, int head_kv, int first, int count)
      : c_(c),
        a_(c.a),
        m_(c.m),
        x_(x),
        b_(b),
        head_kv_(head_kv),
        first_(first),
        count_(count),
        dim_qk_(int(round_up(a_.q.dim, m_.dim_step))),
        dim_v_(int(round_up(a_.v.dim, m_.dim_step))),
        panels_(m_, count) {}

  void run(int split) {
    for (int i = 0; i < panels_.count(); ++i) start(i);
    const int64_t tiles = c_.map.tiles();
    for (int64_t t = tiles * split / c_.splits; t < tiles * (split + 1) / c_.splits; ++t) tile(int(t));
    for (int i = 0; i < panels_.count(); ++i) store(i, split);
  }

 private:
  // Keys of a tile that some of the rows see.
  struct Seen {
    int first = 0, last = 0;
    bool all = true, numbers = false;  // all keys of the tile by all rows; some row has numbers
  };

  int rows_in(int panel) const { return std::min(panels_[panel].rows, count_ - panels_.first(panel)); }
  int query(int panel, int r) const { return (first_ + panels_.first(panel) + r) / a_.group(); }
  int head(int panel, int r) const { return head_kv_ * a_.group() + (first_ + panels_.first(panel) + r) % a_.group(); }
  float* o_of(int panel) const { return x_.o + int64_t(panels_.first(panel)) * dim_v_; }
  float* q_of(int panel) const { return reinterpret_cast<float*>(x_.q) + int64_t(panels_.first(panel)) * dim_qk_; }
  float* ref_of(int panel) const { return x_.ref + panels_.first(panel); }
  float* sum_of(int panel) const { return x_.sum + panels_.first(panel); }

  void start(int panel) {
    const CpuKernels& m = panels_[panel];
    const void* rows[kMaxRows];
    for (int r = 0; r < rows_in(panel); ++r) rows[r] = a_.q.at(b_, head(panel, r), query(panel, r));
    m.pack_q(rows, rows_in(panel), a_.q.dim, c_.scale(), q_of(panel));
    std::fill_n(o_of(panel), int64_t(m.rows) * dim_v_, 0.f);
    std::fill_n(ref_of(panel), m.rows, -INFINITY);
    std::fill_n(sum_of(panel), m.rows, 0.f);
  }

  Seen seen(int first_query, int last_query, int t) const {
    Seen to{c_.m.tile, 0};
    for (int i = first_query; i <= last_query; ++i) {
      const Part part = c_.map.part(b_, i, t);
      to.all &= part.sight == Sight::all;
      if (part.sight == Sight::none) continue;
      to.first = std::min<int>(to.first, part.first), to.last = std::max<int>(to.last, part.last);
      to.numbers |= part.sight == Sight::numbers;
    }
    return to;
  }

  void tile(int t) {
    const Seen all = seen(first_ / a_.group(), (first_ + count_ - 1) / a_.group(), t);
    if (all.first >= all.last) return;
    begin_ = all.first / m_.keys * m_.keys;
    const int key = t * m_.tile + begin_, n = all.last - begin_;
    gather(a_.k, b_, head_kv_, key, n, x_.widened, x_.rows);
    c_.k.pack_k(x_.rows, n, a_.k.dim, x_.k);
    gather(a_.v, b_, head_kv_, key, n, x_.widened, x_.rows);
    c_.v.pack_v(x_.rows, n, a_.v.dim, x_.v, m_.tile);
    for (int i = 0; i < panels_.count(); ++i) step(i, t);
  }

  void step(int panel, int t) {
    const CpuKernels& m = panels_[panel];
    const Seen s = seen(query(panel, 0), query(panel, rows_in(panel) - 1), t);
    if (s.first >= s.last) return;
    const int first = s.first / m.keys * m.keys, last = int(round_up(s.last, m.keys)), n = last - first;
    float top[kMaxRows];
    m.scores(q_of(panel), reinterpret_cast<const float*>(x_.k) + int64_t(first - begin_) * dim_qk_, n, dim_qk_, x_.s,
             top);
    if (a_.softcap != 0.f || s.numbers)
      logits(panel, t, first, n, top);
    else if (!s.all || last != s.last)
      hide(panel, t, first, n, top);
    admit(panel, top);
    m.weights(x_.s, n, 1.f, ref_of(panel), sum_of(panel), x_.p);
    m.accumulate(x_.p, x_.v, m_.tile, first - begin_, n, dim_v_, o_of(panel));
  }

  void hide(int panel, int t, int first, int n, float* top) {
    const CpuKernels& m = panels_[panel];
    int from[kMaxRows] = {}, until[kMaxRows] = {};
    for (int r = 0; r < rows_in(panel); ++r) {
      const Part part = c_.map.part(b_, query(panel, r), t);
      from[r] = part.first - first, until[r] = part.last - first;
    }
    m.hide(x_.s, n, from, until, top);
  }

  // The general case, on plain rows: softcap, the mask's numbers with the slope of the head, hidden keys.
  void logits(int panel, int t, int first, int n, float* top) {
    const CpuKernels& m = panels_[panel];
    m.read_scores(x_.s, n, x_.plain, m_.tile);
    std::fill_n(top, m.rows, -INFINITY);
    for (int r = 0, read = -1; r < rows_in(panel); ++r) {
      float* x = x_.plain + int64_t(r) * m_.tile;
      const int i = query(panel, r);
      const Part part = c_.map.part(b_, i, t);
      const int from = std::max(part.first - first, 0), until = std::max(part.last - first, from);
      if (a_.softcap != 0.f && from < until) c_.cap(x, int(round_up(n, 16)));
      if (part.sight == Sight::numbers) {
        if (read != i) c_.map.numbers(c_.half, b_, i, t * m_.tile + part.first, part.last - part.first, x_.numbers);
        read = i;
        top[r] = add_numbers(x_.numbers, c_.slopes[head(panel, r)], until - from, x + from);
      } else {
        top[r] = largest(x + from, until - from);
      }
      std::fill(x, x + from, -INFINITY);
      std::fill(x + until, x + n, -INFINITY);
    }
    m.write_scores(x_.plain, m_.tile, n, x_.s);
  }

  void admit(int panel, const float* top) {
    const CpuKernels& m = panels_[panel];
    float *ref = ref_of(panel), *sum = sum_of(panel), factor[kMaxRows];
    bool moved = false;
    for (int r = 0; r < m.rows; ++r) {
      const bool first = ref[r] == -INFINITY;  // nothing to rescale: o is 0
      factor[r] = raise(ref[r], top[r]);
      sum[r] *= factor[r];
      moved |= factor[r] != 1.f && !first;
    }
    if (moved) m.rescale(o_of(panel), dim_v_, factor);
  }

  void store(int panel, int split) {
    const CpuKernels& m = panels_[panel];
    const int n = rows_in(panel);
    float factor[kMaxRows] = {};
    int64_t to[kMaxRows];
    for (int r = 0; r < n; ++r) {
      to[r] = c_.row(b_, head(panel, r), query(panel, r));
      factor[r] = c_.finish(split, to[r], head(panel, r), ref_of(panel)[r], sum_of(panel)[r]);
    }
    m.unpack(o_of(panel), a_.v.dim, factor, n, x_.row, a_.v.dim);
    for (int r = 0; r < n; ++r) std::copy_n(x_.row + int64_t(r) * a_.v.dim, a_.v.dim, c_.out(split, to[r]));
  }

  const Call& c_;
  const Attention& a_;
  const CpuKernels& m_;
  const Scratch& x_;
  const int b_, head_kv_, first_, count_, dim_qk_, dim_v_;
  const cpu::Panels panels_;
  int begin_ = 0;  // of the packed keys, in the tile
};

}  // namespace

void run_panels(const Call& c, const Scratch& x, int b, int head_kv, int first, int count, int split) {
  PanelTask(c, x, b, head_kv, first, count).run(split);
}

}  // namespace attune::ggml
