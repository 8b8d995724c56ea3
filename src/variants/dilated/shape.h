// What dilated attention decides before any memory is seen: who adds to what, how many rows at a time, which plain
// problems its calls are.
#pragma once
#include "plan/backend.h"
#include "variants/dilated/calls.h"

namespace attune {

// Bytes of sums between parts that are never too many: shorter chunks leave multiprocessors of an H200 idle.
inline constexpr int64_t kLeastSums = int64_t(192) << 20;

// What a part does: writes, adds to what is there, or computes a branch's out and lse anew for a backward.
enum class DilatedPart { write, add, again };

struct DilatedShape {
  Dilated d{};
  bool backward = false;
  bool adds = false;        // some element has several writers
  bool sums_apart = false;  // and they meet in the workspace, in f32: the tensors asked for are narrower
  bool own_parts = false;   // a branch's out and lse are needed by themselves
  bool clears = false;      // not every row is written before it is added to or left alone
  int64_t chunk = 0;        // rows at a time; a plan keeps it as tile_q

  explicit DilatedShape(const Problem&, int64_t least_sums = kLeastSums);
  // The plain problem of a call.
  Problem problem(const Problem&, const DilatedCall&, DilatedPart) const;
  // What a call of this branch is run as, in order.
  struct Parts { int count = 0; DilatedPart part[2] = {}; };
  Parts parts(int branch) const;
};

// Memory between the parts, [batch, chunk, head, dim] each; without what is not needed. Counted in `shape`, placed in
// `run` on the device of q.
struct DilatedBetween {
  Tensor out{}, dq{}, dk{}, dv{};  // running sums
  Tensor lse{};                    // of a forward that is not asked for it
  Tensor own_out{}, own_lse{};     // of one branch
};
DilatedBetween carve_dilated(Workspace&, const Problem&, const DilatedShape&, const Tensor& q);

// The backend's `shape`; least_sums is for tests, whose sequences are too short to be cut.
Status shape_dilated(Plan&, const Planner&, int64_t least_sums);

}  // namespace attune
