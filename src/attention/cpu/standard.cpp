// SPDX-License-Identifier: Apache-2.0
// Textbook attention on the CPU, both passes: the whole score matrix in memory, a BLAS for the products, and a softmax
// between them. It is the baseline for the fused kernels, so it is written to be fair: loops that compilers vectorize,
// one task per (sequence, head), one BLAS thread per task. Its memory is quadratic.
//
// All inputs are first copied to f32 rows, which costs len * dim where the products cost len * len * dim. The order of
// every sum is fixed, independent of the threads.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "attention/cpu/append.h"
#include "attention/cpu/finite.h"
#include "attention/cpu/large_logits.h"
#include "attention/cpu/unit.h"
#include "core/dtypes.h"
#include "core/score.h"
#include "machine/cpu/kernels.h"
#include "machine/cpu/threads.h"
#include "machine/library.h"
#include "plan/backend.h"

namespace attune {
namespace {

constexpr double kMostScores = 0x1p44;  // beyond any machine, and byte counts do not overflow
constexpr int kRowMajor = 101, kAsIs = 111, kTransposed = 112;

// Scratch of one worker. Rows are packed: the stride of a matrix is its width.
struct Buffers {
  float *q, *k, *v, *out;            // [len, dim]
  float* s;                          // [len_q, len_k]: scores, then weights
  float *before, *now;               // [len_q]: factors of the running output and of this run's sum
  float *d_out, *dp, *dq, *dk, *dv;  // backward; dp is [len_q, len_k]
  int32_t* entry;                    // [key blocks]: their entries in the list of the current query block, or -1
};

Buffers carve_buffers(Workspace& w, const Problem& p) {
  const size_t len_q = size_t(p.len_q), len_k = size_t(p.len_k), dim_qk = size_t(p.dim_qk), dim_v = size_t(p.dim_v);
  const size_t back = p.pass == Pass::backward;  // 0 or 1: a forward reserves nothing for the backward
  const auto take = [&](size_t count) { return w.take<float>(count); };
  return {.q = take(len_q * dim_qk), .k = take(len_k * dim_qk), .v = take(len_k * dim_v), .out = take(len_q * dim_v),
          .s = take(len_q * len_k), .before = take(len_q), .now = take(len_q), .d_out = take(back * len_q * dim_v),
          .dp = take(back * len_q * len_k), .dq = take(back * len_q * dim_qk), .dk = take(back * len_k * dim_qk),
          .dv = take(back * len_k * dim_v),
          .entry = w.take<int32_t>(p.mask.blocks.q ? size_t(ceil_div(p.len_k, p.mask.blocks.k)) : 0)};
}

int workers_of(const Plan& plan) {
  const Problem& p = plan.problem;
  const int64_t tasks = int64_t(p.batch) * (p.pass == Pass::forward ? p.heads_q : p.heads_kv);
  return clamp(plan.device.units, 1, tasks);
}

// 2^x, relative error 1.2e-7, exactly 0 from 2^-127 down. Adding 1.5 * 2^23 + 127 rounds x to an integer n and leaves
// the exponent bits of 2^n at the bottom; a minimax polynomial handles the rest. A loop over this code vectorizes,
// since it has neither branches nor calls.
inline float fast_exp2(float x) {
  constexpr float kShift = 12582912.f + 127.f;
  x = x < -127.f ? -127.f : x;  // propagates NaN
  x = x > 128.f ? 128.f : x;
  const float rounded = x + kShift, f = x - (rounded - kShift);
  float y = 1.327647198e-03f * f + 9.675541334e-03f;
  y = y * f + 5.550713274e-02f;
  y = y * f + 2.402211972e-01f;
  y = y * f + 6.931469671e-01f;
  y = y * f + 1.000000072e+00f;
  return y * std::bit_cast<float>(std::bit_cast<uint32_t>(rounded) << 23);
}

// Keeps eight independent partial results; a single chain would not vectorize. `step` returns the value of key j.
template <class Step, class Combine>
float reduce(Rows keys, float start, Step step, Combine combine) {
  float lane[8];
  for (float& x : lane) x = start;
  int j = keys.first;
  for (; j + 8 <= keys.last; j += 8)
    for (int n = 0; n < 8; ++n) lane[n] = combine(lane[n], step(j + n));
  for (; j < keys.last; ++j) lane[0] = combine(lane[0], step(j));
  for (int n = 1; n < 8; ++n) lane[0] = combine(lane[0], lane[n]);
  return lane[0];
}
float larger(float a, float b) { return a > b ? a : b; }
float plus(float a, float b) { return a + b; }

// Calls f(j, address) for every key (or value, or gradient of one) of a sequence.
template <class F>
void each_key(const Problem& p, const Args& a, Role role, const Sequence& s, int b, int head, F f) {
  const auto walk = [&](const auto& rows) {
    for (int j = 0; j < s.len_k; ++j) f(j, rows.row(j));
  };
  const bool f32 = a[role].dtype == DType::f32;
  if (p.keys == KeySource::paged)
    f32 ? walk(PagedRows<float>(p, a, role, s, b, head)) : walk(PagedRows<uint16_t>(p, a, role, s, b, head));
  else
    f32 ? walk(LinearRows<float>(p, a, role, s, b, head)) : walk(LinearRows<uint16_t>(p, a, role, s, b, head));
}

// One worker: one sequence and head at a time.
struct Worker {
  const Problem& p;
  const Args& a;
  const Blas& blas;
  const CpuKernels &in, &out, &grad;  // read q, k, v and d_out; write out and gradients
  Buffers buffers;
  double* d_sink;  // [batch, head]; null unless requested

