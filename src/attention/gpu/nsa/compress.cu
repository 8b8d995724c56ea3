// SPDX-License-Identifier: Apache-2.0
// cuda_compress: maps every window of l tokens, d apart, to one token: by their mean, by a filter per channel, or by an
// MLP (gpu/nsa/compress_mlp.cu). Mean and filter are bound by memory: a thread has 16 bytes of one row and walks along
// the tokens. Windows overlap, so a backward gathers from them and needs no atomics. The gradient of the filter is
// summed in two stages, in a fixed order.
#include <algorithm>

#include "attention/gpu/nsa/compress.h"
#include "attention/gpu/refusal.h"
#include "core/dtypes.h"
#include "machine/cuda/blas.h"

namespace attune {
namespace compress {
namespace {

constexpr int kMostRowSplits = 256, kMinSplitRows = 64;

// In the kernels below, T is the dtype of raw tokens and gradients, or void if they differ or are rare.

// Reads tap t of the filter: 1 / l, or weights, which heads may share.
template <int Width>
__device__ void read_tap(const Params& x, int t, int h, int column, float (&to)[Width]) {
  if (x.nsa.phi == Phi::mean) {
#pragma unroll
    for (int e = 0; e < Width; ++e) to[e] = 1.f / float(x.nsa.l);
    return;
  }
  const float* from = view<const float>(x.weights[0]).row(0, t, h) + column;  // a head extent of 1 has stride 0
#pragma unroll
  for (int e = 0; e < Width; ++e) to[e] = from[e];
}

template <class T, int Width>
__global__ void __launch_bounds__(kThreads) forward_kernel(const __grid_constant__ Params x) {
  for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < x.all; n += int64_t(gridDim.x) * kThreads) {
    const Spot at = spot_of<Width>(x, n);
    const CompressSequence seq = sequence_of(x, at.b);
    if (at.i >= seq.count) continue;
    const char* from = vector_at(x.raw, seq.batch, seq.first + at.i * x.nsa.d, at.h, at.column);
    const int64_t step = x.raw.stride.seq * size_of(x.raw.dtype);
    float sum[Width] = {};
#pragma unroll 8
    for (int t = 0; t < x.nsa.l; ++t) {
      float value[Width], tap[Width];
      cuda::load_vector<T>(from + t * step, x.raw.dtype, value);
      read_tap(x, t, at.h, at.column, tap);
#pragma unroll
      for (int e = 0; e < Width; ++e) sum[e] += value[e] * tap[e];
    }
    cuda::write(sum, x.out.dtype, vector_at(x.out, seq.batch, seq.out_first + at.i, at.h, at.column));
  }
}

// Gathers the gradient of a raw token from the windows that contain it.
template <class T, int Width>
__global__ void __launch_bounds__(kThreads) backward_kernel(const __grid_constant__ Params x) {
  for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < x.all; n += int64_t(gridDim.x) * kThreads) {
    const Spot at = spot_of<Width>(x, n);
    const CompressSequence seq = sequence_of(x, at.b);
    if (at.i >= seq.tokens) continue;
    float sum[Width] = {};
    const int last = min(at.i / x.nsa.d, seq.count - 1);
    for (int i = max(0, (at.i - x.nsa.l + x.nsa.d) / x.nsa.d); i <= last; ++i) {
      float value[Width], tap[Width];
      cuda::load_vector<T>(vector_at(x.out, seq.batch, seq.out_first + i, at.h, at.column), x.out.dtype, value);
      read_tap(x, at.i - i * x.nsa.d, at.h, at.column, tap);
#pragma unroll
      for (int e = 0; e < Width; ++e) sum[e] += value[e] * tap[e];
    }
    cuda::write(sum, x.d_raw.dtype, vector_at(x.d_raw, seq.batch, seq.first + at.i, at.h, at.column));
  }
}

// First stage: a thread has a 16-byte chunk of one tap of one head, and the rows of one split.
template <class T, int Width>
__global__ void __launch_bounds__(kThreads) taps_kernel(const __grid_constant__ Params x) {
  const int dim = x.problem.dim_qk, heads = x.problem.heads_kv;
  for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < x.all; n += int64_t(gridDim.x) * kThreads) {
    const int column = int(n % x.vectors.by) * Width, t = int(n / x.vectors.by % x.nsa.l);
    const int h = int(n / x.vectors.by / x.nsa.l % heads), split = int(n / x.vectors.by / x.nsa.l / heads);
    const int64_t all = int64_t(x.problem.batch) * x.rows.by, first = int64_t(split) * x.split_rows;
    const int64_t last = first + x.split_rows < all ? first + x.split_rows : all;
    float sum[Width] = {};
    CompressSequence seq;
    int of = -1;
    for (int64_t row = first; row < last; ++row) {
      const int b = int(x.rows.divide(uint32_t(row))), i = int(x.rows.rest(uint32_t(row)));
      if (b != of) seq = sequence_of(x, b), of = b;
      if (i >= seq.count) continue;
      float gradient[Width], value[Width];
      cuda::load_vector<T>(vector_at(x.out, seq.batch, seq.out_first + i, h, column), x.out.dtype, gradient);
      cuda::load_vector<T>(vector_at(x.raw, seq.batch, seq.first + i * x.nsa.d + t, h, column), x.raw.dtype, value);
#pragma unroll
      for (int e = 0; e < Width; ++e) sum[e] += gradient[e] * value[e];
    }
    float* to = x.partial + ((int64_t(split) * heads + h) * x.nsa.l + t) * dim + column;
#pragma unroll
    for (int e = 0; e < Width; ++e) to[e] = sum[e];
  }
}
// Second stage: sums over splits, and over heads if they share the filter.
__global__ void __launch_bounds__(kThreads) taps_sum_kernel(const __grid_constant__ Params x) {
  const int dim = x.problem.dim_qk, heads = x.problem.heads_kv, shared = x.gradients[0].extent.head == 1 ? heads : 1;
  for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < x.all; n += int64_t(gridDim.x) * kThreads) {
    const int c = int(n % dim), t = int(n / dim % x.nsa.l), h = int(n / dim / x.nsa.l);
    float sum = 0.f;
    for (int split = 0; split < x.row_splits; ++split)
      for (int other = 0; other < shared; ++other)
        sum += x.partial[((int64_t(split) * heads + h * shared + other) * x.nsa.l + t) * dim + c];
    view<float>(x.gradients[0]).row(0, t, h)[c] = sum;
  }
}

