// SPDX-License-Identifier: Apache-2.0
// Ways to misread a problem, and the rows that each of them gives; internal to diagnose().
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/mask.h"
#include "core/score.h"
#include "verify/cases/pairs.h"
#include "verify/diagnose/diagnose.h"
#include "verify/rows.h"

namespace attune {

enum class Order { said, inputs_swapped, all_swapped, heads_as_sequence };
enum class Keys { said, first_only, last_only };
enum class Tail { none, zeros, last_again };
// Whose out and lse a backward uses: those it was given, or, as autograd does, those of its own forward.
enum class Forward { given, own };

// One way to read a problem. The first in the list is the correct one.
struct Reading {
  const char* name;
  const char* sentence;
  Mask mask{};
  double scale = 0;
  Order order = Order::said;
  Keys keys = Keys::said;
  Tail tail = Tail::none;
  int tile = 0;              // pads the tail to a multiple of this
  bool heads_modulo = false;
  bool transposed_v = false;
  double gradient_scale = 0; // backward: factor of its score gradients
  double lse_by = 1;         // backward: factor of the given lse
};

struct Answer {
  Row out;
  double lse = -INFINITY;
};

std::vector<Reading> readings(const Problem&, double scale);

struct Reader {
  const Problem& p;
  const Args& a;
  int b, h, i;  // the row of the output
  Pairs pairs;

  Reader(const Problem& problem, const Args& args, int batch, int head, int row)
      : p(problem), a(args), b(batch), h(head), i(row), pairs(problem, args, batch, head) {}

  Row read(const Tensor& t, int64_t batch, int64_t seq, int64_t head, bool swapped) const {
    return swapped ? read_swapped(t, batch, seq, head) : read_row(t, batch, seq, head);
  }
  Row key(Role role, const Sequence& s, int64_t j, int head, bool swapped) const {
    const int64_t at = s.k_first + j;
    if (p.keys != KeySource::paged) return read(a[role], s.k_batch, at, head, swapped);
    return read(a[role], a.row<const int32_t>(Role::page_table, b)[at / p.page], at % p.page, head, false);
  }
  double logit(double product, double scale, const Band& band, int j) const {
    double x = product * scale;
    if (p.has(Option::softcap)) x = double(a.softcap) * std::tanh(x / double(a.softcap));
    if (p.has(Option::bias)) x += double(bias_at(a[Role::bias], b, i, h, j));
    if (p.has(Option::alibi))
      x -= double(*a.row<const float>(Role::slopes, 0, 0, h)) * std::abs(double(band.ahead(i, j)));
    return x + pairs.score(i, j);
  }

  // The row under this reading; an empty `out` if the reading does not apply.
  Answer row(const Reading& r) const;
  // The row of dq under this reading. `size` is the size of its terms, which cancel. An empty `out` if the reading does
  // not apply; lse is -inf where the forward of the reading sees no key.
  Answer gradient(const Reading& r, Forward forward, double& size) const;
  Row written(Order order) const {
    const Sequence s = sequence(p, a, b);
    const Role role = p.pass == Pass::forward ? Role::out : Role::dq;
    return read(a[role], s.q_batch, s.q_first + i, h, order == Order::all_swapped);
  }
  // The distance of what was written from this answer. A row that sees no key under the reading may also be NaN, since
  // a softmax of nothing is 0 / 0.
  double error(const Reading&, const Answer&, double least = 1e-6) const;
  double lse() const {
    const Sequence s = sequence(p, a, b);
    return double(*a.row<const float>(Role::lse, s.q_batch, s.q_first + i, h));
  }
};

// Rows at both ends and in between; fewer if there are many keys.
std::vector<Reader> drawn(const Problem&, const Args&);

// The distance of two rows relative to the second, or to `least` if that is larger; infinite if there is nothing to
// compare.
double distance(const Row& got, const Row& expected, double least = 1e-6);

bool is_unwritten(const Row&);  // holds a NaN, or poison, which is larger than any computed value

// The sentence about the first row that is unwritten; no name if there is none.
Mistake unwritten(const std::vector<Reader>&);

// The reading, other than the first, whose rows are those that were written: the least of the largest errors below
// `close`. Null if there is none.
template <class Error>
const Reading* explaining(const std::vector<Reader>& rows, const std::vector<Reading>& all, double close,
                          const Error& error_of) {
  const auto is_written = [](const Reader& r) { return !is_unwritten(r.written(Order::said)); };
  if (std::none_of(rows.begin(), rows.end(), is_written)) return nullptr;
  const Reading* best = nullptr;
  double least = close;
  for (size_t m = 1; m < all.size(); ++m) {
    double error = 0;
    for (size_t n = 0; n < rows.size() && error <= least; ++n) error = std::max(error, error_of(rows[n], all[m]));
    if (error < least || (!best && error <= least)) best = &all[m], least = error;
  }
  return best;
}

}  // namespace attune
