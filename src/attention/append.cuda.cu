// The kernel of append.cuda.h: a warp a row, be it a new key, a new value or a query to be turned. Pieces of 16 bytes
// where every row is aligned and pairs do not straddle pieces, else one element at a time.
#include "attention/append.cuda.h"
#include "machine/cuda/launch.h"

namespace attune::cuda {
namespace {

constexpr int kWarps = 8;

struct Params {
  Problem problem;
  DenseArgs args;
  Tensor rotated;            // takes the place of q
  int64_t new_rows, q_rows;  // heads and all: of k_new, and of queries where they are turned
  int added, queries;        // of a sequence
};

template <class T, int Wide>
struct alignas(sizeof(T) * Wide) Piece {
  T at[Wide];
};

// One row of `dim` elements, its first 2 * pairs turned; a warp.
template <class T, int Wide>
__device__ void copy_row(const char* from, char* to, int dim, int pairs, bool apart, const float* cos,
                         const float* sin) {
  using P = Piece<T, Wide>;
  const T* x = reinterpret_cast<const T*>(from);
  for (int d = int(threadIdx.x % 32) * Wide; d < dim; d += 32 * Wide) {
    const P mine = *reinterpret_cast<const P*>(x + d);
    P made = mine;
    if (d < 2 * pairs) {
      // The partner of d: its neighbour, in this piece unless pieces are single; or one half further on, or back.
      const bool high = apart && d >= pairs;
      const int other = apart ? (high ? d - pairs : d + pairs) : Wide == 1 ? d ^ 1 : d;
      const P theirs = *reinterpret_cast<const P*>(x + other);
#pragma unroll
      for (int n = 0; n < Wide; ++n) {
        const bool second = apart ? high : (d + n) % 2;
        const int pair = apart ? (high ? d - pairs : d) + n : (d + n) / 2;
        const float a = float(mine.at[n]), in_step = float(theirs.at[n]), beside = float(theirs.at[(n ^ 1) % Wide]);
        const float b = apart || Wide == 1 ? in_step : beside;
        const float c = cos[pair], s = sin[pair];
        made.at[n] = T(second ? b * s + a * c : a * c - b * s);
      }
    }
    *reinterpret_cast<P*>(reinterpret_cast<T*>(to) + d) = made;
  }
}

template <class T, int Wide>
__global__ void __launch_bounds__(kWarps * 32) append_kernel(const __grid_constant__ Params x) {
  const Problem& p = x.problem;
  const DenseArgs& a = x.args;
  int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  const bool apart = p.has(Option::rotary_half);
  const int pairs = p.rotates() && a[Role::rotary_cos].extent.seq ? a[Role::rotary_cos].extent.dim : 0;
  const auto copy = [&](const char* from, char* to, int dim, int turned, int64_t position) {
    const float* cos = turned ? rotary_row(a, Role::rotary_cos, position) : nullptr;
    const float* sin = turned ? rotary_row(a, Role::rotary_sin, position) : nullptr;
    copy_row<T, Wide>(from, to, dim, turned, apart, cos, sin);
  };
  if (row < 2 * x.new_rows) {
    const bool key = row < x.new_rows;
    if (!key) row -= x.new_rows;
    const int h = int(row % p.heads_kv);
    const int64_t token = row / p.heads_kv;
    const int n = int(token % x.added), b = int(token / x.added);
    char* to = appended_row(p, a, key ? Role::k : Role::v, b, n, h);
    if (!to) return;
    const char* from = row_address(a[key ? Role::k_new : Role::v_new], b, n, h);
    const int turned = key ? pairs : 0;
    copy(from, to, key ? p.dim_qk : p.dim_v, turned, turned ? new_key_position(p, a, sequence(p, a, b), n) : 0);
    return;
  }
  row -= 2 * x.new_rows;
  if (row >= x.q_rows) return;
  const int h = int(row % p.heads_q);
  const int64_t token = row / p.heads_q;
  const int i = int(token % x.queries), b = int(token / x.queries);
  const Sequence s = sequence(p, a, b);
  if (i >= s.len_q) return;
  copy(row_address(a[Role::q], s.q_batch, s.q_first + i, h), row_address(x.rotated, s.q_batch, s.q_first + i, h),
       p.dim_qk, pairs, query_position(p, s, i));
}

// Whether rows can be taken 16 bytes at a time.
bool in_pieces(const Problem& p, const Args& a) {
  const int wide = 16 / size_of(p.dtype.q);
  for (const Role r : {Role::q, Role::k, Role::v, Role::k_new, Role::v_new}) {
    const Tensor& t = a[r];
    const int64_t steps = t.stride.batch | t.stride.seq | t.stride.head | t.extent.dim;
    if (reinterpret_cast<uintptr_t>(t.data) % 16 || steps % wide) return false;
  }
  const int pairs = p.rotates() ? a[Role::rotary_cos].extent.dim : 0;
  return (p.has(Option::rotary_half) ? pairs : 2 * pairs) % wide == 0;
}

template <class T, int Wide>
Status start(const Plan& plan, const Params& params, Stream stream) {
  static Ready ready;
  const int64_t rows = 2 * params.new_rows + params.q_rows, blocks = ceil_div(rows, kWarps);
  if (!blocks) return Status::good();
  if (blocks > INT32_MAX)
    return Status::no(plan.backend->name, ": ", rows, " rows to append or rotate are over 2^34, in: ",
                      name(plan.problem));
  return launch({.who = plan.backend->name, .kernel = reinterpret_cast<const void*>(append_kernel<T, Wide>),
                 .ready = &ready, .blocks = blocks, .threads = kWarps * 32, .device = plan.device.index,
                 .stream = stream},
                plan.problem, &params);
}

Status append(const Plan& plan, const Params& x, bool wide, Stream stream) {
  switch (plan.problem.dtype.q) {
    case DType::f32: return wide ? start<float, 4>(plan, x, stream) : start<float, 1>(plan, x, stream);
    case DType::f16: return wide ? start<F16, 8>(plan, x, stream) : start<F16, 1>(plan, x, stream);
    default: return wide ? start<Bf16, 8>(plan, x, stream) : start<Bf16, 1>(plan, x, stream);
  }
}

}  // namespace

Status append_then(Attend attend, const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Problem& p = plan.problem;
  if (!p.has(Option::append)) return attend(plan, a, ws, stream);
  Args with = a;
  if (p.rotates()) with[Role::q] = rotated_queries(a[Role::q], carve_rotated(ws, p));
  Params x{.problem = p, .args = dense(a), .rotated = with[Role::q], .new_rows = 0, .q_rows = 0,
           .added = a[Role::k_new].extent.seq, .queries = p.rotates() ? clamp(a[Role::q].extent.seq, 0, p.len_q) : 0};
  x.new_rows = int64_t(p.batch) * x.added * p.heads_kv, x.q_rows = int64_t(p.batch) * x.queries * p.heads_q;
  const Use use(plan.device.index);
  if (!use.status.ok()) return Status::no(plan.backend->name, ": ", use.status.message, ", in: ", name(p));
  if (Status s = append(plan, x, in_pieces(p, a), stream); !s.ok()) return s;
  return attend(plan, with, ws, stream);
}

}  // namespace attune::cuda
