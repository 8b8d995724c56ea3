// SPDX-License-Identifier: Apache-2.0
// A step is a kernel, a task is a CTA. A radix select over the scores, which stay in shared memory, finds the best
// blocks of a row. Only the kept entries are written out.
#include "machine/cuda/launch.h"
#include "variants/adaptive/gpu.h"

namespace attune::cuda {
namespace {

constexpr int kThreads = 128, kWarp = 32, kBins = 256;

template <class Step>
__global__ void __launch_bounds__(kThreads, 8) step_kernel(const __grid_constant__ Scorer x) {
  Step::run(x, int64_t(blockIdx.x), {int(threadIdx.x), kThreads});
}

// Maps floats to integers with the same order.
__device__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct Chooser {
  const Scorer& x;
  int list, row;
  const float* score;  // score of block j
  __device__ uint32_t key(int j) const {
    if (!x.noise) return ordered(score[j]);
    const float u = (float(noise_word(uint64_t(x.noise[0]), uint64_t(x.noise[1]), list, row, j)) + 0.5f) * 0x1p-32f;
    return ordered(score[j] - logf(-logf(fminf(u, 1.f - 0x1p-24f))));
  }
};

__global__ void __launch_bounds__(kThreads) choose_kernel(const __grid_constant__ Scorer x) {
  extern __shared__ float memory[];  // scores of the visible blocks, then the row's term and w2
  __shared__ int bins[kBins];
  __shared__ uint32_t chosen;        // the digits of the smallest kept key that are known so far
  __shared__ int missing;            // how many keys with these digits are kept
  const int heads = x.problem.heads_q, list = int(blockIdx.x) / x.rows, row = int(blockIdx.x) % x.rows;
  const int b = list / heads, head = list % heads, hidden = x.say.hidden, bound = x.problem.mask.blocks.bound;
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  const Sequence s = sequence(x.problem, x.args, b);
  const Rows shown = BlockGrid{s.band, s.len_q, s.len_k, x.problem.mask.blocks}.shown(row);
  const int32_t* begin = x.list(b, head);
  const int first = clamp(begin[row], 0, bound), keep = clamp(begin[row + 1], first, bound) - first;
  float *score = memory - shown.first, *mine = memory + x.columns, *w2 = mine + hidden;
  if (!keep) return;
  for (int unit = int(threadIdx.x); unit < hidden; unit += kThreads) {
    mine[unit] = x.term_of(0, b, row, head)[unit];
    w2[unit] = x.w2.at(0, x.net(head))[unit];
  }
  if (!threadIdx.x) chosen = 0, missing = keep;
  __syncthreads();

  const float offset = *x.b2.at(0, x.net(head)), temperature = x.temperature();
  for (int j = shown.first + warp; j < shown.last; j += kThreads / kWarp) {
    const float* theirs = x.term_of(1, b, j, x.unit(head));
    float sum = 0;
    for (int unit = lane; unit < hidden; unit += kWarp) sum += w2[unit] * fmaxf(0.f, mine[unit] + theirs[unit]);
    for (int step = kWarp / 2; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (!lane) score[j] = (sum + offset) / temperature;
  }

  const Chooser choose{x, list, row, score};
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int n = int(threadIdx.x); n < kBins; n += kThreads) bins[n] = 0;
    __syncthreads();
    const uint32_t known = shift == 24 ? 0u : ~0u << (shift + 8);
    for (int j = shown.first + int(threadIdx.x); j < shown.last; j += kThreads)
      if (const uint32_t key = choose.key(j); (key & known) == chosen) atomicAdd(bins + (key >> shift & 255), 1);
    __syncthreads();
    if (!threadIdx.x) {
      int digit = kBins - 1, above = 0;
      while (digit > 0 && above + bins[digit] < missing) above += bins[digit--];
      chosen |= uint32_t(digit) << shift;
      missing -= above;
    }
    __syncthreads();
  }

  if (warp) return;
  int to = first, equal = 0;
  for (int from = shown.first; from < shown.last; from += kWarp) {
    const int j = from + lane;
    const uint32_t key = j < shown.last ? choose.key(j) : 0u;
    const bool same = j < shown.last && key == chosen;
    const unsigned all_same = __ballot_sync(~0u, same), below = (1u << lane) - 1;
    const bool taken = j < shown.last && (key > chosen || (same && equal + __popc(all_same & below) < missing));
    const unsigned all_taken = __ballot_sync(~0u, taken);
    const int place = to + __popc(all_taken & below);
    if (taken && place < first + keep) x.column[place] = j, x.scores[place] = score[j];
    to += __popc(all_taken), equal += __popc(all_same);
  }
}

// Fills the space after the last entry.
__global__ void __launch_bounds__(kThreads) tail_kernel(const __grid_constant__ Scorer x) {
  const int bound = x.problem.mask.blocks.bound;
  const int end = clamp(x.list(x.problem.batch - 1, x.problem.heads_q - 1)[x.rows], 0, bound);
  const int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= end && n < bound) x.column[n] = -1, x.scores[n] = 0;
}

struct Start {
  const Scorer& x;
  int device;
  void* stream;

  Status operator()(const void* kernel, SharedMemoryOptIn& ready, int64_t blocks, int bytes = 0) const {
    return blocks ? launch({.who = "adaptive", .kernel = kernel, .ready = &ready, .blocks = blocks, .threads = kThreads,
                            .shared_bytes = bytes, .device = device, .stream = stream},
                           x.problem, &x)
                  : Status::good();
  }
  template <class Step>
  Status step() const {
    static SharedMemoryOptIn ready;
    return (*this)(reinterpret_cast<const void*>(step_kernel<Step>), ready, Step::tasks(x));
  }
  template <class First, class... Rest>
  Status steps() const {
    if (Status s = step<First>(); !s.ok()) return s;
    if constexpr (sizeof...(Rest) > 0) return steps<Rest...>();
    else return Status::good();
  }
};

}  // namespace

Status score_blocks(const Scorer& x, int device, void* stream) {
  static SharedMemoryOptIn choose_ready, tail_ready;
  const DeviceGuard use(device);
  if (!use.status.ok()) return use.status;
  const Start start{x, device, stream};
  if (Status s = start.steps<scorer::Mix, scorer::Mean, scorer::Term>(); !s.ok()) return s;
  const int64_t rows = int64_t(x.problem.batch) * x.problem.heads_q * x.rows;
  if (Status s = start(reinterpret_cast<const void*>(choose_kernel), choose_ready, rows,
                       chooser_bytes(x.columns, x.say.hidden)); !s.ok())
    return s;
  return start(reinterpret_cast<const void*>(tail_kernel), tail_ready, ceil_div(x.problem.mask.blocks.bound, kThreads));
}

Status score_gradients(const Scorer& x, int device, void* stream) {
  const DeviceGuard use(device);
  if (!use.status.ok()) return use.status;
  return Start{x, device, stream}
      .steps<scorer::Mix, scorer::Mean, scorer::Term, scorer::RowGradient, scorer::KeyGradient, scorer::MixGradient,
             scorer::FirstLayerGradient, scorer::ProjectionGradient, scorer::LastLayerGradient,
             scorer::TokenGradient>();
}

}  // namespace attune::cuda
