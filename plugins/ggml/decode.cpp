// SPDX-License-Identifier: Apache-2.0
// One query, all heads of its key head: keys are read where they lie, four rows at a time, and nothing is packed. Only
// keys that the query sees are listed, so a cache that several sequences share costs each of them its own keys.
#include "plugins/ggml/call.h"

namespace attune::ggml {
namespace {

constexpr int kList = 128;      // keys; a multiple of 16
constexpr int kConverted = 32;  // quantized keys at a time: 32 KiB at most

class DecodeTask {
 public:
  DecodeTask(const Call& c, const Scratch& x, int b, int head_kv, int query)
      : c_(c),
        a_(c.a),
        x_(x),
        b_(b),
        head_kv_(head_kv),
        query_(query),
        rows_(a_.group()),
        q_(reinterpret_cast<float*>(x.q)) {}

  void run(int split) {
    for (int r = 0; r < rows_; ++r) {
      const float* from = reinterpret_cast<const float*>(a_.q.at(b_, head(r), query_));
      for (int d = 0; d < a_.q.dim; ++d) q_[r * a_.q.dim + d] = from[d] * c_.scale();
    }
    std::fill_n(x_.o, rows_ * a_.v.dim, 0.f);
    std::fill_n(x_.ref, rows_, -INFINITY);
    std::fill_n(x_.sum, rows_, 0.f);
    const int64_t tiles = c_.map.tiles();
    for (int64_t t = tiles * split / c_.splits; t < tiles * (split + 1) / c_.splits; ++t) list(int(t));
    step();
    for (int r = 0; r < rows_; ++r) {
      const int64_t row = c_.row(b_, head(r), query_);
      const float factor = c_.finish(split, row, head(r), x_.ref[r], x_.sum[r]);
      float* to = c_.out(split, row);
      for (int d = 0; d < a_.v.dim; ++d) to[d] = x_.o[r * a_.v.dim + d] * factor;
    }
  }

 private:
  int head(int r) const { return head_kv_ * rows_ + r; }

  void list(int t) {
    const Part part = c_.map.part(b_, query_, t);
    if (part.sight == Sight::none) return;
    const int key = t * c_.m.tile;
    if (part.sight == Sight::numbers)
      c_.map.numbers(c_.half, b_, query_, key + part.first, part.last - part.first, x_.plain);
    for (int j = part.first; j < part.last; ++j) {
      const float by = part.sight == Sight::numbers ? x_.plain[j - part.first] : 0.f;
      if (by == -INFINITY) continue;
      any_numbers_ |= by != 0.f;
      key_[count_] = key + j, x_.numbers[count_] = by;
      if (++count_ == kList) step();
    }
  }

  // Calls f(first, n) for runs of listed keys whose rows of `from` are at x_.rows.
  template <class F>
  void each_run(const Rows& from, F f) {
    const bool converts = is_quantized(from.stored);
    const int most = converts ? kConverted : kList;
    for (int first = 0; first < count_; first += most) {
      const int n = std::min(most, count_ - first);
      for (int j = 0; j < n; ++j) {
        const char* row = from.at(b_, head_kv_, key_[first + j]);
        if (converts && first + j + kKeysAhead < count_)
          fetch(from.at(b_, head_kv_, key_[first + j + kKeysAhead]), from.dim);
        float* const widened = x_.widened + j * from.dim;
        if (converts) widen_quantized(from.stored, row, from.dim, widened);
        x_.rows[j] = converts ? static_cast<const void*>(widened) : row;
      }
      f(first, n);
    }
  }

  void step() {
    if (!count_) return;
    each_run(a_.k, [&](int first, int n) {
      for (int r = 0; r < rows_; r += kTogether)
        c_.k.row_scores(q_ + r * a_.q.dim, std::min(kTogether, rows_ - r), x_.rows, n, a_.q.dim,
                        x_.s + r * kList + first, kList);
    });
    for (int r = 0; r < rows_; ++r) soften(r, x_.s + r * kList);
    each_run(a_.v, [&](int first, int n) {
      for (int r = 0; r < rows_; r += kTogether)
        c_.v.row_accumulate(x_.s + r * kList + first, std::min(kTogether, rows_ - r), kList, x_.rows, n, a_.v.dim,
                            x_.o + r * a_.v.dim);
    });
    count_ = 0, any_numbers_ = false;
  }

  // Scores of a row become weights.
  void soften(int r, float* s) {
    const int whole = int(round_up(count_, 16));
    std::fill(s + count_, s + whole, 0.f);
    if (a_.softcap != 0.f) c_.cap(s, whole);
    const float top = any_numbers_ ? add_numbers(x_.numbers, c_.slopes[head(r)], count_, s) : largest(s, count_);
    std::fill(s + count_, s + whole, -INFINITY);
    float& ref = x_.ref[r];
    const bool empty = ref == -INFINITY;
    const float factor = raise(ref, top);
    if (factor != 1.f && !empty) {
      x_.sum[r] *= factor;
      for (int d = 0; d < a_.v.dim; ++d) x_.o[r * a_.v.dim + d] *= factor;
    }
    x_.sum[r] += c_.m.row_weights(s, whole, ref == -INFINITY ? 0.f : ref);
  }
  const Call& c_;
  const Attention& a_;
  const Scratch& x_;
  const int b_, head_kv_, query_, rows_;
  float* const q_;
  int key_[kList];  // visible keys that wait, with their numbers in x_.numbers
  int count_ = 0;
  bool any_numbers_ = false;
};

}  // namespace

void run_decode(const Call& c, const Scratch& x, int b, int head_kv, int query, int split) {
  DecodeTask(c, x, b, head_kv, query).run(split);
}

}  // namespace attune::ggml
