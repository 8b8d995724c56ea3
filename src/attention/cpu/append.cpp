// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/append.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "machine/cpu/kernels.h"
#include "machine/cpu/threads.h"

namespace attune::cpu {
namespace {

constexpr int64_t kElementsOfWorker = 1 << 16;  // below, waking a thread costs more than it saves
constexpr int kPairs = 64;                      // rotated at once

// Rotates one row of the new keys or of the queries.
struct Rotation {
  const Problem& p;
  const CpuKernels& m;  // converts the dtype
  const float *cos, *sin;
  int pairs;

  Rotation(const Problem& problem, const Args& a, const CpuKernels& kernels, int64_t position)
      : p(problem), m(kernels), cos(rotary_row(a, Role::rotary_cos, position)),
        sin(rotary_row(a, Role::rotary_sin, position)), pairs(cos ? a[Role::rotary_cos].extent.dim : 0) {}

  void rotate(const char* from, char* to) const {
    const int size = size_of(m.dtype);
    for (int first = 0; first < pairs; first += kPairs) {
      const int n = std::min(kPairs, pairs - first);
      p.has(Option::rotary_half) ? rotate_halves(from, to, first, n, size) : rotate_pairs(from, to, first, n, size);
    }
    const int64_t rotated = int64_t(2) * pairs;
    std::memcpy(to + rotated * size, from + rotated * size, size_t(p.dim_qk - rotated) * size_t(size));
  }

 private:
  void rotate_pairs(const char* from, char* to, int first, int n, int size) const {  // (2i, 2i + 1)
    float x[2 * kPairs];
    m.widen(from + int64_t(2) * first * size, 2 * n, x);
    for (int i = 0; i < n; ++i) {
      const float c = cos[first + i], s = sin[first + i], even = x[2 * i], odd = x[2 * i + 1];
      x[2 * i] = even * c - odd * s, x[2 * i + 1] = even * s + odd * c;
    }
    m.narrow(x, 2 * n, to + int64_t(2) * first * size);
  }
  void rotate_halves(const char* from, char* to, int first, int n, int size) const {  // (i, i + pairs)
    float low[kPairs], high[kPairs];
    m.widen(from + int64_t(first) * size, n, low);
    m.widen(from + int64_t(pairs + first) * size, n, high);
    for (int i = 0; i < n; ++i) {
      const float c = cos[first + i], s = sin[first + i], x = low[i], y = high[i];
      low[i] = x * c - y * s, high[i] = x * s + y * c;
    }
    m.narrow(low, n, to + int64_t(first) * size);
    m.narrow(high, n, to + int64_t(pairs + first) * size);
  }
};

void append_row(const Problem& p, const Args& a, const CpuKernels& m, const Sequence& s, int b, int n) {
  const Rotation rotation(p, a, m, p.rotates() ? new_key_position(p, a, s, n) : 0);
  for (int h = 0; h < p.heads_kv; ++h)
    for (const Role r : {Role::k, Role::v}) {
      const bool key = r == Role::k;
      const char* from = row_address(a[key ? Role::k_new : Role::v_new], b, n, h);
      char* to = appended_row(p, a, r, b, n, h);
      if (!to) continue;
      if (key && p.rotates()) rotation.rotate(from, to);
      else std::memcpy(to, from, size_t(key ? p.dim_qk : p.dim_v) * size_t(size_of(p.dtype.kv)));
    }
}

void rotate_query(const Problem& p, const Args& a, const CpuKernels& m, const Sequence& s, const Tensor& to, int i) {
  const Rotation rotation(p, a, m, query_position(p, s, i));
  for (int h = 0; h < p.heads_q; ++h)
    rotation.rotate(row_address(a[Role::q], s.q_batch, s.q_first + i, h),
                  row_address(to, s.q_batch, s.q_first + i, h));
}

}  // namespace

Status append_then(Attend attend, const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Problem& p = plan.problem;
  if (!p.has(Option::append)) return attend(plan, a, ws, stream);
  const CpuKernels& m = *best_kernels(p.dtype.q, plan.device.features);
  Args with = a;
  if (p.rotates()) with[Role::q] = rotated_queries(a[Role::q], carve_rotated(ws, p));

  const int added = a[Role::k_new].extent.seq, queries = p.rotates() ? std::min(p.len_q, a[Role::q].extent.seq) : 0;
  const int64_t of_sequence = int64_t(added) + queries, tasks = of_sequence * p.batch;
  std::atomic<int64_t> next{0};
  auto work = [&](int) {
    for (int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      const int b = int(n / of_sequence), row = int(n % of_sequence);
      const Sequence s = sequence(p, a, b);
      if (row < added) append_row(p, a, m, s, b, row);
      else if (row - added < s.len_q) rotate_query(p, a, m, s, with[Role::q], row - added);
    }
  };
  const int64_t elements = tasks * p.heads_q * p.dim_qk;
  parallel(clamp(elements / kElementsOfWorker, 1, plan.device.units), work);
  return attend(plan, with, ws, stream);
}

}  // namespace attune::cpu