  // to (+)= x y, [m, n] = [m, k] [k, n]; either factor may be stored transposed.
  void multiply(int m, int n, int k, const float* x, bool x_transposed, const float* y, bool y_transposed, float* to,
                bool add = false) const {
    blas.sgemm(kRowMajor, x_transposed ? kTransposed : kAsIs, y_transposed ? kTransposed : kAsIs, m, n, k, 1.f, x,
               x_transposed ? m : k, y, y_transposed ? k : n, add ? 1.f : 0.f, to, n);
  }

  // to (+)= weights y, [m, n] = [m, k] [k, n]. Rows of y that are not finite (finite.h) are added where sees(row of to,
  // row of y), and then cleared; true if there were any.
  template <class Sees>
  bool weigh(int m, int n, int k, const float* weights, bool transposed, float* y, float* to, bool add,
             Sees sees) const {
    bool cleared = false;
    for (int j = 0; j < k; ++j) {
      float* row = y + int64_t(j) * n;
      float zero = 0.f;
      for (int d = 0; d < n; ++d) zero += row[d] * 0.f;  // NaN if a number is not finite
      if (zero == 0.f) continue;
      if (!add) std::fill_n(to, int64_t(m) * n, 0.f);
      for (int i = 0; i < m; ++i) {
        const float weight = weights[transposed ? int64_t(j) * m + i : int64_t(i) * k + j];
        if (!sees(i, j)) continue;
        for (int d = 0; d < n; ++d) to[int64_t(i) * n + d] += weight * row[d];
      }
      std::fill_n(row, n, 0.f);
      cleared = add = true;
    }
    multiply(m, n, k, weights, transposed, y, false, to, add);
    return cleared;
  }
  bool sees(const Sequence& s, int b, int h, int i, int j) const {
    const Blocks blocks = p.mask.blocks;
    if (!s.band.visible(i, j)) return false;
    return !blocks.q || BlockList{blocks, a.row<const int32_t>(Role::block_begin, b, 0, h),
                                  a.row<const int32_t>(Role::block_column)}.find(i / blocks.q, j / blocks.k) >= 0;
  }

  void load_queries(Role role, const CpuKernels& as, const Sequence& s, int h, int dim, float* to) const {
    for (int i = 0; i < s.len_q; ++i)
      as.widen(row_address(a[role], s.q_batch, s.q_first + i, h), dim, to + int64_t(i) * dim);
  }
  void load_keys(const Sequence& s, int b, int head) const {
    const auto load = [&](Role role, int dim, float* to) {
      each_key(p, a, role, s, b, head, [&](int64_t j, const void* x) { in.widen(x, dim, to + j * dim); });
    };
    load(Role::k, p.dim_qk, buffers.k);
    load(Role::v, p.dim_v, buffers.v);
  }

