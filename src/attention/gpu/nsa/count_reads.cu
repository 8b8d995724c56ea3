// SPDX-License-Identifier: Apache-2.0
// cuda_reads: counts the tokens that each branch of native sparse attention reads, and the distinct raw tokens that the
// selected and window branches read together, summed over queries and groups. Integer sums do not depend on their
// order.
#include <algorithm>

#include "attention/gpu/refusal.h"
#include "core/divisor.h"
#include "core/variant/nsa.h"
#include "machine/cuda/launcher.h"
#include "plan/backend.h"

namespace attune {
namespace {

constexpr std::string_view kWho = "cuda_reads";
constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 8;

struct Params {
  Nsa nsa;
  Problem problem;
  DenseArgs args;
  View<const int32_t> blocks;
  unsigned long long* sums;  // compressed, selected, window, distinct
  Divisor groups, tokens;
  int64_t all;
};

struct Reads { int64_t count[4]; };

__device__ Reads reads_of(const Params& x, const SelectSequence& seq, int i, int group) {
  const Nsa& nsa = x.nsa;
  const int64_t t = seq.position + i;
  if (t < 0) return {};
  const int64_t tokens = seq.position + seq.len_q, from = t - nsa.w + 1 > 0 ? t - nsa.w + 1 : 0;
  Reads r{{nsa.visible(t), 0, t - from + 1, 0}};
  const int32_t* list = x.blocks.row(seq.batch, seq.first + i, group);
  int64_t shared = 0;
  int before = -1;
  for (int n = 0; n < nsa.n; ++n) {
    const Rows keys = block_keys(nsa, list[n], before, t, int(tokens));
    if (list[n] > before) before = list[n];
    r.count[1] += keys.last - keys.first;
    const int64_t near = keys.first > from ? keys.first : from;
    if (near < keys.last) shared += keys.last - near;
  }
  r.count[3] = r.count[1] + r.count[2] - shared;
  return r;
}

__global__ void __launch_bounds__(kThreads) reads_kernel(const __grid_constant__ Params x) {
  Reads sum{};
  for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < x.all; n += int64_t(gridDim.x) * kThreads) {
    const uint32_t token = x.groups.divide(uint32_t(n));
    const int b = int(x.tokens.divide(token)), i = int(x.tokens.rest(token));
    const SelectSequence seq = select_sequence(x.problem, x.args, x.nsa, b);
    if (i >= seq.len_q) continue;
    const Reads one = reads_of(x, seq, i, int(x.groups.rest(uint32_t(n))));
    for (int c = 0; c < 4; ++c) sum.count[c] += one.count[c];
  }
  for (int c = 0; c < 4; ++c) {
    for (int step = 16; step; step /= 2) sum.count[c] += __shfl_xor_sync(~0u, sum.count[c], step);
    if (threadIdx.x % 32 == 0) atomicAdd(x.sums + c, static_cast<unsigned long long>(sum.count[c]));
  }
}

Status supports(const Problem& p, const Device& d) {
  const int64_t lists = int64_t(p.batch) * p.len_q * p.heads_kv;
  cuda::Refusal r(kWho, p, d);
  return r.variant("reads").require(lists <= INT32_MAX, lists, " lists are over 2^31 - 1").status();
}

Status shape(Plan& plan, const Planner&) {
  plan.workspace_bytes = 0;
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace, Stream stream) {
  const Problem& p = plan.problem;
  const Tensor& to = a[variant_tensor(1)];
  Params x{.nsa = nsa_of(p),
           .problem = p,
           .args = dense(a),
           .blocks = view<const int32_t>(a[variant_tensor(0)]),
           .sums = static_cast<unsigned long long*>(to.data),
           .groups = Divisor(uint32_t(p.heads_kv)),
           .tokens = Divisor(uint32_t(std::max(1, p.len_q))),
           .all = int64_t(p.batch) * p.len_q * p.heads_kv};
  const cuda::Launcher launcher(kWho, p, to.device_index, stream);
  if (!launcher.status.ok()) return launcher.status;
  if (Status s = launcher.zero(to.data, 4 * sizeof(int64_t)); !s.ok()) return s;
  static constinit cuda::SharedMemoryOptIn ready{};
  return launcher({.kernel = cuda::address(reads_kernel), .ready = &ready,
                   .blocks = std::min(kMostBlocks, ceil_div(x.all, kThreads)), .threads = kThreads},
                  x);
}

}  // namespace

extern const Backend cuda_reads{.name = kWho, .supports = supports, .shape = shape, .run = run};

}  // namespace attune
