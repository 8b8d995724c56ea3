// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper: prepare ahead, the work of idle warps of persistent CTAs. The preprocessing covers the
// first heads only. For the others, these warps clear dQ and compute the statistics while products of earlier heads
// run.
//
// Warps take jobs in order and wait for nothing while they have one. A CTA starts a key tile when all jobs of its head
// are done. Every wait ends, however few CTAs run at a time: the idle warps of the waiting CTA take the remaining jobs.
#pragma once
#include "attention/sm90/backward/config.h"
#include "attention/tile/row_statistics.h"
#include "core/large_logit.h"
#include "machine/sm80/mma.h"
#include "machine/sm80/memory.h"
#include "machine/sm90/scalar.h"
#include "machine/sm90/tma.h"
#include "machine/sm90/wgmma.h"

namespace attune::sm90 {

struct Job { int head, first; };  // head among all sequences; row
__device__ inline Job find_job(const BackwardParams& x, int job) {
  const uint32_t jobs = uint32_t(x.padded) / kJobRows, head = uint32_t(job) / jobs;
  return {x.ahead.ready + int(head), int((uint32_t(job) - head * jobs) * kJobRows)};
}

template <class C>
__device__ void clear_dq(const typename C::Params& x, Job job) {
  float4* const to = reinterpret_cast<float4*>(x.dq + (int64_t(job.head) * x.padded + job.first) * C::kDqPitch);
#pragma unroll 4
  for (int n = lane_id(); n < kJobRows * C::kDqPitch / 4; n += 32) to[n] = {};
}

// Sums of out * d_out for the rows of a job, each to the lane of its number. One row after another: 24 registers leave
// none for more loads.
template <class C>
__device__ float sum_rows(const typename C::Params& x, Job job) {
  using T = typename C::T;
  constexpr int kLanes = C::kDqPitch / 8, kRows = 32 / kLanes;  // per row; at once
  const uint32_t batch = uint32_t(job.head) / x.heads, head = job.head - batch * x.heads;
  const int row = job.first + lane_id() / kLanes, column = lane_id() % kLanes * 8;
  const char* out = reinterpret_cast<const char*>(view<const T>(x.ahead.out).row(batch, row, head) + column);
  const char* d_out = reinterpret_cast<const char*>(view<const T>(x.ahead.d_out).row(batch, row, head) + column);
  const int left = column < x.ahead.dim_v ? x.rows - row : 0;
  float own = 0.f;
#pragma unroll 1
  for (int n = 0; n < kJobRows; n += kRows) {
    float sum = 0.f;
    if (n < left) {
      const uint4 one = *reinterpret_cast<const uint4*>(out), other = *reinterpret_cast<const uint4*>(d_out);
      const uint32_t u[4] = {one.x, one.y, one.z, one.w}, v[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 f = sm80::unpack<T>(u[e]), g = sm80::unpack<T>(v[e]);
        sum = fmaf(f.x, g.x, fmaf(f.y, g.y, sum));
      }
    }
#pragma unroll
    for (int m = 1; m < kLanes; m *= 2) sum += __shfl_xor_sync(~0u, sum, m);
    const int to = lane_id();
    sum = __shfl_sync(~0u, sum, to % kRows * kLanes);
    if (to / kRows == n / kRows) own = sum;
    out += x.ahead.out_step, d_out += x.ahead.d_out_step;
  }
  return own;
}

// Stores the statistics of a lane's row, as the preprocessing does.
template <class C>
__device__ void leave_statistics(const typename C::Params& x, Job job, float sum) {
  const int i = job.first + lane_id();
  float2 row{INFINITY, 0.f};
  if (i < x.rows) {
    const uint32_t batch = uint32_t(job.head) / x.heads, head = job.head - batch * x.heads;
    const float lse = *view<const float>(x.ahead.lse).row(batch, i, head);
    if (x.ahead.d_lse.data) sum -= *view<const float>(x.ahead.d_lse).row(batch, i, head);
    if (lse != -INFINITY) row = {lse_of_weights(lse), sum * x.kept};
    if (is_large_logit(row.x)) *x.large_logits = x.launch;  // before the count that publishes the head
  }
  sm80::store_statistics(x.ahead.stats, int64_t(job.head) * x.padded + i, C::kTransposed, row);
}

template <class C>
__device__ void prepare_others(const typename C::Params& x) {
  if (x.ahead.jobs == 0) return;
#pragma unroll 1
  for (;;) {
    int taken = 0;
    if (lane_id() == 0) taken = atomicAdd(x.taken + kJobsTaken, 1);
    int job = __shfl_sync(~0u, taken, 0);
    if (job >= x.ahead.jobs) return;
    if (x.dq) clear_dq<C>(x, find_job(x, job));
    own_register(job);  // recomputes what depends on it instead of keeping it: there are 24 registers
    const float sum = sum_rows<C>(x, find_job(x, job));
    own_register(job);
    leave_statistics<C>(x, find_job(x, job), sum);
    publish_global();  // bulk copies load the statistics and add to dQ
    __syncwarp();
    own_register(job);
    if (lane_id() == 0) sm80::add_count(x.taken + kJobsDone + find_job(x, job).head);
  }
}

// For the thread that loads: waits until the head of a tile is ready, or all heads of a head split. Undivided GQA
// groups have no jobs, and the heads that are ready form whole splits.
template <class C>
__device__ void wait_ready(const typename C::Params& x, const KeyTile& t) {
  const int heads = C::kHeadSplits ? x.group : 1, head = t.batch * x.heads + t.head * heads;
  if (x.ahead.jobs == 0 || head < x.ahead.ready) return;
  for (int n = 0; n < heads; ++n)
    while (sm80::load_count(x.taken + kJobsDone + head + n) < x.padded / kJobRows) {}
  publish_global();
}

}  // namespace attune::sm90