  // Calls f(i, keys) for every query in order. `keys` is the range within its band; buffers.entry then holds which of
  // their blocks are listed.
  template <class F>
  void each_query(const Sequence& s, int b, int h, F f) const {
    const BandWalk walk{s.band, s.len_k, 1};
    const Blocks blocks = p.mask.blocks;
    for (int i = 0; i < s.len_q; ++i) {
      if (blocks.q && i % blocks.q == 0) list_blocks(s, b, h, i / blocks.q);
      const int first = walk.first_key(i);
      f(i, Rows{first, std::max(first, walk.last_key(i))});
    }
  }
  void list_blocks(const Sequence& s, int b, int h, int row) const {
    const Blocks blocks = p.mask.blocks;
    const BlockList list{blocks, a.row<const int32_t>(Role::block_begin, b, 0, h),
                         a.row<const int32_t>(Role::block_column)};
    const int count = int(ceil_div(s.len_k, blocks.k));
    std::fill_n(buffers.entry, count, -1);
    const int first = list.entry(row);
    for (int n = first; n < first + list.count(row); ++n)
      if (const int block = list.column[n]; block >= 0 && block < count) buffers.entry[block] = n;
  }
  // Any entry will do for a key whose block is not listed.
  void enter(Plain&, int) const {}
  void enter(General& score, int j) const {
    if (score.block_bias) score.entry = std::max(0, buffers.entry[j / p.mask.blocks.k]);
  }
  // Computes the logits of `keys` in place; -inf where the block list hides one.
  template <class Score>
  void make_logits(Score score, int i, Rows keys, float* s) const {
    for (int j = keys.first; j < keys.last; ++j) {
      enter(score, j);
      s[j] = cpu::logit_of(score, s[j], i, j);
    }
    if (p.mask.blocks.q)
      for (int j = keys.first; j < keys.last; ++j)
        if (buffers.entry[j / p.mask.blocks.k] < 0) s[j] = -INFINITY;
  }

  template <class Score>
  void forward(int b, int h) const {
    const Sequence s = sequence(p, a, b);
    if (!s.len_q) return;
    load_queries(Role::q, in, s, h, p.dim_qk, buffers.q);
    load_keys(s, b, h / (p.heads_q / p.heads_kv));
    if (s.len_k) multiply(s.len_q, s.len_k, p.dim_qk, buffers.q, false, buffers.k, true, buffers.s);
    const Score score(p, a, s, b, h);
    each_query(s, b, h, [&](int i, Rows keys) {
      const RowEnd end = finish(i, h, s, soften(score, i, keys, s.len_k, buffers.s + int64_t(i) * s.len_k));
      buffers.before[i] = end.before, buffers.now[i] = end.now;
    });
    const auto visible = [&](int i, int j) { return sees(s, b, h, i, j); };
    if (s.len_k) weigh(s.len_q, p.dim_v, s.len_k, buffers.s, false, buffers.v, buffers.out, false, visible);
    for (int i = 0; i < s.len_q; ++i) store_out(i, h, s);
  }

  // Converts scores to weights relative to their maximum; the weight of a hidden key is 0. Dropped weights still count
  // in the sum.
  template <class Score>
  SoftmaxRow soften(const Score& score, int i, Rows keys, int len_k, float* x) const {
    std::fill(x, x + keys.first, 0.f);
    std::fill(x + keys.last, x + len_k, 0.f);
    make_logits(score, i, keys, x);
    SoftmaxRow row;
    row.max = reduce(keys, -INFINITY, [=](int j) { return x[j]; }, larger);
    const float reference = row.max == -INFINITY ? 0.f : row.max;
    for (int j = keys.first; j < keys.last; ++j) x[j] = fast_exp2(x[j] - reference);
    row.sum = reduce(keys, 0.f, [=](int j) { return x[j]; }, plus);
    if (p.has(Option::dropout))
      for (int j = keys.first; j < keys.last; ++j) x[j] *= score.keep(i, j);
    return row;
  }

  RowEnd finish(int i, int h, const Sequence& s, const SoftmaxRow& row) const {
    RowEnd end = cpu::row_end(row);
    if (p.has(Option::accumulate)) end.merge_running(*a.row<float>(Role::lse, s.q_batch, s.q_first + i, h));
    if (p.has(Option::sink)) end.merge_sink(*a.row<const float>(Role::sinks, 0, 0, h));
    if (a.given(Role::lse)) *a.row<float>(Role::lse, s.q_batch, s.q_first + i, h) = end.lse;
    return end;
  }
  void store_out(int i, int h, const Sequence& s) const {
    float* x = buffers.out + int64_t(i) * p.dim_v;
    char* to = row_address(a[Role::out], s.q_batch, s.q_first + i, h);
    const float before = buffers.before[i], now = buffers.now[i];
    for (int d = 0; d < p.dim_v; ++d) x[d] = now == 0.f ? 0.f : x[d] * now;
    if (before != 0.f)  // accumulating, and out is f32; a row that saw no key yet is not read
      for (int d = 0; d < p.dim_v; ++d) x[d] += before * reinterpret_cast<const float*>(to)[d];
    out.narrow(x, p.dim_v, to);
  }

