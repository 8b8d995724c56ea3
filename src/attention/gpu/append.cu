// SPDX-License-Identifier: Apache-2.0
// The kernel of gpu/append.h: one CTA per token, with all its heads. The token is a new key with its value, or a query
// to rotate. It copies 16-byte chunks where every row is aligned and pairs do not straddle chunks, otherwise single
// elements. One warp per row took 475 us instead of 138 for 16384 queries of 32 heads of 128 (H200), because each warp
// looked up its sequence and angles.
#include "attention/gpu/append.h"
#include "machine/cuda/launcher.h"
#include "machine/cuda/vec16.h"

namespace attune::cuda {
namespace {

constexpr int kThreads = 128;

struct Params {
  Problem problem;
  DenseArgs args;
  Tensor rotated;                 // replaces q
  uint32_t added, queries;        // per sequence; queries is 0 if they are not rotated
  uint32_t new_tokens, q_tokens;  // CTAs, over all sequences
};

// The heads of a token.
struct Heads {
  char* first;
  int64_t step;  // bytes from head to head
  int count, dim;
};

struct Angles {
  int pairs = 0;        // 0: no rotation
  bool halves = false;  // the pairs of rotary_half: (d, d + pairs)
  const float *cos = nullptr, *sin = nullptr;
};

// Copies the heads of a token, with their first 2 * pairs dims rotated.
template <class T, int Width>
__device__ void copy_token(const Heads& from, const Heads& to, const Angles& angles) {
  using P = Vector<T, Width>;
  const int vectors = from.dim / Width, pairs = angles.pairs;
  for (int i = int(threadIdx.x); i < from.count * vectors; i += kThreads) {
    const int h = i / vectors, d = (i - h * vectors) * Width;
    const T* x = reinterpret_cast<const T*>(from.first + h * from.step);
    const P mine = *reinterpret_cast<const P*>(x + d);
    P made = mine;
    if (d < 2 * pairs) {
      // The partner of d is its neighbour, in the same vector unless Width is 1; or it lies one half of the pairs' dims
      // further on, or back.
      const bool halves = angles.halves, high = halves && d >= pairs;
      const int other = halves ? (high ? d - pairs : d + pairs) : Width == 1 ? d ^ 1 : d;
      const P theirs = *reinterpret_cast<const P*>(x + other);
#pragma unroll
      for (int n = 0; n < Width; ++n) {
        const bool second = halves ? high : (d + n) % 2;
        const int pair = halves ? (high ? d - pairs : d) + n : (d + n) / 2;
        const float a = float(mine.x[n]), in_step = float(theirs.x[n]), beside = float(theirs.x[(n ^ 1) % Width]);
        const float b = halves || Width == 1 ? in_step : beside, c = angles.cos[pair], s = angles.sin[pair];
        made.x[n] = T(second ? b * s + a * c : a * c - b * s);
      }
    }
    *reinterpret_cast<P*>(to.first + h * to.step + d * int(sizeof(T))) = made;
  }
}

__device__ Heads heads_of(const Tensor& t, char* first) {
  return {first, t.stride.head * size_of(t.dtype), t.extent.head, t.extent.dim};
}

template <class T, int Width>
__global__ void __launch_bounds__(kThreads) append_kernel(const __grid_constant__ Params x) {
  const Problem& p = x.problem;
  const DenseArgs& a = x.args;
  const bool is_new = blockIdx.x < x.new_tokens;
  const uint32_t token = is_new ? blockIdx.x : blockIdx.x - x.new_tokens, each = is_new ? x.added : x.queries;
  const int b = int(token / each), n = int(token % each);
  Sequence s;
  Angles angles;
  if (p.rotates()) {
    s = sequence(p, a, b);
    if (!is_new && n >= s.len_q) return;
    const int64_t position = is_new ? new_key_position(p, a, s, n) : query_position(p, s, n);
    angles.cos = rotary_row(a, Role::rotary_cos, position), angles.sin = rotary_row(a, Role::rotary_sin, position);
    angles.pairs = angles.cos ? a[Role::rotary_cos].extent.dim : 0, angles.halves = p.has(Option::rotary_half);
  }
  if (!is_new) {
    const int64_t row = s.q_first + n;
    copy_token<T, Width>(heads_of(a[Role::q], row_address(a[Role::q], s.q_batch, row, 0)),
                         heads_of(x.rotated, row_address(x.rotated, s.q_batch, row, 0)), angles);
    return;
  }
  char *k = appended_row(p, a, Role::k, b, n, 0), *v = appended_row(p, a, Role::v, b, n, 0);
  if (!k || !v) return;
  copy_token<T, Width>(heads_of(a[Role::k_new], row_address(a[Role::k_new], b, n, 0)), heads_of(a[Role::k], k), angles);
  copy_token<T, Width>(heads_of(a[Role::v_new], row_address(a[Role::v_new], b, n, 0)), heads_of(a[Role::v], v), {});
}

// True if rows can be copied 16 bytes at a time.
bool allows_vectors(const Problem& p, const Args& a) {
  const int vec = 16 / size_of(p.dtype.q);
  for (const Role r : {Role::q, Role::k, Role::v, Role::k_new, Role::v_new}) {
    const Tensor& t = a[r];
    const int64_t steps = t.stride.batch | t.stride.seq | t.stride.head | t.extent.dim;
    if (reinterpret_cast<uintptr_t>(t.data) % 16 || steps % vec) return false;
  }
  const int pairs = p.rotates() ? a[Role::rotary_cos].extent.dim : 0;
  return (p.has(Option::rotary_half) ? pairs : 2 * pairs) % vec == 0;
}

const void* kernel_for(DType q, bool aligned16) {
  switch (q) {
    case DType::f32: return aligned16 ? address(append_kernel<float, 4>) : address(append_kernel<float, 1>);
    case DType::f16: return aligned16 ? address(append_kernel<F16, 8>) : address(append_kernel<F16, 1>);
    default: return aligned16 ? address(append_kernel<Bf16, 8>) : address(append_kernel<Bf16, 1>);
  }
}

}  // namespace

Status append_then(Attend attend, const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Problem& p = plan.problem;
  if (!p.has(Option::append)) return attend(plan, a, ws, stream);
  Args with = a;
  if (p.rotates()) with[Role::q] = rotated_queries(a[Role::q], carve_rotated(ws, p));
  const uint32_t added = uint32_t(a[Role::k_new].extent.seq);
  const uint32_t queries = p.rotates() ? uint32_t(clamp(a[Role::q].extent.seq, 0, p.len_q)) : 0;
  if (int64_t(p.batch) * (int64_t(added) + queries) > INT32_MAX)
    return Status::unsupported(plan.backend->name, ": ", int64_t(p.batch) * (int64_t(added) + queries),
                               " tokens to append or rotate are over 2^31 - 1, in: ", name(p));
  const Params x{.problem = p, .args = dense(a), .rotated = with[Role::q], .added = added, .queries = queries,
                 .new_tokens = uint32_t(p.batch) * added, .q_tokens = uint32_t(p.batch) * queries};
  static constinit SharedMemoryOptIn ready;  // for all of these kernels: none has dynamic shared memory
  const Launcher launcher(plan.backend->name, p, plan.device.index, stream);
  if (!launcher.status.ok()) return launcher.status;
  if (Status s = launcher({.kernel = kernel_for(p.dtype.q, allows_vectors(p, a)), .ready = &ready,
                           .blocks = int64_t(x.new_tokens) + x.q_tokens, .threads = kThreads},
                          x);
      !s.ok())
    return s;
  return attend(plan, with, ws, stream);
}

}  // namespace attune::cuda
