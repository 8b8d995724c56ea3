// SPDX-License-Identifier: Apache-2.0
// Host side of the fused sm90_backward: what planning (choose.cu) and running (host.cu) share.
#pragma once
#include "attention/sm90/backward/choice.h"
#include "attention/sm90/backward/instances.h"
#include "attention/sm90/schedule.h"

namespace attune::sm90 {

// Sets tiles, splits, kernel, choice and workspace of a plan whose path is fused.
Status fused_shape(std::string_view who, Plan&);

BackwardKernel& kernel_of(const Problem&, const BackwardChoice&);
inline int sms_of(const Plan& plan) { return std::max(plan.device.units, 1); }
// What a query head reads and adds to: q, d_out and dQ in f32.
inline double bytes_of_head(const BackwardKernel& k, int64_t rows) { return double(rows) * k.dq_pitch * 8; }
// True if some query sees each key tile.
bool all_seen(KeyTile sequence, int tile_k);
// What may_persist() asks about.
KeyWalk walk_of(const Problem&, const BackwardChoice&, int tile_k);
// Rows per head in dQ and in the statistics.
int64_t padded_rows(const Problem&, const BackwardKernel&);

struct Marks { uint64_t large_logits; int taken; };  // BackwardParams::large_logits and taken
struct Buffers {
  float2* stats;
  float* dq;
  int* tickets;
  KeyTile* table;
  Marks* marks;
  float4* sums;  // of head splits, or of query splits
  int* counts;   // tiles and jobs taken, jobs done per head; then query splits that have stored their sums
};
inline int64_t counts_before_splits(const Problem& p) { return kJobsDone + int64_t(p.batch) * p.heads_q; }
// `planned`: of the plan. The kernel and the head splits may be those of a run.
Buffers carve(Workspace&, const Problem&, const BackwardChoice& planned, const BackwardKernel&, int head_splits);

}  // namespace attune::sm90