  // Processes all query heads of a KV head, in order: their dk and dv are one sum.
  template <class Score>
  void backward(int b, int head_kv) const {
    const Sequence s = sequence(p, a, b);
    if (!s.len_q) return;
    const int group = p.heads_q / p.heads_kv;
    load_keys(s, b, head_kv);
    for (int n = 0; n < group; ++n) {
      const int h = head_kv * group + n;
      load_queries(Role::q, in, s, h, p.dim_qk, buffers.q);
      load_queries(Role::out, out, s, h, p.dim_v, buffers.out);
      load_queries(Role::d_out, out, s, h, p.dim_v, buffers.d_out);
      if (s.len_k) {
        multiply(s.len_q, s.len_k, p.dim_qk, buffers.q, false, buffers.k, true, buffers.s);
        multiply(s.len_q, s.len_k, p.dim_v, buffers.d_out, false, buffers.v, true, buffers.dp);
      }
      const Score score(p, a, s, b, h);
      each_query(s, b, h, [&](int i, Rows keys) { differentiate(score, i, keys, s, b, h); });
      if (s.len_k) {
        const auto seen = [&](int j, int i) {
          return sees(s, b, h, i, j) && *a.row<const float>(Role::lse, s.q_batch, s.q_first + i, h) != -INFINITY;
        };
        const auto visible = [&](int i, int j) { return seen(j, i); };
        weigh(s.len_k, p.dim_v, s.len_q, buffers.s, true, buffers.d_out, buffers.dv, n > 0, seen);
        weigh(s.len_k, p.dim_qk, s.len_q, buffers.dp, true, buffers.q, buffers.dk, n > 0, seen);
        if (weigh(s.len_q, p.dim_qk, s.len_k, buffers.dp, false, buffers.k, buffers.dq, false, visible))
          load_keys(s, b, head_kv);
      }
      if (a.given(Role::dq)) store_dq(s, h);
    }
    if (a.given(Role::dk)) add_keys(Role::dk, s, b, head_kv, p.dim_qk, buffers.dk, buffers.k);
    if (a.given(Role::dv)) add_keys(Role::dv, s, b, head_kv, p.dim_v, buffers.dv, buffers.v);
  }

  // Converts a row of scores and dp to dropped weights and gradients of dot products.
  template <class Score>
  void differentiate(Score score, int i, Rows keys, const Sequence& s, int b, int h) const {
    float *x = buffers.s + int64_t(i) * s.len_k, *dp = buffers.dp + int64_t(i) * s.len_k;
    const float lse = *a.row<const float>(Role::lse, s.q_batch, s.q_first + i, h);
    if (lse == -INFINITY) keys = {0, 0};  // a row that sees no key has no gradient
    for (float* row : {x, dp}) {
      std::fill(row, row + keys.first, 0.f);
      std::fill(row + keys.last, row + s.len_k, 0.f);
    }
    const float delta = delta_of(i, h, s), scale = scale_of(p, a), reference = lse_of_weights(lse);
    if (d_sink && lse != -INFINITY)
      d_sink[int64_t(b) * p.heads_q + h] -= double(expf(*a.row<const float>(Role::sinks, 0, 0, h) - lse)) * delta;
    if constexpr (std::is_same_v<Score, Plain>) {
      make_logits(score, i, keys, x);
      for (int j = keys.first; j < keys.last; ++j) x[j] = fast_exp2(exponent_of_weight(x[j], reference));
      for (int j = keys.first; j < keys.last; ++j) dp[j] = x[j] * (dp[j] - delta) * scale;
      for (int j = keys.first; p.mask.blocks.q && j < keys.last; ++j)
        if (buffers.entry[j / p.mask.blocks.k] < 0) x[j] = dp[j] = 0.f;
    } else {
      const bool of_block = p.has(Option::block_bias);
      // A stride of 0 sums over its axis.
      float* d_bias = of_block ? a.row<float>(Role::d_bias) : a.row<float>(Role::d_bias, b, i, h);
      for (int j = keys.first; j < keys.last; ++j) {
        const bool seen = !p.mask.blocks.q || buffers.entry[j / p.mask.blocks.k] >= 0;
        enter(score, j);
        const float slope = score.slope_of_logit(x[j]), keep = score.keep(i, j);
        const float weight = seen ? fast_exp2(exponent_of_weight(cpu::logit_of(score, x[j], i, j), reference)) : 0.f;
        const float d_logit = seen ? weight * (dp[j] * keep - delta) : 0.f;
        if (d_bias) d_bias[of_block ? score.entry : a[Role::d_bias].extent.dim == 1 ? 0 : j] += d_logit;
        x[j] = weight * keep;
        dp[j] = seen ? d_logit * slope * scale : 0.f;
      }
    }
  }
  float delta_of(int i, int h, const Sequence& s) const {
    const float *o = buffers.out + int64_t(i) * p.dim_v, *d_o = buffers.d_out + int64_t(i) * p.dim_v;
    const float* d_lse = a.row<const float>(Role::d_lse, s.q_batch, s.q_first + i, h);
    return reduce({0, p.dim_v}, 0.f, [=](int d) { return o[d] * d_o[d]; }, plus) - (d_lse ? *d_lse : 0.f);
  }

