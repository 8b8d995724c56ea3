// SPDX-License-Identifier: Apache-2.0
// cuda_gate: the branches of native sparse attention weighted by their gates, out = sum over branches of g_b out_b, and
// the gradients of both. Bound by memory: every branch is read once. A backward has several lanes per gate, which sum
// over the heads of that gate in a fixed order.
#include <algorithm>

#include "attention/gpu/refusal.h"
#include "core/divisor.h"
#include "core/dtypes.h"
#include "core/variant/nsa.h"
#include "machine/cuda/launcher.h"
#include "machine/cuda/vec16.h"
#include "plan/backend.h"

namespace attune {
namespace {

constexpr std::string_view kWho = "cuda_gate";
constexpr int kThreads = 256, kVec = 8;
constexpr int64_t kMostBlocks = 132 * 64;  // above, threads take several vectors

struct Params {
  Tensor q, gates, out, dq, d_gates;  // out: d_out in a backward
  Nsa nsa;
  Problem problem;
  DenseArgs args;
  bool uniform;             // every sequence fills its rows: no lengths in tensors
  int32_t heads, per_gate;  // heads of out, and heads per gate
  Divisor vectors;          // per row
  Divisor per_token;        // heads, or gates in a backward
  Divisor tokens;           // per sequence, upper bound
  int64_t all;              // vectors of all rows, or gates of all tokens
  int32_t lanes;            // lanes of a warp per gate: 1, 2, ... 32
};

// Position of a token numbered by the problem's bounds, if it exists.
struct Token { int b, s; bool there; };
__device__ Token find_token(const Params& x, uint32_t n) {
  const int b = int(x.tokens.divide(n)), i = int(x.tokens.rest(n));
  if (x.uniform) return {b, i, i < x.q.extent.seq};
  const CompressSequence at = compress_sequence(x.problem, x.args, x.nsa, b, INT32_MAX);
  return {at.batch, at.first + i, i < at.tokens};
}

struct Gates { float g[3]; };
__device__ Gates gates_of(const Params& x, const Token& at, int gate) {
  const float* y = view<const float>(x.gates).row(at.b, at.s, gate);
  Gates made{{y[0], y[1], y[2]}};
  float (&g)[3] = made.g;
  if (x.nsa.gate == GateOf::sigmoid)
    for (float& one : g) one = 1.f / (1.f + expf(-one));
  if (x.nsa.gate == GateOf::softmax) {
    const float top = fmaxf(g[0], fmaxf(g[1], g[2]));
    for (float& one : g) one = expf(one - top);
    const float sum = g[0] + g[1] + g[2];
    for (float& one : g) one /= sum;
  }
  return made;
}

__device__ char* vector_at(const Tensor& t, const Token& at, int head, int column) {
  return row_address(t, at.b, at.s, head) + int64_t(column) * size_of(t.dtype);
}

// T: dtype of all branches (and of d_out in a backward), or void if they differ or are rare.
template <class T, int Width>
__global__ void __launch_bounds__(kThreads) gate_kernel(const __grid_constant__ Params x) {
  for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < x.all; n += int64_t(gridDim.x) * kThreads) {
    const uint32_t row = x.all <= INT32_MAX ? x.vectors.divide(uint32_t(n)) : uint32_t(n / x.vectors.by);
    const int column = int(n - int64_t(row) * x.vectors.by) * Width, h = int(x.per_token.rest(row));
    const Token at = find_token(x, x.per_token.divide(row));
    if (!at.there) continue;
    const Gates gates = gates_of(x, at, h / x.per_gate);
    float branch[3][Width], sum[Width];
#pragma unroll
    for (int b = 0; b < 3; ++b)
      cuda::load_vector<T>(vector_at(x.q, at, b * x.heads + h, column), x.q.dtype, branch[b]);
#pragma unroll
    for (int e = 0; e < Width; ++e)
      sum[e] = gates.g[0] * branch[0][e] + gates.g[1] * branch[1][e] + gates.g[2] * branch[2][e];
    cuda::write(sum, x.out.dtype, vector_at(x.out, at, h, column));
  }
}

// A gate has x.lanes lanes of a warp.
template <class T, int Width>
__global__ void __launch_bounds__(kThreads) gate_backward_kernel(const __grid_constant__ Params x) {
  const int lane = threadIdx.x % uint32_t(x.lanes), all = x.per_gate * int(x.vectors.by), each = kThreads / x.lanes;
  for (int64_t first = int64_t(blockIdx.x) * each; first < x.all; first += int64_t(gridDim.x) * each) {
    const int64_t n = first + threadIdx.x / uint32_t(x.lanes);
    Token at{};
    int gate = 0;
    if (n < x.all) gate = int(x.per_token.rest(uint32_t(n))), at = find_token(x, x.per_token.divide(uint32_t(n)));
    Gates gates{};
    if (at.there) gates = gates_of(x, at, gate);
    float d_gate[3] = {};
    for (int i = at.there ? lane : all; i < all; i += x.lanes) {
      const int h = gate * x.per_gate + int(x.vectors.divide(uint32_t(i)));
      const int column = int(x.vectors.rest(uint32_t(i))) * Width;
      float d_out[Width], branch[3][Width];
      cuda::load_vector<T>(vector_at(x.out, at, h, column), x.out.dtype, d_out);
#pragma unroll
      for (int b = 0; b < 3; ++b)
        cuda::load_vector<T>(vector_at(x.q, at, b * x.heads + h, column), x.q.dtype, branch[b]);
#pragma unroll
      for (int b = 0; b < 3; ++b) {
#pragma unroll
        for (int e = 0; e < Width; ++e) d_gate[b] += d_out[e] * branch[b][e], branch[b][e] = gates.g[b] * d_out[e];
        if (x.dq.data) cuda::write(branch[b], x.dq.dtype, vector_at(x.dq, at, b * x.heads + h, column));
      }
    }
    for (float& one : d_gate)
      for (int step = x.lanes / 2; step; step /= 2) one += __shfl_xor_sync(~0u, one, step);
    if (!at.there || !x.d_gates.data || lane >= 1) continue;
    const float mean = gates.g[0] * d_gate[0] + gates.g[1] * d_gate[1] + gates.g[2] * d_gate[2];
    float* to = view<float>(x.d_gates).row(at.b, at.s, gate);
#pragma unroll
    for (int b = 0; b < 3; ++b) {
      const float g = gates.g[b], d = d_gate[b];
      to[b] = x.nsa.gate == GateOf::none ? d : x.nsa.gate == GateOf::sigmoid ? d * g * (1.f - g) : g * (d - mean);
    }
  }
}

Status supports(const Problem& p, const Device& d) {
  const int64_t rows = int64_t(p.batch) * p.len_q * p.heads_kv;
  cuda::Refusal r(kWho, p, d);
  r.variant("gate").f32_or_half(p.dtype.q).f32_or_half(p.dtype.out);
  if (p.pass == Pass::backward) r.f32_or_half(p.dtype.grad);
  r.require(rows <= INT32_MAX, rows, " rows are over 2^31 - 1");
  return r.status();
}

Status shape(Plan& plan, const Planner&) {
  plan.workspace_bytes = 0;
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace, Stream stream) {
  const Problem& p = plan.problem;
  const bool backward = p.pass == Pass::backward;
  Params x{};
  x.q = a[Role::q], x.gates = a[variant_tensor(0)], x.out = a[backward ? Role::d_out : Role::out];
  if (backward) x.dq = a[Role::dq], x.d_gates = a[d_variant_tensor(0)];
  x.nsa = nsa_of(p), x.problem = p, x.args = dense(a);
  x.uniform = !has_sequence_tensors(a);
  x.heads = p.heads_kv, x.per_gate = p.heads_kv / std::max(1, x.gates.extent.head);
  const bool aligned16 = cuda::allows_vectors(x.q, kVec) && cuda::allows_vectors(x.out, kVec) &&
                         (!x.dq.data || cuda::allows_vectors(x.dq, kVec));
  const int64_t tokens = int64_t(p.batch) * p.len_q, vectors = p.dim_v / (aligned16 ? kVec : 1);
  x.vectors = Divisor(uint32_t(vectors)), x.tokens = Divisor(uint32_t(std::max(1, p.len_q)));
  x.per_token = Divisor(uint32_t(backward ? x.gates.extent.head : x.heads));
  x.lanes = 1;
  while (x.lanes < 32 && x.lanes < x.per_gate * vectors) x.lanes *= 2;
  x.all = tokens * (backward ? x.gates.extent.head : x.heads * vectors);
  if (!x.all) return Status::good();
  const cuda::Launcher launcher(kWho, p, x.q.device_index, stream);
  if (!launcher.status.ok()) return launcher.status;
  static constinit cuda::SharedMemoryOptIn ready{};
  using Function = void (*)(Params);
  constexpr Function kFunctions[2][4] = {
      {gate_kernel<void, 1>, gate_kernel<void, kVec>, gate_kernel<F16, kVec>, gate_kernel<Bf16, kVec>},
      {gate_backward_kernel<void, 1>, gate_backward_kernel<void, kVec>, gate_backward_kernel<F16, kVec>,
       gate_backward_kernel<Bf16, kVec>}};
  const bool alike = !backward || x.out.dtype == x.q.dtype;
  const int typed = !alike ? 0 : x.q.dtype == DType::f16 ? 1 : x.q.dtype == DType::bf16 ? 2 : 0;
  const Function function = kFunctions[backward][aligned16 ? 1 + typed : 0];
  const int each = backward ? kThreads / x.lanes : kThreads;
  return launcher({.kernel = cuda::address(function), .ready = &ready,
                   .blocks = std::min(kMostBlocks, ceil_div(x.all, each)), .threads = kThreads},
                  x);
}

}  // namespace

extern const Backend cuda_gate{.name = kWho, .supports = supports, .shape = shape, .run = run};

}  // namespace attune