Status supports(const Problem& p, const Device& d) {
  const int64_t rows = int64_t(p.batch) * p.len_q * p.heads_kv;
  cuda::Refusal r(kWho, p, d);
  r.variant("compress").f32_or_half(p.dtype.q).f32_or_half(p.dtype.out);
  if (p.pass == Pass::backward) r.f32_or_half(p.dtype.grad);
  r.require(rows <= INT32_MAX, rows, " rows are over 2^31 - 1");
  if (Status s = r.status(); !s.ok()) return s;
  return nsa_of(p).phi == Phi::mlp ? mlp_supports(p) : Status::good();
}

Params carve(Workspace& ws, const Problem& p, std::byte*& scratch) {
  Params x{};
  x.nsa = nsa_of(p), x.problem = p;
  if (x.nsa.phi == Phi::mlp) mlp_carve(ws, p, x, scratch);
  if (x.nsa.phi != Phi::conv || p.pass != Pass::backward) return x;
  const int64_t rows = int64_t(p.batch) * p.len_k;
  x.split_rows = int32_t(std::max<int64_t>(kMinSplitRows, ceil_div(rows, kMostRowSplits)));
  x.row_splits = int32_t(std::max<int64_t>(1, ceil_div(rows, x.split_rows)));
  x.partial = ws.take<float>(size_t(x.row_splits) * size_t(p.heads_kv) * size_t(x.nsa.l) * size_t(p.dim_qk));
  return x;
}

Status shape(Plan& plan, const Planner&) {
  const bool products = plan.problem.pass == Pass::backward && nsa_of(plan.problem).phi == Phi::mlp;
  if (products && plan.device.index >= 0)  // a GPU that is present, not only planned for
    if (Status s = cuda::blas_found(); !s.ok()) return s.after(kWho, ": ");
  Workspace count;
  std::byte* scratch = nullptr;
  carve(count, plan.problem, scratch);
  plan.workspace_bytes = count.used;
  return Status::good();
}