  void store_dq(const Sequence& s, int h) const {
    if (!s.len_k) std::fill_n(buffers.dq, int64_t(s.len_q) * p.dim_qk, 0.f);
    for (int i = 0; i < s.len_q; ++i) {
      float* x = buffers.dq + int64_t(i) * p.dim_qk;
      char* to = row_address(a[Role::dq], s.q_batch, s.q_first + i, h);
      if (p.has(Option::accumulate))  // gradients are f32
        for (int d = 0; d < p.dim_qk; ++d) x[d] += reinterpret_cast<const float*>(to)[d];
      grad.narrow(x, p.dim_qk, to);
    }
  }
  // Adds to dk or dv, which are cleared first unless the run accumulates. Several sequences may share a cache row or a
  // page; their sum is then rounded to the gradient's dtype after each.
  void add_keys(Role role, const Sequence& s, int b, int head, int dim, const float* from, float* before) const {
    each_key(p, a, role, s, b, head, [&](int64_t j, void* to) {
      grad.widen(to, dim, before);
      for (int d = 0; d < dim; ++d) before[d] += from[j * dim + d];
      grad.narrow(before, dim, to);
    });
  }
};

void clear(const Tensor& t) {
  if (!t.data) return;
  for (int b = 0; b < t.extent.batch; ++b)
    for (int s = 0; s < t.extent.seq; ++s)
      for (int h = 0; h < t.extent.head; ++h)
        std::memset(row_address(t, b, s, h), 0, size_t(t.extent.dim) * size_t(size_of(t.dtype)));
}

// Tasks that write to the same place form one task, or a single worker runs them all.
struct Split {
  int64_t tasks;
  bool whole_head;  // a task is a KV head with every sequence, in order
  int workers;

