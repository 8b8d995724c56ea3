#include "variants/dilated/calls.h"

#include <algorithm>
#include <utility>

namespace attune {

Tensor ViewOf::of(const Tensor& t, int64_t base) const {
  const auto step = [&](const ViewAxis& a) {
    return a.count == 1 ? 0 : a.batches * t.stride.batch + a.rows * t.stride.seq + a.heads * t.stride.head;
  };
  Tensor made = t;
  made.data = row_address(t, batch, row - base, head);
  made.extent = {along_batch.count, rows, along_head.count, t.extent.dim};
  made.stride = {step(along_batch), rows == 1 ? 0 : rate * t.stride.seq, step(along_head)};
  return made;
}

namespace {

void move(ViewOf& v, const ViewAxis& axis, int64_t n) {
  v.batch += n * axis.batches, v.row += n * axis.rows, v.head += int(n) * axis.heads;
}

}  // namespace

DilatedCall single(const DilatedCall& call, int batch, int head_kv) {
  DilatedCall one = call;
  const int group = int(call.q.along_head.count / call.k.along_head.count);
  move(one.q, call.q.along_batch, batch), move(one.k, call.k.along_batch, batch);
  move(one.q, call.q.along_head, int64_t(head_kv) * group), move(one.k, call.k.along_head, head_kv);
  for (ViewOf* v : {&one.q, &one.k}) v->along_batch = v->along_head = {};
  if (group > 1) one.q.along_head = {group, call.q.along_head.batches, call.q.along_head.rows, call.q.along_head.heads};
  return one;
}

bool first_has_all(const Dilated& d) {
  return d.mode == Dilated::Mode::longnet && d.rate[branch_at(d, 0)] == 1;
}

int branch_at(const Dilated& d, int n) {
  if (d.mode == Dilated::Mode::headgroup) return n;
  const auto rates = d.rate + d.branches;
  const int whole = int(std::find(d.rate, rates, 1) - d.rate);
  if (whole == d.branches) return n;
  return n == 0 ? whole : n <= whole ? n - 1 : n;
}

namespace detail {

Span next_span(const Dilated& d, const Problem& p, int branch, int64_t length, int64_t first, int64_t last) {
  const int64_t size = d.segment[branch], segment = first / size * size;
  const int64_t end = std::min(segment + size, length), q_last = std::min(end, last);
  Span s{segment, first, q_last, p.mask.kind == MaskKind::causal ? q_last : end, 1};
  if (first == segment && q_last == segment + size) s.count = int((last - first) / size);
  return s;
}

bool Run::take(const HeadSet& next, const Picked& next_q, const Picked& next_k) {
  if (!next.heads_q || !next_q.count) return count == 0;  // no work: ends a run and starts none
  if (!count) return set = next, q = next_q, k = next_k, count = 1, true;
  const auto same = [](const HeadSet& a, const HeadSet& b) {
    return a.heads_q == b.heads_q && a.heads_kv == b.heads_kv && a.step_q == b.step_q && a.step_kv == b.step_kv;
  };
  // Distance from the first to the last of the run, and from the last to the next.
  const int64_t before = count - 1, more_rows = next_q.first - (q.first + before * rows);
  const int more_q = next.head_q - (set.head_q + int(before) * heads_q);
  const int more_kv = next.head_kv - (set.head_kv + int(before) * heads_kv);
  const bool alike = same(set, next) && next_q.count == q.count && next_k.count == k.count &&
                     next_k.first - (k.first + before * rows) == more_rows;
  const bool back = more_rows < 0 || more_q < 0 || more_kv < 0;  // some kernels require nonnegative strides
  if (!alike || back || (count > 1 && (more_rows != rows || more_q != heads_q || more_kv != heads_kv))) return false;
  rows = more_rows, heads_q = more_q, heads_kv = more_kv;
  return ++count, true;
}

Run run_from(const Dilated& d, const Problem& p, int branch, const Span& span, int set, int sets, int& next) {
  Run run;
  const int rate = d.rate[branch];
  for (next = set; next < sets; ++next) {
    const HeadSet s = head_set(d, p, branch, next);
    const int64_t origin = span.segment + s.offset;
    if (!run.take(s, pick(origin, rate, span.q_first, span.q_last), pick(origin, rate, span.segment, span.k_last)))
      break;
  }
  return run;
}

Folded fold(const Dilated& d, const Problem& p, int branch, const Span& span, const Run& run) {
  const int64_t size = d.segment[branch];
  struct Loop { ViewAxis q, k; } loops[] = {
      {{p.batch, 1, 0, 0}, {p.batch, 1, 0, 0}},
      {{span.count, 0, size, 0}, {span.count, 0, size, 0}},
      {{run.count, 0, run.rows, run.heads_q}, {run.count, 0, run.rows, run.heads_kv}}};
  const auto larger_first = [](Loop& a, Loop& b) { if (a.q.count < b.q.count) std::swap(a, b); };
  larger_first(loops[0], loops[1]), larger_first(loops[0], loops[2]), larger_first(loops[1], loops[2]);
  const HeadSet& s = run.set;
  Loop heads{{s.heads_q, 0, 0, s.step_q}, {s.heads_kv, 0, 0, s.step_kv}};
  // GQA groups keep the head axis. Otherwise the longer of the heads and the second loop takes it.
  if (s.heads_q == s.heads_kv && heads.q.count < loops[1].q.count) std::swap(heads, loops[1]);
  Folded made;
  made.first.branch = branch;
  made.first.q = {0, run.q.first, s.head_q, int(run.q.count), d.rate[branch], loops[0].q, heads.q};
  made.first.k = {0, run.k.first, s.head_kv, int(run.k.count), d.rate[branch], loops[0].k, heads.k};
  for (int n = 0; n < 2; ++n) made.loop_q[n] = loops[n + 1].q, made.loop_k[n] = loops[n + 1].k;
  return made;
}

DilatedCall Folded::call(int n) const {
  DilatedCall c = first;
  const int inner = loop_q[0].count;
  move(c.q, loop_q[0], n % inner), move(c.k, loop_k[0], n % inner);
  move(c.q, loop_q[1], n / inner), move(c.k, loop_k[1], n / inner);
  return c;
}

}  // namespace detail
}  // namespace attune