template <class... T>
bool all_aligned(const T&... t) { return ((!t.data || cuda::allows_vectors(t, kVec)) && ...); }

Status run_filter(const cuda::Launcher& launcher, Params& x) {
  const Problem& p = x.problem;
  const bool backward = p.pass == Pass::backward, aligned16 = all_aligned(x.raw, x.out, x.d_raw);
  const int64_t vectors = p.dim_qk / (aligned16 ? kVec : 1);
  constexpr Function kForward[] = {forward_kernel<void, 1>, forward_kernel<void, kVec>, forward_kernel<F16, kVec>,
                                   forward_kernel<Bf16, kVec>};
  constexpr Function kBackward[] = {backward_kernel<void, 1>, backward_kernel<void, kVec>,
                                    backward_kernel<F16, kVec>, backward_kernel<Bf16, kVec>};
  constexpr Function kTaps[] = {taps_kernel<void, 1>, taps_kernel<void, kVec>, taps_kernel<F16, kVec>,
                                taps_kernel<Bf16, kVec>};
  const bool alike = !backward || x.out.dtype == x.raw.dtype;
  const int typed = !alike ? 0 : x.raw.dtype == DType::f16 ? 1 : x.raw.dtype == DType::bf16 ? 2 : 0;
  const int which = aligned16 ? 1 + typed : 0;
  const auto of_rows = [&](int rows) {
    x.rows = Divisor(uint32_t(rows)), x.all = int64_t(p.batch) * rows * p.heads_kv * vectors;
  };
  x.vectors = Divisor(uint32_t(vectors)), x.heads = Divisor(uint32_t(p.heads_kv));
  if (!backward) {
    of_rows(p.len_k);
    return launch(launcher, kForward[which], x, ceil_div(x.all, kThreads));
  }
  of_rows(p.len_q);
  if (x.d_raw.data)
    if (Status s = launch(launcher, kBackward[which], x, ceil_div(x.all, kThreads)); !s.ok()) return s;
  if (x.nsa.phi != Phi::conv || !x.gradients[0].data) return Status::good();
  x.rows = Divisor(uint32_t(p.len_k)), x.all = int64_t(x.row_splits) * p.heads_kv * x.nsa.l * vectors;
  if (Status s = launch(launcher, kTaps[which], x, ceil_div(x.all, kThreads)); !s.ok()) return s;
  x.all = int64_t(x.gradients[0].extent.head) * x.nsa.l * p.dim_qk;
  return launch(launcher, taps_sum_kernel, x, ceil_div(x.all, kThreads));
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Problem& p = plan.problem;
  const bool backward = p.pass == Pass::backward;
  std::byte* scratch = nullptr;
  Params x = carve(ws, p, scratch);
  x.args = dense(a);
  x.raw = a[Role::q], x.out = a[backward ? Role::d_out : Role::out];
  if (backward) x.d_raw = a[Role::dq];
  for (int n = 0; n < 5; ++n) {
    x.weights[n] = a[variant_tensor(n)];
    if (backward) x.gradients[n] = a[d_variant_tensor(n)];
  }
  const cuda::Launcher launcher(kWho, p, x.raw.device_index, stream);
  if (!launcher.status.ok()) return launcher.status;
  return x.nsa.phi == Phi::mlp ? mlp_run(launcher, x, scratch) : run_filter(launcher, x);
}

}  // namespace

Status launch(const cuda::Launcher& launcher, Function f, const Params& x, int64_t blocks) {
  static constinit cuda::SharedMemoryOptIn ready{};
  return launcher({.kernel = cuda::address(f), .ready = &ready, .blocks = std::min(blocks, kMostBlocks),
                   .threads = kThreads},
                  x);
}

}  // namespace compress

extern const Backend cuda_compress{
    .name = compress::kWho, .supports = compress::supports, .shape = compress::shape, .run = compress::run};

}  // namespace attune