  explicit Split(const Plan& plan, const Args& a) : workers(workers_of(plan)) {
    const Problem& p = plan.problem;
    const bool backward = p.pass == Pass::backward;
    const Extents bias = a.given(Role::d_bias) ? a[Role::d_bias].extent : Extents{p.batch, 1, p.heads_q, 1};
    const bool shared = p.keys == KeySource::paged || a.given(Role::cache_index) || bias.batch < p.batch;
    whole_head = backward && shared;
    tasks = int64_t(whole_head ? 1 : p.batch) * (backward ? p.heads_kv : p.heads_q);
    if (backward && bias.head < p.heads_q) workers = 1;
    workers = clamp(workers, 1, tasks);
  }
};

struct Carved {
  double* d_sink;  // [batch, head], in a backward with sinks
  std::byte* rooms;
  size_t room_bytes;
};
Carved carve(Workspace& w, const Problem& p, int workers) {
  Workspace one;
  carve_buffers(one, p);
  const size_t sinks = p.pass == Pass::backward && p.has(Option::sink) ? size_t(p.batch) * size_t(p.heads_q) : 0;
  Carved c{.d_sink = w.take<double>(sinks), .rooms = nullptr, .room_bytes = size_t(round_up(int64_t(one.used), 256))};
  c.rooms = w.take<std::byte>(c.room_bytes * size_t(workers));
  return c;
}

template <class Score>
void run_tasks(const Plan& plan, const Args& a, const Blas& blas, const Carved& carved, const Split& split) {
  const Problem& p = plan.problem;
  const uint32_t features = plan.device.features;
  const DType grad = p.pass == Pass::backward ? p.dtype.grad : p.dtype.q;
  std::atomic<int64_t> next{0};
  auto work = [&](int worker) {
    const BlasOneThread one_thread(blas);
    Workspace w{carved.rooms + size_t(worker) * carved.room_bytes};
    const Worker me{p, a, blas, *best_kernels(p.dtype.q, features), *best_kernels(p.dtype.out, features),
                    *best_kernels(grad, features), carve_buffers(w, p),
                    a.given(Role::d_sinks) && p.has(Option::sink) ? carved.d_sink : nullptr};
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < split.tasks;) {
      if (p.pass == Pass::forward)
        me.template forward<Score>(int(task / p.heads_q), int(task % p.heads_q));
      else if (split.whole_head)
        for (int b = 0; b < p.batch; ++b) me.template backward<Score>(b, int(task));
      else
        me.template backward<Score>(int(task / p.heads_kv), int(task % p.heads_kv));
    }
  };
  parallel(split.workers, work);
}

Status supports(const Problem& p, const Device& d) {
  const auto no = [](const auto&... why) { return Status::unsupported("cpu_standard: ", why...); };
  if (d.kind != DeviceKind::cpu) return no("requires a CPU, but the device is ", d.name);
  if (!d.has(Feature::blas)) return no("needs a BLAS library that can be opened at run time");
  const DType q = p.dtype.q;
  if (!is_f32_or_half(q)) return no("dtype ", name(q), " is not one of f32, f16, bf16");
  if (p.dtype.kv != q) return no("dtype ", name(p.dtype.kv), " of k and v is not that of q, ", name(q));
  if (p.dtype.out != q && p.dtype.out != DType::f32)
    return no("dtype ", name(p.dtype.out), " of out is neither f32 nor that of q, ", name(q));
  if (p.pass == Pass::backward && p.dtype.grad != q && p.dtype.grad != DType::f32)
    return no("dtype ", name(p.dtype.grad), " of gradients is neither f32 nor that of q, ", name(q));
  if (p.has(Option::descale)) return no("does not support the option ", name(Option::descale));
  if (const auto w = word(p.variant); !w.empty()) return no("does not implement the variant ", w);
  if (p.reproducible == Reproducible::batch) return no("a BLAS does not promise repro=batch; repro=run is kept");
  if (double(p.len_q) * double(p.len_k) * std::min<double>(d.units, double(p.batch) * p.heads_q) > kMostScores)
    return no("q", p.len_q, " x k", p.len_k, " scores for each of ", d.units, " threads are over 2^44");
  // Last, because opening a BLAS starts threads: only for a problem that would run here, not for one that is described.
  std::string missed;
  if (d.index >= 0 && !blas(&missed)) return no("needs a BLAS library: ", missed);
  return Status::good();
}

Status shape(Plan& plan, const Planner&) {
  Workspace counting;
  carve_rotated(counting, plan.problem);
  carve(counting, plan.problem, workers_of(plan));
  plan.workspace_bytes = counting.used;
  return Status::good();
}

Status attend(const Plan& plan, const Args& a, Workspace workspace, Stream) {
  const Problem& p = plan.problem;
  std::string missed;
  const Blas* library = blas(&missed);
  if (!library) return Status::unsupported("cpu_standard: ", missed);
  const Carved carved = carve(workspace, p, workers_of(plan));
  const Split split(plan, a);
  const bool accumulate = p.has(Option::accumulate);
  for (const Role role : {Role::dk, Role::dv, Role::d_bias})
    if (!accumulate) clear(a[role]);
  const bool d_sinks = a.given(Role::d_sinks) && p.has(Option::sink);
  if (d_sinks) std::fill_n(carved.d_sink, int64_t(p.batch) * p.heads_q, 0.0);
  needs_general(p) ? run_tasks<General>(plan, a, *library, carved, split)
                   : run_tasks<Plain>(plan, a, *library, carved, split);
  if (d_sinks)
    for (int h = 0; h < p.heads_q; ++h) {
      double sum = 0;
      for (int b = 0; b < p.batch; ++b) sum += carved.d_sink[int64_t(b) * p.heads_q + h];
      float* to = a.row<float>(Role::d_sinks, 0, 0, h);
      *to = float(sum + (accumulate ? double(*to) : 0));
    }
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace workspace, Stream stream) {
  return cpu::append_then(attend, plan, a, workspace, stream);
}

}  // namespace

extern const Backend cpu_standard;
const Backend cpu_standard{.name = "cpu_standard", .supports = supports, .shape = shape, .run = run};

}  // namespace attune
