// SPDX-License-Identifier: Apache-2.0
// The decisions of dilated attention that need no memory: which parts accumulate, the rows per chunk, and the plain
// problems of its calls.
#pragma once
#include "plan/backend.h"
#include "variants/dilated/calls.h"

namespace attune {

// Bytes of intermediate sums that are always allowed: shorter chunks leave SMs of an H200 idle.
inline constexpr int64_t kLeastSums = int64_t(192) << 20;

// What a part does: write, add to the existing values, or recompute a branch's out and lse for a backward.
enum class DilatedPart { write, add, again };

struct DilatedShape {
  Dilated d{};
  bool backward = false;
  bool adds = false;        // some element has several writers
  bool sums_apart = false;  // they accumulate in the workspace in f32, because the results are narrower
  bool own_parts = false;   // a branch's own out and lse are needed
  bool clears = false;      // some rows are not written before they are added to or left alone
  int64_t chunk = 0;        // rows per chunk; a plan stores it as tile_q

  explicit DilatedShape(const Problem&, int64_t least_sums = kLeastSums);
  // The plain problem of a call.
  Problem problem(const Problem&, const DilatedCall&, DilatedPart) const;
  // The parts that a call of this branch runs, in order.
  struct Parts { int count = 0; DilatedPart part[2] = {}; };
  Parts parts(int branch) const;
};

// Memory between the parts, [batch, chunk, head, dim] each; unused ones are empty. Counted in `shape`, placed in `run`
// on the device of q.
struct DilatedBetween {
  Tensor out{}, dq{}, dk{}, dv{};  // running sums
  Tensor lse{};                    // for a forward without a given lse
  Tensor own_out{}, own_lse{};     // one branch
};
DilatedBetween carve_dilated(Workspace&, const Problem&, const DilatedShape&, const Tensor& q);

// The backend's `shape`; least_sums is for tests, whose sequences are too short to split.
Status shape_dilated(Plan&, const Planner&, int64_t least_sums);

}  // namespace attune
